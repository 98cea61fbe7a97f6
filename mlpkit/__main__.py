"""The command line: `python -m mlpkit doctor | train | bench`."""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from tqdm import tqdm

from . import data, engines
from .files import check_writable
from .kernels import gpu
from .lab import bench, machine, peers, processes, results
from .lab.experiments import agreement, feed, goal, launches, matmul_ladder, persistence, seeds, timeline
from .lab.experiments import compile as compiling
from .lab.experiments import trainings as experiments
from .training.fit import Diverged
from .training.optim import BY_NAME
from .training.recipe import SCHEDULES, Recipe


def main(arguments=None):
    """Run one command and return its exit code.

    0 for success, 1 for bad input or too little memory, 130 for Ctrl-C, 141 where nobody reads the output any more.
    """
    _open_streams()
    options = _parser().parse_args(arguments)
    try:
        code = options.command(options) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has seen enough, as `head` has
        _close_streams()
        return 141
    except processes.Failed as error:
        print(f"mlpkit: a process of this experiment failed: {error}", file=sys.stderr)
        return 1
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


def _open_streams():
    """Where a stream was closed, as by `2>&-`, write to nowhere: else the next file that is opened takes its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open as long as the program runs)


def _close_streams():
    """Let what is still to be written go nowhere, so that Python can end without a complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def doctor(options):
    """Say what this machine is, what it can run, and what is missing."""
    print(machine.doctor())


def train(options):
    """Train the network once; show the validation accuracy after each epoch."""
    chosen = {name: getattr(options, name) for name in _RECIPE_OPTIONS}
    if options.lr is None:
        chosen["lr"] = GOOD_RATES[options.optimizer]
    recipe = Recipe(**chosen)
    if options.save:
        check_writable(options.save)
    dataset = data.load(options.data)
    with tqdm(total=recipe.epochs, unit="epoch", disable=None) as bar:
        network, history = recipe.train(
            dataset,
            options.engine,
            patience=options.patience,
            checkpoints=options.checkpoints,
            resume=options.resume,
            on_epoch=lambda history: _show_epoch(history, bar),
        )
    if options.save:  # before anything is printed, which may fail
        network.save(options.save)
    print(f"{history.stopped}; accuracy on validation {network.evaluate(*dataset.validation)[1]:.2%}")
    if options.test:
        print(f"accuracy on test {network.evaluate(*dataset.test)[1]:.2%}")
    return 130 if history.stopped == "interrupted" else 0


def run_bench(options):
    """Run an experiment, show its table, and keep its record in results/mine, or in results/MACHINE to publish it."""
    if machine.busy() and options.publish:
        raise ValueError(f"{machine.busy()}; a record is published from a quiet machine.")
    if machine.busy():
        print(f"mlpkit: {machine.busy()}.", file=sys.stderr)
    where = machine.name() if options.publish else results.MINE
    check_writable(results.place(options.experiment, where))
    saved: list[Path] = []

    def save(record):
        if not saved:
            results.set_aside(options.experiment, where)
        saved.append(results.save(record, where))

    try:
        _run_experiment(options, save)
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


def _late(name):
    """Return the function of that name, "module.function", which is imported when it is called.

    So nobody waits for Numba who does not use it, and where it can't be imported, `doctor` can still say so.
    """
    module, function = name.split(".")
    return lambda *given, **options: getattr(import_module(f".{module}", __package__), function)(*given, **options)


def _with(run, *inputs):
    """Return the experiment `run`, which is given what each of the `inputs` loads when it starts."""
    return lambda options, **callbacks: run(*(load() for load in inputs), **callbacks)


def _training_set():
    return data.load().train


_gpu_agreement = partial(agreement.run, names=agreement.GPU_NAMES, experiment="gpu_agreement")
_gpu_compile = partial(compiling.run, names=engines.ON_GPU, experiment="gpu_compile", processes=1)


EXPERIMENTS: dict[str, tuple[Callable, Callable]] = {  # name: (what makes its record, what shows it)
    "engines": (_engines, bench.table),
    "peers": (_with(peers.compare), peers.table),
    "gpu_peers": (_with(partial(peers.compare, peers.GPU)), peers.table),
    "agreement": (_with(agreement.run, data.load), agreement.table),
    "gpu_agreement": (_with(_gpu_agreement, data.load), agreement.table),
    "floor": (_with(_late("roofline.run"), _training_set), _late("roofline.table")),
    "matmul": (_with(_late("matmuls.run")), _late("matmuls.table")),
    "passes": (_with(_late("passes.run"), _training_set), _late("passes.table")),
    "sweep": (_with(_late("sweep.run"), _training_set), _late("sweep.table")),
    "compile": (_with(compiling.run), compiling.table),
    "gpu_compile": (_with(_gpu_compile), compiling.table),
    "goal_recipes": (_with(goal.choose, data.load), experiments.table),
    "goal": (_with(goal.run, data.load), goal.table),
    "matmul_ladder": (_with(matmul_ladder.run), matmul_ladder.table),
    "launches": (_with(launches.run), launches.table),
    "timeline": (_with(timeline.run), timeline.table),
    "feed": (_with(feed.run), feed.table),
    "persistence": (_with(persistence.run), persistence.table),
    "seeds": (_with(seeds.run), seeds.table),
    **{name: (_with(partial(experiments.run, name), data.load), experiments.table) for name in experiments.ALL},
}


def _show_epoch(history, bar):
    epoch = history.epochs[-1]
    try:
        bar.write(
            f"epoch {len(history.epochs):>3}: loss {epoch.train_loss:.4f}, validation loss "
            f"{epoch.validation_loss:.4f}, accuracy {epoch.validation_accuracy:.2%}, {epoch.seconds:.1f} s"
        )
    except OSError:  # nobody reads on, or the disk is full: stop as after Ctrl-C, with what there is
        raise KeyboardInterrupt from None
    bar.update(len(history.epochs) - bar.n)


# One rate for all would be wrong by a factor of a hundred for most: at SGD's, Adam learns nothing.
GOOD_RATES = experiments.OPTIMIZERS | {"adamw": experiments.OPTIMIZERS["adam"], "sgd": Recipe().lr}
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
    parser.add_argument("--engine", default=engines.BASELINE, help=", ".join(engines.NAMES))
    parser.add_argument("--data", default="mnist", choices=tuple(data.FILES))
    parser.add_argument("--optimizer", default=usual.optimizer, choices=tuple(BY_NAME))
    parser.add_argument("--lr", type=float, help="the highest learning rate; else one that suits the optimizer")
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
