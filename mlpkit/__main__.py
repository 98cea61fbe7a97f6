"""The command line, `python -m mlpkit doctor | train | serve ...`, and what packages beside this one add, as `bench`.

They add a command by an entry point of the group "mlpkit.commands", a function of the parser's commands: so nothing in
here knows of them.
"""

import os
import signal

HEEDED = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell has its background jobs ignore Ctrl-C
if __name__ == "__main__" and HEEDED:  # while Python imports what follows, there is nothing to lose
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import argparse
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

try:
    try:
        from tqdm import tqdm
    except ValueError as error:
        sys.exit(f"mlpkit: a variable TQDM_... in the environment is not as tqdm needs it: {error}")

    from . import data, engines, interrupts, machine, onnx_io
    from .files import check_writable, set_aside
    from .kernels import gpu
    from .nn.models import MODELS
    from .nn.network import Network
    from .optim import BY_NAME, GOOD_RATES
    from .paths import expanded
    from .training.fit import Diverged
    from .training.recipe import SCHEDULES, Recipe
    from .words import printable
except ModuleNotFoundError as error:
    sys.exit(f"mlpkit: {error.name} is not there for {sys.executable}: use the Python of .venv, which make sets up.")


def main(arguments=None):
    """Run one command and return its exit code.

    0 for success, 1 for bad input or too little memory, 130 for Ctrl-C, 141 where nobody reads the output any more.
    """
    _open_streams()
    warnings.filterwarnings("ignore", "Environment variable", RuntimeWarning)  # Numba's, of which its engines say more
    try:
        options = _parser().parse_args(arguments)
        code = options.command(options) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has seen enough, as `head` has
        _close_streams()
        return 141
    except (ValueError, TypeError, OSError, ImportError, Diverged, engines.EngineUnavailable) as error:
        say(error)
        _close_streams()
        return 1
    except (MemoryError, RuntimeError) as error:
        sentence = gpu.out_of_memory(error)
        if sentence is None:
            raise
        say(sentence)
        return 1
    except (KeyboardInterrupt, SystemError) as error:
        if isinstance(error, SystemError) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise  # Numba makes one of a KeyboardInterrupt while it reads compiled code
        print("\nmlpkit: interrupted; what was finished is kept.", file=sys.stderr)
        return 130


def say(what):
    """Say a sentence, or an error. A path in it may be somebody else's, and hold commands to a terminal."""
    print("mlpkit:", printable(what, kept="\n"), file=sys.stderr)


def _open_streams():
    """Where a stream was closed, as by `2>&-`, write to nowhere: else the next file that is opened takes its place.

    A sign that a stream's encoding has not, as in the name of a file, is written out: what was done is done. A line
    is shown as soon as it ends, where a pipe or a file would have it wait for a hundred others, too.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open as long as the program runs)
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace", line_buffering=True)


def _close_streams():
    """Write what is left; let what can't be written go nowhere, so that Python can end without a complaint."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def doctor(options):
    """Say what this machine is, what it can run, and what is missing."""
    print(machine.doctor())


def train(options):
    """Train the network once; show the validation accuracy after each epoch."""
    chosen = {name: getattr(options, name) for name in _RECIPE_OPTIONS}
    if options.lr is None:
        chosen["lr"] = GOOD_RATES[options.optimizer]
    recipe = Recipe(model=MODELS[options.model], **chosen)
    if options.save:
        _check_apart(options.save, options.checkpoints)
        check_writable(options.save)
    dataset, train_by = data.load(options.data), _train_by(recipe, options)
    with (
        tqdm(total=recipe.epochs, unit="epoch", disable=None) as bar,
        warnings.catch_warnings(),
        interrupts.heeded(again=0) as check,  # where Numba compiles, Ctrl-C may be lost
    ):
        warnings.showwarning = _show_warning
        try:
            network, history = train_by(
                dataset,
                engine=options.engine,
                patience=options.patience,
                checkpoints=options.checkpoints,
                resume=options.resume,
                on_epoch=lambda history: (check(), _show_epoch(history, bar)),
            )
        except Diverged as error:
            if options.save:
                raise Diverged(f"{error} Nothing was saved as {options.save}.", error.history) from error
            raise
    if options.save:  # before anything is printed, which may fail
        earlier = set_aside(os.path.realpath(options.save)) if history.stopped == "interrupted" else None
        try:
            _save(network, options.save)
        finally:
            if earlier:
                say(f"the network of an earlier training is now {earlier}.")
    return _report(history, network, dataset, options.test)


