"""The command line: `python -m mlpkit doctor | train | bench`."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tqdm import tqdm

from . import (
    agreement,
    bench,
    compiling,
    data,
    engines,
    experiments,
    feed,
    goal,
    gpu,
    launches,
    machine,
    matmuls,
    passes,
    peers,
    results,
    roofline,
    sweep,
    timeline,
)
from .optim import BY_NAME
from .recipe import SCHEDULES, Recipe
from .train import Diverged


def main(arguments=None):
    """Run one command and return its exit code: 0 for success, 1 for bad input or too little memory, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options) or 0
    except (ValueError, TypeError, OSError, Diverged, engines.EngineUnavailable) as error:
        print(f"mlpkit: {error}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        sentence = gpu.out_of_memory(error)
        if sentence is None:
            raise
        print(f"mlpkit: {sentence}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmlpkit: interrupted; what was finished is kept.", file=sys.stderr)
        return 130


def doctor(options):
    """Say what this machine is, what it can run, and what is missing."""
    print(machine.doctor())


def train(options):
    """Train the network once; show the validation accuracy after each epoch."""
    chosen = {name: getattr(options, name) for name in _RECIPE_OPTIONS}
    recipe, dataset = Recipe(**chosen), data.load(options.data)
    with tqdm(total=recipe.epochs, unit="epoch", disable=None) as bar:
        network, history = recipe.train(
            dataset,
            options.engine,
            patience=options.patience,
            checkpoints=options.checkpoints,
            resume=options.resume,
            on_epoch=lambda history: _show_epoch(history, bar),
        )
    print(f"{history.stopped}; accuracy on validation {network.evaluate(*dataset.validation)[1]:.2%}")
    if options.test:
        print(f"accuracy on test {network.evaluate(*dataset.test)[1]:.2%}")
    if options.save:
        network.save(options.save)
    return 130 if history.stopped == "interrupted" else 0


def run_bench(options):
    """Run an experiment, show its table, and keep its record in results/mine, or in results/MACHINE to publish it."""
    if machine.busy() and options.publish:
        raise ValueError(f"{machine.busy()}; a record is published from a quiet machine.")
    if machine.busy():
        print(f"mlpkit: {machine.busy()}.", file=sys.stderr)
    where = machine.name() if options.publish else results.MINE
    results.set_aside(options.experiment, where)
    saved: list[Path] = []
    try:
        _run_experiment(options, lambda record: saved.append(results.save(record, where)))
    finally:  # an interrupted run shows what it has, too
        if saved:
            record = results.load(saved[-1])
            print(EXPERIMENTS[options.experiment][1](record))
            print(f"\nThe record, with all samples: {saved[-1].relative_to(results.ROOT)}")


def _run_experiment(options, save):
    with tqdm(unit="part", bar_format="{desc} [{elapsed}]", disable=None) as bar:
        run, _ = EXPERIMENTS[options.experiment]
        run(options, save=save, progress=bar.set_description_str)


def _engines(options, **callbacks):
    timing = bench.THOROUGH if options.publish else bench.USUAL
    bench.compare(data.load(), Recipe(), timing, **callbacks)


def _peers(options, **callbacks):
    peers.compare(**callbacks)


def _gpu_peers(options, **callbacks):
    peers.compare(peers.GPU, **callbacks)


def _agreement(options, **callbacks):
    agreement.run(data.load(), **callbacks)


def _gpu_agreement(options, **callbacks):
    agreement.run(data.load(), names=agreement.GPU_NAMES, experiment="gpu_agreement", **callbacks)


def _floor(options, **callbacks):
    roofline.run(data.load().train, **callbacks)


def _sweep(options, **callbacks):
    sweep.run(data.load().train, **callbacks)


def _compile(options, **callbacks):
    compiling.run(**callbacks)


def _gpu_compile(options, **callbacks):
    compiling.run(names=compiling.GPU_NAMES, experiment="gpu_compile", processes=1, **callbacks)


def _goal(options, **callbacks):
    goal.run(data.load(), **callbacks)


def _goal_recipes(options, **callbacks):
    goal.choose(data.load(), **callbacks)


def _passes(options, **callbacks):
    passes.run(data.load().train, **callbacks)


def _feed(options, **callbacks):
    feed.run(**callbacks)


def _matmul(options, **callbacks):
    matmuls.run(**callbacks)


def _launches(options, **callbacks):
    launches.run(**callbacks)


def _timeline(options, **callbacks):
    timeline.run(**callbacks)


def _trainings(name, options, **callbacks):
    experiments.run(name, data.load(), **callbacks)


EXPERIMENTS: dict[str, tuple[Callable, Callable]] = {  # name: (what makes its record, what shows it)
    "engines": (_engines, bench.table),
    "peers": (_peers, peers.table),
    "gpu_peers": (_gpu_peers, peers.table),
    "agreement": (_agreement, agreement.table),
    "gpu_agreement": (_gpu_agreement, agreement.table),
    "floor": (_floor, roofline.table),
    "matmul": (_matmul, matmuls.table),
    "passes": (_passes, passes.table),
    "sweep": (_sweep, sweep.table),
    "feed": (_feed, feed.table),
    "compile": (_compile, compiling.table),
    "gpu_compile": (_gpu_compile, compiling.table),
    "goal_recipes": (_goal_recipes, experiments.table),
    "goal": (_goal, goal.table),
    "launches": (_launches, launches.table),
    "timeline": (_timeline, timeline.table),
    **{name: (partial(_trainings, name), experiments.table) for name in experiments.ALL},
}


def _show_epoch(history, bar):
    epoch = history.epochs[-1]
    bar.write(
        f"epoch {len(history.epochs):>3}: loss {epoch.train_loss:.4f}, validation loss "
        f"{epoch.validation_loss:.4f}, accuracy {epoch.validation_accuracy:.2%}, {epoch.seconds:.1f} s"
    )
    bar.update(len(history.epochs) - bar.n)


_RECIPE_OPTIONS = ("optimizer", "lr", "schedule", "weight_decay", "batch_size", "epochs", "seed")


def _parser():
    parser = argparse.ArgumentParser(prog="python -m mlpkit", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="doctor | train | bench")
    _add_command(commands, doctor)
    trainer = _add_command(commands, train)
    _add_train_options(trainer)
    bencher = _add_command(commands, run_bench, "bench")
    bencher.add_argument("experiment", nargs="?", default="engines", choices=tuple(EXPERIMENTS))
    bencher.add_argument("--publish", action="store_true", help="keep the record in results/MACHINE")
    return parser


def _add_command(commands, function, name=None):
    name = name or function.__name__
    parser = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
    parser.set_defaults(command=function)
    return parser


def _add_train_options(parser):
    usual = Recipe()
    parser.add_argument("--engine", default=bench.BASELINE, help=", ".join(engines.NAMES))
    parser.add_argument("--data", default="mnist", choices=tuple(data.FILES))
    parser.add_argument("--optimizer", default=usual.optimizer, choices=tuple(BY_NAME))
    parser.add_argument("--lr", type=float, default=usual.lr)
    parser.add_argument("--schedule", default=usual.schedule, choices=SCHEDULES)
    for name in ("weight_decay", "batch_size", "epochs", "seed"):
        default = getattr(usual, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--patience", type=int, help="epochs without progress before stopping")
    parser.add_argument("--checkpoints", type=Path, help="a folder for last.npz and best.npz")
    parser.add_argument("--test", action="store_true", help="read the test set too, at the end")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--save", type=Path, help="write the trained network to this .npz file")


if __name__ == "__main__":
    sys.exit(main())
