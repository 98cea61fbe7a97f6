"""Run an experiment: `python -m experiments NAME`, or `python -m mlpkit bench NAME`, where mlpkit is installed."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

import experiments
from experiments.lab import processes, results
from mlpkit import interrupts, machine
from mlpkit.__main__ import add_command, main, say
from mlpkit.files import check_writable, set_aside


def add_to(commands):
    """Add the command `bench` to those of `python -m mlpkit`."""
    parser = add_command(commands, bench)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    questions = (f"  {name:<21}{experiments.question(name)}" for name in experiments.names())
    parser.epilog = "\n".join(["experiments:", *questions])
    which = dict(default="engines", choices=experiments.names(), help="one of those below (default: engines)")
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", **which)
    parser.add_argument("--publish", action="store_true", help="keep the record in results/MACHINE")


def bench(options):
    """Run an experiment, show its table, and keep its record in results/mine, or in results/MACHINE to publish it."""
    if machine.busy() and options.publish:
        raise ValueError(f"{machine.busy()}; a record is published from a quiet machine.")
    if machine.busy():
        say(f"{machine.busy()}.")
    where = machine.name() if options.publish else results.MINE
    check_writable(results.place(options.experiment, where))
    experiment = experiments.load(options.experiment)
    plan = {"plan": experiment.THOROUGH} if options.publish and hasattr(experiment, "THOROUGH") else {}
    saved: list[Path] = []

    def save(record):
        check()
        saved.append(results.save_part(record, where))

    try:
        with tqdm(unit="part", bar_format="{desc} [{elapsed}]", disable=None) as bar, interrupts.heeded() as check:
            record = experiment.measure(save=save, progress=bar.set_description_str, **plan)
            check()
        set_aside(results.place(options.experiment, where))
        saved.append(results.save(record, where))
    except processes.Failed as error:
        raise OSError(f"a process of this experiment failed: {error}") from error
    finally:  # an interrupted run shows what it has, too
        if saved:
            print(experiment.table(results.load(saved[-1])))
            print(f"\nThe record, with all samples: {results.shown(saved[-1])}")


if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