def _train_by(recipe, options):
    """Return what trains: the recipe in this process, or several ranks."""
    if options.ranks is None and options.gpus is None:
        return recipe.train
    from .parallel import ranks  # a training in one process needs none of it

    count = options.gpus if options.ranks is None else options.ranks
    return partial(ranks.train, recipe, ranks=count, gpus=options.ranks is None)


def _report(history, network, dataset, test):
    """Say how a training has ended, and how good the network is; return the exit code."""
    if history.stopped == "interrupted":  # what would be measured now takes a slow engine long
        last = (
            f"{history.validation['accuracy'][-1]:.2%} after epoch {len(history.epochs)}"
            if history.epochs
            else "unknown"
        )
        print(f"interrupted; accuracy on validation {last}")
        return 130
    print(f"{history.stopped}; accuracy on validation {network.evaluate(*dataset.validation)['accuracy']:.2%}")
    if test:
        print(f"accuracy on test {network.evaluate(*dataset.test)['accuracy']:.2%}")
    return 0


def _check_apart(save, folder):
    """Raise ValueError where the network would be saved over a checkpoint, or where their folder is to be."""
    if folder:
        folder = Path(os.path.realpath(folder))
        taken = [folder, *folder.parents, *(folder / name for name in ("last.npz", "best.npz", ".lock"))]
        if os.path.realpath(save).casefold() in (str(path).casefold() for path in taken):
            raise ValueError(f"{save} is where the checkpoints go: choose another place for --save.")


def _save(network, path):
    """Save a network, or, where that fails, elsewhere: others may have filled the disk while it was trained."""
    try:
        network.save(path)
    except OSError as error:
        why = str(error).rstrip(".")
        where = "nothing can be written elsewhere, so the network is lost"
        for folder in (None, ".", expanded("~")):  # None: where temporary files are
            with suppress(OSError):
                refuge = Path(tempfile.mkdtemp(prefix="mlpkit-", dir=folder)) / path.name
                network.save(refuge)
                where = f"the network is in {refuge}"
                break
        raise OSError(f"{why}; {where}.") from error


def serve(options):
    """Serve a trained network: a page to draw on, POST /classify, /health and /metrics."""
    try:
        from .serving import command  # what it needs is an extra
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is missing: `make serve` brings it, or pip install -e '.[serve]'.") from error
    queue = {name: getattr(options, name) for name in ("longest", "wait", "capacity", "target", "seconds")}
    of = None if options.data == "none" else options.data
    make = partial(command.service, options.network, options.engine, of, **queue)
    return command.run(make, options.host, options.port)


def download(options):
    """Get Fashion-MNIST from its authors, 31 MB. MNIST is here already."""
    source = data.source(options.name)
    with tqdm(unit="B", unit_scale=True, total=getattr(source, "BYTES", None)) as bar:
        paths = data.download(bar.update, options.name)
    print(f"{source.__doc__.partition(':')[0]} is in {paths[0].parent}.")


def _check_another(read, written):
    """Raise ValueError where a file would be replaced by what is made of it, and be lost."""
    if os.path.realpath(read).casefold() == os.path.realpath(written).casefold():
        raise ValueError(f"{written} is what is read: choose another name for what is written.")


def export(options):
    """Write a network that was saved as .npz to an ONNX file, which other libraries read."""
    _check_another(options.network, options.file)
    onnx_io.write(Network.load(options.network), options.file, fold=not options.unfolded)
    print(f"{options.file}: {options.file.stat().st_size:,} bytes.")


