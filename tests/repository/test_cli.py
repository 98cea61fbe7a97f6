"""`python -m mlpkit` does what it says, and answers a mistake with one sentence and an exit code."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shared import blobs, dataset, sweep

import experiments
from experiments import engines as engines_experiment
from experiments.lab import bench, processes, results
from mlpkit import __main__ as cli
from mlpkit import data, engines, machine
from mlpkit.nn.models import LENET5, MLP
from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME
from mlpkit.training import checkpoint
from mlpkit.training.recipe import Recipe

COMMAND = [sys.executable, "-m", "mlpkit"]


@pytest.fixture(scope="module", autouse=True)
def asked_once():
    """Have Python look once for what other packages add, in all that are installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "entry_points", cache(cli.entry_points))
        yield


def run(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def small(monkeypatch):
    """Make every command use a small data set, whose images have 784 pixels."""
    wide = [split._replace(X=np.pad(split.X, [(0, 0), (0, 778)])) for split in dataset()[1:4]]
    made = lambda name="mnist", scaled=False: data.Dataset(name, *wide, ("left", "right", "top"))  # noqa: E731
    monkeypatch.setattr(data, "load", made)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Keep records in a folder of the test's own."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    for name in ("save", "save_part"):
        monkeypatch.setattr(results, name, partial(getattr(results, name), folder=tmp_path / "results"))
    monkeypatch.setattr(machine, "busy", lambda: None)
    return tmp_path / "results"


# As a user gives them


def test_doctor_says_what_each_engine_can_do():
    done = run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for name in (*engines.names(), "processor", "BLAS", "GPU", "numpy"):
        assert name in done.stdout


def test_train_shows_its_epochs_and_the_test_accuracy(tmp_path):
    """The whole of MNIST for an epoch, which takes a second."""
    done = run("train", "--epochs", 1, "--checkpoints", tmp_path, "--save", tmp_path / "network.npz")
    assert done.returncode == 0, done.stderr
    assert re.search(r"epoch +1: loss 0\.\d+, validation loss 0\.\d+, accuracy 9\d\.\d+%", done.stdout)
    accuracy = float(re.search(r"finished; accuracy on validation ([\d.]+)%", done.stdout)[1])
    assert 92 < accuracy < 98
    assert Network.load(tmp_path / "network.npz").model == MLP
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "best.npz", "last.npz", "network.npz"]


def test_the_help_of_bench_says_what_each_experiment_asks(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    shown = capsys.readouterr().out.split("experiments:\n")[1].splitlines()
    assert [line.split()[0] for line in shown] == list(experiments.names())
    for name, line in zip(experiments.names(), shown, strict=True):
        assert line.split(maxsplit=1)[1] in " ".join(experiments.load(name).__doc__.split())
        assert line.endswith(("?", "."))


def test_the_help_of_train_says_what_every_option_does(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    options = re.split(r"^  (?=-)", capsys.readouterr().out.partition("options:\n")[2], flags=re.MULTILINE)[1:]
    assert len(options) > 9
    assert all(len(option.split()) > 3 for option in options)  # more than its name, and what it takes


def test_a_network_goes_to_an_onnx_file_and_comes_back(tmp_path, capsys):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    network = Network(model=LENET5, seed=4)
    network.save(tmp_path / "a.npz")
    assert cli.main(["export", str(tmp_path / "a.npz"), str(tmp_path / "a.onnx")]) == 0
    assert cli.main(["import", str(tmp_path / "a.onnx"), str(tmp_path / "b.npz")]) == 0
    assert "61,706 parameters" in capsys.readouterr().out
    back = Network.load(tmp_path / "b.npz")
    assert back.model == LENET5
    assert (back.theta == network.theta).all()
    assert cli.main(["import", str(tmp_path / "a.npz"), str(tmp_path / "c.npz")]) == 1
    assert "no ONNX file" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "name"), [("export", "a.npz"), ("import", "a.onnx"), ("export", "link.npz")])
