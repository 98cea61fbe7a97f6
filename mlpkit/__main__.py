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
    matmul_ladder,
    matmuls,
    passes,
    peers,
    persistence,
    results,
    roofline,
    seeds,
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
    "floor": (_with(roofline.run, _training_set), roofline.table),
    "matmul": (_with(matmuls.run), matmuls.table),
    "passes": (_with(passes.run, _training_set), passes.table),
    "sweep": (_with(sweep.run, _training_set), sweep.table),
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
    parser.add_argument("--engine", default=engines.BASELINE, help=", ".join(engines.NAMES))
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