def import_(options):
    """Read a network from an ONNX file, whoever made it, and save it as .npz."""
    _check_another(options.file, options.network)
    network = onnx_io.read(options.file, shape=options.shape)
    network.save(options.network)
    print(f"{options.network}: {network.model}, {network.layout.size:,} parameters.")


def search(options):
    """Search for a good recipe, as a study's file says; where one has stopped, go on."""
    try:
        from .search import run
    except ModuleNotFoundError as error:
        raise ImportError(f"a search needs {error.name}: {sys.executable} -m pip install -e '.[search]'.") from error

    def show(trial, finished, found):
        given = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in trial.params.items()}
        choices = ", ".join(f"{name} {value}" for name, value in given.items())
        ended = f"{trial.state.name.lower()} {trial.value:.4f}" if trial.values else trial.user_attrs.get("why", "")
        bar.write(f"trial {trial.number:>4}: {choices}: {ended}")
        with suppress(ValueError):  # there is none yet
            bar.set_postfix(best=f"{found.best_value:.4f}", refresh=False)
        bar.update(finished - bar.n)

    study = run.read(options.study)
    with tqdm(total=study.trials, unit="trial", disable=None) as bar, interrupts.heeded(again=0):
        found = run.search(options.study, show)
    if all(trial.values is None for trial in found.trials):
        raise ValueError("no trial came to its end, for the reasons above: mend them, and give the study another name.")
    best = found.best_trial
    print(
        f"the best of {len(found.trials)} trials is number {best.number}, {study.goal} {best.value:.4f}: {best.params}"
    )


def _show_warning(message, *_):
    with suppress(OSError):  # the disk that is full may hold this stream, too
        tqdm.write("mlpkit: " + printable(message, kept="\n"), sys.stderr)


def _show_epoch(history, bar):
    epoch = history.epochs[-1]
    try:
        bar.write(
            f"epoch {len(history.epochs):>3}: loss {epoch.train_loss:.4f}, validation loss "
            f"{epoch.validation['loss']:.4f}, accuracy {epoch.validation['accuracy']:.2%}, {epoch.seconds:.1f} s"
        )
    except OSError:  # nobody reads on, or the disk is full: stop as after Ctrl-C, with what there is
        raise KeyboardInterrupt from None
    bar.update(len(history.epochs) - bar.n)


NUMBERS = {
    "weight_decay": "the factor of the penalty for large weights",
    "batch_size": "examples a step",
    "epochs": "how often each example is seen",
    "seed": "of the first weights and of the order of the examples",
}
_RECIPE_OPTIONS = ("optimizer", "lr", "schedule", "weight_decay", "batch_size", "epochs", "seed")


def _path(text):
    if not text:  # as of a shell's variable that is not set: it would be the folder that one stands in
        raise argparse.ArgumentTypeError("name a place, and not nothing")
    return expanded(text)


def _host(text):
    if not text:  # as above: it would be every address that the machine has
        raise argparse.ArgumentTypeError("name an address, such as 127.0.0.1, and not nothing")
    return text


def _parser():
    parser = argparse.ArgumentParser(prog="python -m mlpkit", epilog="Each command says more with --help.")
    commands = parser.add_subparsers(required=True)
    add_command(commands, doctor)
    _add_train_options(add_command(commands, train))
    _add_serve_options(add_command(commands, serve))
    for found in entry_points(group="mlpkit.commands"):
        found.load()(commands)
    searcher = add_command(commands, search)
    searcher.add_argument("study", type=_path, metavar="STUDY.toml", help="the study: see mlpkit/search/study.py")
    downloader = add_command(commands, download)
    downloader.add_argument("name", nargs="?", default="fashion-mnist", metavar="NAME", help="of another data set")
    _add_onnx_commands(commands)
    commands.metavar = " | ".join(commands.choices)
    return parser