def test_a_file_is_not_replaced_by_what_is_made_of_it(command, name, tmp_path, capsys):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    Network(model=MLP).save(tmp_path / "a.npz")
    assert cli.main(["export", str(tmp_path / "a.npz"), str(tmp_path / "a.onnx")]) == 0
    (tmp_path / "link.npz").symlink_to("a.npz")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    read = tmp_path / name.replace("link", "a")
    check_refused([command, str(read), str(tmp_path / name)], 1, "choose another name", capsys)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_name_that_a_terminal_has_no_signs_for_stops_nothing(tmp_path):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    Network(model=MLP).save(tmp_path / "a.npz")
    command = [sys.executable, "-m", "mlpkit", "export", str(tmp_path / "a.npz"), str(tmp_path / "n\u00f6.onnx")]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=results.ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"n\xf6.onnx: " in done.stdout


@pytest.mark.parametrize(
    ("needs", "arguments"),
    [("numpy", ("export", "nowhere", "b")), ("onnx", ("import", "nowhere", "b")), ("optuna", ("search", "nowhere"))],
)
def test_a_file_that_is_missing_is_told_in_a_sentence(needs, arguments, tmp_path, capsys, monkeypatch):
    pytest.importorskip(needs, reason=f"{needs} is not installed")  # the sentence would be about that
    monkeypatch.chdir(tmp_path)
    check_refused(list(arguments), 1, "there is no file nowhere: choose another file.", capsys)


MISTAKES = [
    (["--engine", "numpi"], 1, "numpy_baseline"),
    (["--lr", "0"], 1, "lr must be a finite number above 0"),
    (["--lr", "nan"], 1, "lr must be a finite number above 0"),
    (["--weight-decay", "-1"], 1, "weight_decay must be a finite number, 0 or above"),
    (["--batch-size", "0"], 1, "batch_size must be at least 1, not 0"),
    (["--batch-size", "2.5"], 2, "--batch-size"),
    (["--epochs", "-1"], 1, "epochs must be at least 0, not -1"),
    (["--seed", "-1"], 1, "seed must be at least 0, not -1"),
    (["--patience", "0"], 1, "patience must be at least 1, not 0"),
    (["--resume"], 1, "folder of the checkpoints"),
    (["--resume", "--checkpoints", "nowhere"], 1, "nowhere"),
    (["--resume", "--checkpoints", "no\x1b[8mwhere"], 1, r"no\x1b[8mwhere"),
    (["--optimizer", "sdg"], 2, "sgd"),
    (["--schedule", "cosin"], 2, "cosine"),
    (["--data", "cifar"], 2, "fashion-mnist"),
    (["--model", "lenet"], 2, "lenet5"),
]


@pytest.mark.parametrize(("options", "code", "words"), MISTAKES, ids=[" ".join(options) for options, *_ in MISTAKES])
def test_a_mistake_is_answered_with_one_sentence(options, code, words, small, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_refused(["train", *options], code, words, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "doctor | train | serve | bench"),
        (["trane"], "train"),
        (["bench", "everything"], "engines"),
        (["train", "x"], "x"),
        (["serve", "network.npz", "--host", ""], "name an address"),
    ],
)
def test_a_mistaken_command_is_answered_with_the_choices(arguments, words, capsys):
    check_refused(arguments, 2, words, capsys)


ODD = (
    *(
        "",
        " ",
        "-1",
        "0",
        "1e400",
        "nan",
        "-inf",
        "99999999999999999999",
        "1_0",
        "0x10",
        "\u0663",
        "\udcff",
        "a\nb",
        "\x1b[31m",
    ),
    *(
        "--",
        "-",
        "*",
        "%s",
        "{}",
        "x" * 5000,
        "/",
        ".",
        "..",
        "nowhere/else",
        "None",
        "mnist",
        "sgd",
        "python_lists",
        "-h",
    ),
)
OPTIONS = (
    *(
        "--engine",
        "--model",
        "--data",
        "--optimizer",
        "--lr",
        "--schedule",
        "--weight-decay",
        "--batch-size",
        "--epochs",
    ),
    *("--seed", "--patience", "--checkpoints", "--save", "--test", "--resume", "--publish"),
)


@pytest.mark.parametrize("seed", range(40))
def test_odd_arguments_are_answered_in_a_sentence(seed, small, experiment, folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recipe, "train", lambda *arguments, **options: interrupt())
    experiment.measure = lambda save, progress: results.new("engines")
    choice = random.Random(seed)
    for _ in range(10):
        words = choice.choices([*OPTIONS, *ODD], k=choice.randrange(5))
        arguments = [choice.choice(["doctor", "train", "train", "train", "bench", "trane"]), *words]
        if arguments == ["doctor"]:
            continue  # takes its time, and is right
        try:
            code = cli.main(arguments)
        except SystemExit as stopped:  # as argparse does
            code = stopped.code
        said = capsys.readouterr()
        assert code in (0, 1, 2, 130), arguments
        assert not code or re.search("mlpkit: |: error: ", said.err), arguments
        assert "Traceback" not in said.err


def check_refused(arguments, code, words, capsys):
    try:
        returned = cli.main(arguments)
    except SystemExit as stopped:  # as argparse does
        returned = stopped.code
    errors = capsys.readouterr().err
    assert returned == code
    # argparse shows the usage first; a progress bar may have been drawn.
    sentence = errors.strip().splitlines()[-1]
    assert re.match(r"mlpkit: |python -m mlpkit.*: error: ", sentence)
    assert words in sentence
    assert "Traceback" not in errors


def test_a_mistake_has_no_traceback_in_a_process_of_its_own():
    done = run("train", "--engine", "numpi")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("mlpkit: there is no engine 'numpi'")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows sends Ctrl-C in another way")
def test_ctrl_c_ends_a_training_with_what_it_has():
    # A shell that starts the tests in the background makes its children ignore Ctrl-C.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [*COMMAND, "train", "--epochs", "10000"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    assert "epoch   1:" in child.stdout.readline()
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert re.search(r"interrupted; accuracy on validation 9\d", output)
    assert output.count("epoch") < 50  # a line comes when its epoch ends, not when a buffer is full
    assert "Traceback" not in errors


# Odd machines

SMALL = """
import sys
import numpy as np
from shared import dataset
from mlpkit import __main__ as cli, data
wide = [split._replace(X=np.pad(split.X, [(0, 0), (0, 778)])) for split in dataset()[1:4]]
data.load = lambda name="mnist", scaled=False: data.Dataset(name, *wide, ("left", "right", "top"))
sys.exit(cli.main(sys.argv[1:]))
"""


def run_in_shell(redirection, *arguments, code=SMALL):
    """Run the command line on a small data set, in a process whose streams are redirected as a shell does it."""
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    command = ["bash", "-c", f'set -o pipefail; "$@" {redirection}', "bash", sys.executable, "-c", code, *arguments]
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
    )


posix = pytest.mark.skipif(os.name == "nt", reason="these are redirections of a POSIX shell")


@posix
def test_output_that_nobody_reads_ends_a_training_quietly_and_keeps_the_network(tmp_path):
    """`| head -1`: the exit code is that of a program that such a pipe has ended."""
    path = tmp_path / "network.npz"
    done = run_in_shell("| head -1", "train", "--epochs", 10_000, "--save", path)
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.startswith("epoch   1:")
    assert Network.load(path).model.input == (784,)


@posix
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_ends_a_training_and_keeps_the_network(tmp_path):
    done = run_in_shell(">/dev/full", "train", "--save", tmp_path / "network.npz")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left" in done.stderr
    Network.load(tmp_path / "network.npz")


@posix
@pytest.mark.parametrize("redirection", sweep([">&-", "2>&-", ">&- 2>&-"], ">&- 2>&-"))
def test_closed_streams_stop_nothing(redirection, tmp_path):
    done = run_in_shell(redirection, "train", "--epochs", 1, "--save", tmp_path / "network.npz")
    assert done.returncode == 0
    Network.load(tmp_path / "network.npz")