def _add_onnx_commands(commands):
    network = dict(type=_path, metavar="NETWORK", help="the .npz file")
    file = dict(type=_path, metavar="FILE", help="the .onnx file")
    exporter, importer = add_command(commands, export), add_command(commands, import_, "import")
    exporter.add_argument("network", **network)
    exporter.add_argument("file", **file)
    exporter.add_argument("--unfolded", action="store_true", help="keep batch norms as they are, and Dropout")
    importer.add_argument("file", **file)
    importer.add_argument("network", **network)
    importer.add_argument("--shape", type=int, nargs="+", metavar="N", help="of an example, if open in the file")


def add_command(commands, function, name=None):
    """Add a command, a function of the options, and return its parser."""
    name = name or function.__name__
    parser = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
    parser.set_defaults(command=function)
    return parser


def _add_train_options(parser):
    usual = Recipe()

    def choose(name, default, choices, what):
        parser.add_argument(f"--{name}", default=default, choices=choices, help=f"{what} (default: {default})")

    whose = f"who computes: `python -m mlpkit doctor` lists them (default: {engines.BASELINE})"
    parser.add_argument("--engine", default=engines.BASELINE, help=whose)
    choose("model", "mlp", tuple(MODELS), "what is trained")
    to_train_on = [name for name in data.names() if not getattr(data.source(name), "TEST_ONLY", False)]
    choose("data", "mnist", to_train_on, "the images; `download` gets the second ones")
    choose("optimizer", usual.optimizer, tuple(BY_NAME), "how the gradients are used")
    parser.add_argument("--lr", type=float, help="the highest learning rate (default: one that suits the optimizer)")
    choose("schedule", usual.schedule, SCHEDULES, "how the learning rate falls")
    for name, what in NUMBERS.items():
        default = getattr(usual, name)
        flag, kind = f"--{name.replace('_', '-')}", type(default)
        parser.add_argument(flag, type=kind, default=default, metavar="N", help=f"{what} (default: {default:g})")
    parser.add_argument("--patience", type=int, metavar="N", help="stop after so many epochs without progress")
    parser.add_argument("--checkpoints", type=_path, metavar="FOLDER", help="keep last.npz and best.npz there")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in that folder")
    parser.add_argument("--save", type=_path, metavar="FILE", help="write the trained network to this .npz file")
    several = parser.add_mutually_exclusive_group()
    several.add_argument("--ranks", type=int, metavar="N", help="train in so many processes, each its share of a batch")
    several.add_argument("--gpus", type=int, metavar="N", help="train on so many GPUs, a process each")
    parser.add_argument("--test", action="store_true", help="read the test set too, at the end")


def _add_serve_options(parser):
    parser.add_argument("network", type=_path, metavar="NETWORK.npz", help="as `train --save` writes it")
    parser.add_argument("--engine", default="numba_conv", help="who computes (default: numba_conv)")
    parser.add_argument(
        "--data", default="mnist", choices=(*data.names(), "none"),
        help="what it was trained on: names of classes, and images to calibrate with (default: mnist)",
    )  # fmt: skip
    parser.add_argument("--host", type=_host, default="127.0.0.1", help="where to listen; 0.0.0.0 lets others in")
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free (default: 8000)")
    for name, kind, default, what in SERVED:
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{what} (default: {default:g})")


SERVED = (
    ("longest", int, 64, "images in a batch at most"),
    ("wait", float, 0.0, "seconds for which a batch waits for company"),
    ("capacity", int, 256, "images that may wait; for more there is 429"),
    ("target", float, 0.005, "seconds that a request should stay, beside two batches; else there is 429, too"),
    ("seconds", float, 2.0, "after which a request gets 504"),
)


if __name__ == "__main__":
    if HEEDED:
        at_once = signal.signal(signal.SIGINT, signal.default_int_handler)
    code = main()
    if HEEDED:
        signal.signal(signal.SIGINT, at_once)
    if code == 130:  # amid what a library did: its clean-up at the end of a program may crash, or wait for its threads
        _close_streams()
        os._exit(code)
    sys.exit(code)