@pytest.mark.parametrize("place", [".", "file/network.npz"])
def test_a_place_where_nothing_can_be_saved_is_refused_before_training(place, small, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(Recipe, "train", lambda *arguments, **options: pytest.fail("it was trained"))
    check_refused(["train", "--save", str(tmp_path / place)], 1, "can't be written", capsys)


def test_a_tilde_is_the_home_folder_where_no_shell_has_put_it_there(small, tmp_path, monkeypatch):
    """As in `--save=~/network.npz`, which some shells leave as it is."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--epochs", "1", "--save=~/network.npz", "--checkpoints=~/ck"]) == 0
    Network.load(tmp_path / "home" / "network.npz")
    assert (tmp_path / "home" / "ck" / "last.npz").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


try:
    import_module("numba.np.ufunc.tbbpool")
    NO_TBB = ()
except ImportError:  # its library is not here
    NO_TBB = ("tbb", "safe")


WRONG = [
    *(("NUMBA_NUM_THREADS", text) for text in ("abc", "999999", "", "1.5", "0")),
    *(("NUMBA_THREADING_LAYER", text) for text in ("nonsense", "", *NO_TBB)),
    ("NUMBA_DISABLE_JIT", "1"),
]


@pytest.mark.parametrize(("variable", "value"), sweep(WRONG, WRONG[0], WRONG[5], WRONG[-1]))
def test_doctor_says_what_is_wrong_with_numba(variable, value):
    env = os.environ | {variable: value}
    done = subprocess.run([*COMMAND, "doctor"], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line.startswith("numba_")]
    assert len(lines) == len([name for name in engines.names() if engines.library(name) == "numba"])
    assert "unset that variable" in lines[0]
    assert all("can't run" in line for line in lines)


def test_a_command_that_does_not_use_numba_does_not_wait_for_it():
    code = "import sys, mlpkit.__main__ as cli; cli.main(['train', '--lr', '0']); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


# On a small data set


def test_train_passes_its_options_on(small, monkeypatch):
    asked = {}

    def train(recipe, dataset, engine, **options):
        asked.update(recipe=recipe, engine=engine, data=dataset.name, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Recipe, "train", train)
    options = "--engine python_lists --data fashion-mnist --optimizer adamw --lr 0.01 --schedule cosine"
    options += " --weight-decay 0.1 --batch-size 64 --epochs 3 --seed 7 --patience 2 --checkpoints here --resume"
    assert cli.main(["train", *options.split()]) == 130
    assert asked["recipe"].model == MLP
    recipe = Recipe("adamw", 0.01, "cosine", weight_decay=0.1, batch_size=64, epochs=3, seed=7)
    assert (asked["recipe"], asked["engine"], asked["data"]) == (recipe, "python_lists", "fashion-mnist")
    assert (asked["patience"], str(asked["checkpoints"]), asked["resume"]) == (2, "here", True)


def test_train_takes_a_model_by_name(small, monkeypatch):
    asked = []
    monkeypatch.setattr(Recipe, "train", lambda recipe, *arguments, **options: asked.append(recipe) or interrupt())
    assert cli.main(["train", "--model", "lenet5"]) == 130
    assert asked[0].model == LENET5


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("optimizer", BY_NAME)
def test_without_a_rate_every_optimizer_gets_one_that_suits_it(optimizer, small, monkeypatch):
    asked = []

    def train(recipe, *arguments, **options):
        asked.append(recipe)
        raise KeyboardInterrupt

    monkeypatch.setattr(Recipe, "train", train)
    assert cli.main(["train", "--optimizer", optimizer]) == 130
    highest = {"sgd": 0.5, "momentum": 0.1, "nesterov": 0.1}.get(optimizer, 2e-3)
    assert highest / 10 <= asked[0].lr <= highest
    assert cli.main(["train", "--optimizer", optimizer, "--lr", "7"]) == 130
    assert asked[1].lr == 7


def test_an_interrupted_training_can_be_resumed(small, tmp_path, monkeypatch, capsys):
    show = cli._show_epoch

    def interrupt(history, bar):
        show(history, bar)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cli, "_show_epoch", interrupt)
        assert cli.main(["train", "--epochs", "3", "--checkpoints", str(tmp_path)]) == 130
    assert cli.main(["train", "--epochs", "3", "--checkpoints", str(tmp_path), "--resume"]) == 0
    output = capsys.readouterr().out
    assert re.findall(r"epoch +(\d):", output) == ["1", "2", "3"]
    assert re.findall(r"(\w+); accuracy on validation", output) == ["interrupted", "finished"]


def test_ctrl_c_that_is_swallowed_ends_a_training_after_its_epoch(small, monkeypatch, capsys):
    show = cli._show_epoch

    def swallow(history, bar):
        show(history, bar)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(cli, "_show_epoch", swallow)
    assert cli.main(["train", "--epochs", "5"]) == 130
    assert re.findall(r"epoch +(\d):", capsys.readouterr().out) == ["1"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_training_sets_the_network_of_an_earlier_one_aside(small, tmp_path, monkeypatch, capsys):
    path = tmp_path / "net.npz"
    assert cli.main(["train", "--epochs", "1", "--save", str(path)]) == 0
    earlier = path.read_bytes()

    def interrupt(history, bar):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_show_epoch", interrupt)
    assert cli.main(["train", "--epochs", "2", "--seed", "1", "--save", str(path)]) == 130
    (aside,) = tmp_path.glob("*.previous")
    assert aside.read_bytes() == earlier != path.read_bytes()
    assert str(aside) in capsys.readouterr().err


@pytest.mark.parametrize("save", ["", "last.npz", "best.npz", "LAST.npz", ".lock", "..", "../link/last.npz"])
def test_a_network_is_not_saved_over_a_checkpoint(save, small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Recipe, "train", lambda *arguments, **options: pytest.fail("it was trained"))
    folder = tmp_path / "runs" / "first"
    if "link" in save:
        folder.mkdir(parents=True)
        (folder.parent / "link").symlink_to(folder)
    place = os.path.normpath(folder / save)
    check_refused(
        ["train", "--save", place, "--checkpoints", str(folder)], 1, "choose another place for --save", capsys
    )


def test_a_full_disk_of_the_checkpoints_is_told_and_the_network_is_saved(small, tmp_path, monkeypatch, capsys):
    def full(path, **arrays):
        raise OSError(f"{path} can't be written (No space left on device).")

    monkeypatch.setattr(checkpoint, "save_npz", full)
    path = tmp_path / "network.npz"
    assert cli.main(["train", "--epochs", "2", "--checkpoints", str(tmp_path / "runs"), "--save", str(path)]) == 0
    output, errors = capsys.readouterr()
    assert re.search(r"mlpkit: .*last.npz can't be written .*; the training goes on\.\n", errors)
    assert "Traceback" not in errors
    assert "finished; accuracy on validation" in output
    Network.load(path)


def test_a_network_that_can_be_saved_nowhere_is_said_to_be_lost_and_why(small, tmp_path, monkeypatch, capsys):
    def full(network, path):
        raise OSError(f"{path} can't be written (No space left on device).")

    def nowhere(*arguments, **options):
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(Network, "save", full)
    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)
    check_refused(["train", "--epochs", "1", "--save", str(tmp_path / "a.npz")], 1, "network is lost", capsys)


def test_the_home_folder_is_a_refuge_where_the_temporary_one_is_none(small, tmp_path, monkeypatch, capsys):
    home, save, path = tmp_path / "home", Network.save, tmp_path / "here" / "a.npz"
    home.mkdir()
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    made = tempfile.mkdtemp

    def only_at_home(prefix, dir):
        if dir != home:
            raise PermissionError(13, "Permission denied")
        return made(prefix=prefix, dir=dir)

    def elsewhere(network, path):
        if home not in path.parents:
            raise OSError(f"{path} can't be written (No space left on device).")
        save(network, path)

    monkeypatch.setattr(tempfile, "mkdtemp", only_at_home)
    monkeypatch.setattr(Network, "save", elsewhere)
    check_refused(["train", "--epochs", "1", "--save", str(path)], 1, "the network is in", capsys)
    (found,) = home.glob("mlpkit-*/a.npz")
    Network.load(found)


def test_after_ctrl_c_nothing_is_measured_again(small, monkeypatch, capsys):
    def stopped(found):
        found[1].stopped = "interrupted"
        return found

    train = Recipe.train
    monkeypatch.setattr(Recipe, "train", lambda recipe, dataset, *others, **options: stopped(train(recipe, dataset)))
    monkeypatch.setattr(Network, "evaluate", lambda *arguments: pytest.fail("it is measured again"))
    assert cli.main(["train", "--epochs", "1", "--test"]) == 130
    assert re.search(r"interrupted; accuracy on validation \d+\.\d+% after epoch 1\n", capsys.readouterr().out)


def test_a_network_that_can_not_be_saved_in_its_place_is_saved_elsewhere(small, tmp_path, monkeypatch, capsys):
    path, save = tmp_path / "network.npz", Network.save

    def filled(network, where):
        if where == path:
            raise OSError(f"{where} can't be written (No space left on device).")
        save(network, where)

    monkeypatch.setattr(Network, "save", filled)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.main(["train", "--epochs", "1", "--save", str(path)]) == 1
    found = re.search(
        r"mlpkit: .*network\.npz can't be written .*; the network is in (.*)\.\n", capsys.readouterr().err
    )
    Network.load(found[1])


def test_ctrl_c_that_became_another_error_is_ctrl_c(small, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    monkeypatch.setattr(Recipe, "train", fail)
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err.endswith("mlpkit: interrupted; what was finished is kept.\n")


@pytest.mark.parametrize("module", ["tqdm", "threadpoolctl"])
def test_a_python_that_lacks_a_package_is_named(module, tmp_path):
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module', name={module!r})")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([*COMMAND, "doctor"], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    assert done.stderr == (
        f"mlpkit: {module} is not there for {sys.executable}: use the Python of .venv, which make sets up.\n"
    )


def test_a_variable_that_a_library_can_not_read_is_one_sentence():
    done = subprocess.run([*COMMAND, "train"], capture_output=True, text=True, env=os.environ | {"TQDM_NCOLS": "wide"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "TQDM" in done.stderr


def test_a_python_without_the_packages_is_told_in_a_sentence():
    bare = [sys.executable, "-S", *COMMAND[1:], "doctor"]
    done = subprocess.run(bare, capture_output=True, text=True, cwd=results.ROOT)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "tqdm is not there" in done.stderr
    assert "use the Python of .venv" in done.stderr


def test_divergence_is_one_sentence(small, capsys):
    assert cli.main(["train", "--lr", "1e30"]) == 1
    errors = capsys.readouterr().err
    assert re.search(r"mlpkit: the .*loss became \w+ in epoch 1, step \d, at a learning rate of 1e\+30", errors)
    assert "Warning" not in errors


def test_after_a_divergence_nothing_is_saved_and_it_is_said(small, capsys, tmp_path):
    assert cli.main(["train", "--lr", "1e30", "--save", str(tmp_path / "a.npz")]) == 1
    assert capsys.readouterr().err.endswith(f"Nothing was saved as {tmp_path / 'a.npz'}.\n")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def experiment(monkeypatch):
    """Return an experiment in place of whichever is asked for; a test says what its `measure` does."""
    made = SimpleNamespace(measure=None, table=lambda record: "a table")
    monkeypatch.setattr(experiments, "load", lambda name: made)
    return made


def test_bench_shows_the_table_and_keeps_the_record(small, folder, monkeypatch, capsys):
    quick = bench.Timing(warmup=1, steps_a_sample=2, rounds=2)
    plan = engines_experiment.Plan(quick, engines=("numpy_baseline",))
    measure = partial(engines_experiment.measure, plan=plan, dataset=data.load())
    monkeypatch.setattr(engines_experiment, "measure", measure)
    assert cli.main(["bench"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"numpy_baseline +[\d,]+ +1x +\d+\.\d\d%", output)
    assert "engines.json" in output
    record = results.load(folder / "mine" / "engines.json")
    assert record["settings"]["timing"] == vars(quick)
    assert len(record["runs"][0]["samples_us"]) == 2


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_is_run_shown_and_kept(name, folder, monkeypatch, capsys):
    def measure(save, progress):
        record = results.new(name)
        progress("a part")
        save(record)
        return record

    found = experiments.load(name)
    assert callable(found.measure)
    monkeypatch.setattr(found, "measure", measure)
    monkeypatch.setattr(found, "table", lambda record: "a table")
    assert cli.main(["bench", name]) == 0
    assert [path.name for path in (folder / "mine").iterdir()] == [f"{name}.json"]
    output = capsys.readouterr().out
    assert "a table" in output
    assert f"{name}.json" in output


def test_a_published_record_goes_into_a_folder_named_after_the_machine(folder, experiment):
    experiment.measure = lambda save, progress: results.new("engines")
    assert cli.main(["bench", "--publish"]) == 0
    assert [path.name for path in folder.iterdir()] == [machine.name()]


def test_a_published_record_is_made_by_the_thorough_plan_where_there_is_one(folder, experiment):
    asked = []
    experiment.measure = lambda save, progress, plan="usual": asked.append(plan) or results.new("engines")
    experiment.THOROUGH = "thorough"
    assert [cli.main(["bench", *options]) for options in ([], ["--publish"])] == [0, 0]
    assert asked == ["usual", "thorough"]


def test_a_busy_machine_is_mentioned(folder, experiment, monkeypatch, capsys):
    monkeypatch.setattr(machine, "busy", lambda: "this machine is busy")
    experiment.measure = lambda save, progress: results.new("engines")
    assert cli.main(["bench"]) == 0
    assert "mlpkit: this machine is busy." in capsys.readouterr().err


def test_an_interrupted_bench_keeps_what_it_has_under_another_name_and_shows_it(folder, experiment, capsys):
    whole = results.save(results.new("engines") | {"commit": "the last one"})

    def measure(save, progress):
        save(results.new("engines"))
        raise KeyboardInterrupt

    experiment.measure = measure
    assert cli.main(["bench"]) == 130
    said = capsys.readouterr()
    assert "interrupted; what was finished is kept" in said.err
    assert "a table" in said.out
    assert results.load(whole)["commit"] == "the last one"
    (part,) = set(whole.parent.iterdir()) - {whole}
    assert part.name.endswith(".json.partial")
    assert part.name in said.out


def test_nothing_is_kept_of_what_swallows_ctrl_c(folder, experiment):
    """As `fit` does, as a callback from C does, and as an import in C or Numba does, which raise something else."""

    def swallow(save, progress, then=lambda: None):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        then()
        save(results.new("engines"))
        return results.new("engines")

    def fail():
        raise SystemError("returned a result with an exception set")

    for then in (lambda: None, fail, partial(time.sleep, 30)):
        experiment.measure = partial(swallow, then=then)
        start = time.monotonic()
        assert cli.main(["bench"]) == 130
        assert time.monotonic() - start < 20
    assert not list(folder.glob("*/*"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_last_record_stays_beside_the_one_that_follows_it(folder, experiment):
    experiment.measure = lambda save, progress: results.new("engines")
    assert [cli.main(["bench"]) for _ in range(3)] == [0, 0, 0]
    kept = sorted(path.name for path in (folder / "mine").iterdir())
    assert (len(kept), kept[-1]) == (3, "engines.json")  # not even the record before the last is lost
    assert all(name.endswith(".json.previous") for name in kept[:-1])


def test_a_bench_that_can_not_begin_leaves_the_last_record_where_it_is(folder, experiment, capsys):
    def refuse(save, progress):
        raise engines.EngineUnavailable("no such machine")

    results.save(results.new("engines"))
    experiment.measure = refuse
    assert cli.main(["bench"]) == 1
    assert [path.name for path in (folder / "mine").iterdir()] == ["engines.json"]


def test_a_record_that_could_not_be_kept_is_not_measured(folder, experiment, capsys):
    folder.mkdir()
    (folder / "mine").write_text("in the way")
    experiment.measure = lambda save, progress: pytest.fail("it was measured")
    check_refused(["bench"], 1, "engines.json can't be written", capsys)


def test_a_process_of_an_experiment_that_fails_is_one_sentence(folder, experiment, capsys):
    def measure(save, progress):
        raise processes.Failed("no such kernels")

    experiment.measure = measure
    assert cli.main(["bench"]) == 1
    assert capsys.readouterr().err == "mlpkit: a process of this experiment failed: no such kernels\n"


def test_publishing_from_a_busy_machine_is_refused(small, folder, monkeypatch, capsys):
    monkeypatch.setattr(machine, "busy", lambda: "this machine is busy")
    assert cli.main(["bench", "--publish"]) == 1
    assert "quiet machine" in capsys.readouterr().err


def test_the_small_data_set_is_as_wide_as_mnist(small):
    assert data.load().train.X.shape == (50, 784)
    np.testing.assert_array_equal(data.load().train.X[:, :6], blobs(50, 0).X)
