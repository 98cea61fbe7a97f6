"""Ctrl-C ends a measurement soon and without a word too much; of what it has cut short, nothing is kept."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from shared import SMALL, dataset, sweep

from experiments import agreement, engines, fit, goal, goal_recipes
from experiments.lab import bench, roof, trainings
from mlpkit import interrupts
from mlpkit.machine import ROOT
from mlpkit.training.history import History
from mlpkit.training.recipe import Recipe

QUICK = Recipe(model=SMALL, batch_size=8, epochs=3)
NAMES = ("numpy_baseline",)
posix = pytest.mark.skipif(os.name == "nt", reason="Windows sends Ctrl-C in another way")

MEASUREMENTS = {
    "best": partial(trainings.measure, "best", plan=trainings.Plan((QUICK,))),
    "agreement": partial(agreement.measure, plan=agreement.Plan(NAMES, QUICK, seeds=1)),
    "goal": partial(goal.measure, plan=goal.Plan(NAMES, goals={97: QUICK}, seeds=1)),
    "goal_recipes": partial(goal_recipes.measure, plan=goal_recipes.Plan((QUICK,), seeds=1)),
    "fit": partial(fit.measure, plan=fit.Plan(NAMES, (QUICK,), samples=1)),
    "engines": partial(engines.measure, plan=engines.Plan(bench.Timing(1, 2, 2), QUICK, NAMES)),
}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_a_training_that_was_interrupted_is_no_evidence(name, monkeypatch):
    """Whoever calls `measure`: `fit` itself swallows Ctrl-C, and returns what there is."""
    saved, usual = [], sys.modules["mlpkit.training.fit"].fit

    def interrupted(*arguments, **options):
        history = usual(*arguments, **options | {"epochs": 1})
        history.stopped = "interrupted"
        return history

    for module in [module for module in list(sys.modules.values()) if vars(module).get("fit") is usual]:
        monkeypatch.setattr(module, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        MEASUREMENTS[name](
            save=lambda record: saved.append(json.dumps(record)), progress=lambda _: None, dataset=dataset()
        )
    assert not any('accuracy": 0' in text or 'accuracy": [0' in text for text in saved)


def test_whoever_trains_for_a_record_asks_whether_the_training_is_whole():
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "experiments").rglob("*.py")}
    trains = re.compile(r"recipe\.train\b|training\.fit import.*\bfit\b")
    training = [path for path, text in texts.items() if trains.search(text)]
    assert len(training) >= 5
    assert all("whole(history)" in texts[path] for path in training), training


@pytest.mark.parametrize("stopped", ["finished", "early", "diverged"])
def test_only_ctrl_c_makes_a_training_less_than_whole(stopped):
    history = History(stopped=stopped)
    assert bench.whole(history) is history


@posix
def test_ctrl_c_is_raised_again_until_it_is_heeded():
    with interrupts.heeded() as check:
        check()
        for what in (
            partial(os.kill, os.getpid(), signal.SIGINT),
            partial(time.sleep, 30),
            partial(time.sleep, 30),
            check,
        ):
            with pytest.raises(KeyboardInterrupt):
                what()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@posix
def test_what_swallows_ctrl_c_says_nothing_about_it(capsys):
    class Callback:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)

    with interrupts.heeded() as check:
        Callback()
        with pytest.raises(KeyboardInterrupt):
            check()
    assert capsys.readouterr().err == ""
    assert sys.unraisablehook.__module__ != interrupts.__name__


@posix
def test_a_job_in_the_background_heeds_no_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.heeded() as check:
            signal.raise_signal(signal.SIGINT)
            check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_nobody_waits_at_the_barrier_for_a_program_that_ctrl_c_has_ended(monkeypatch):
    class Barrier(threading.Barrier):
        def wait(self, timeout=None):
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(roof, "Barrier", Barrier)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        roof.peak(threads=2, flops=1)
    assert time.monotonic() - begin < 30


# As a user presses it


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the packages, so that no record of this checkout is touched."""
    folder = tmp_path_factory.mktemp("workbook")
    for package in ("mlpkit", "experiments"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.nb[ci]")
        )  # compile that anew
    return folder


def interrupt(folder, *command, after, started=False, end=lambda pid: os.killpg(pid, signal.SIGINT)):
    """Run a command, and `end` it after so many seconds, as Ctrl-C does. started: once it has started a process.

    Return its exit code, the seconds to its end, and what it said. What it has started is gone, too.
    """
    psutil = pytest.importorskip("psutil", reason="ipykernel brings it along")
    child = subprocess.Popen(
        [sys.executable, "-m", "mlpkit", *command],
        cwd=folder,
        env=os.environ | {"MLPKIT_DATA": str(ROOT / "data"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    while started and child.poll() is None and not psutil.Process(child.pid).children(recursive=True):
        time.sleep(0.1)
    time.sleep(after)
    begin, theirs = time.monotonic(), psutil.Process(child.pid).children(recursive=True)
    assert theirs or not started
    end(child.pid)
    _, said = child.communicate(timeout=60)
    assert not psutil.wait_procs(theirs, timeout=20)[1]
    return child.returncode, time.monotonic() - begin, said


@pytest.mark.slow
@posix
@pytest.mark.parametrize("name", sweep(["best", "goal", "floor", "compile", "engines"], "compile", "engines"))
def test_ctrl_c_ends_a_bench_at_any_time(name, copy):
    after = random.Random(name).uniform(2, 4.5)
    code, seconds, said = interrupt(copy, "bench", name, after=after)
    assert (code, "Traceback" in said, "Exception ignored" in said) == (130, False, False), said
    assert seconds < 20  # two, where tests have not all cores at work
    assert not list(copy.glob("results/*/*.json"))  # whole ones
    for path in copy.glob(f"results/mine/{name}*.partial"):
        for run in json.loads(path.read_text())["runs"]:
            if "validation_loss" in run:
                assert len(run["validation_loss"]) == run["recipe"]["epochs"]


@pytest.mark.slow
@posix
def test_a_bench_that_is_told_to_end_leaves_nobody_at_work(copy):
    """By SIGTERM, which reaches the program alone, and not what it has started in sessions of their own."""
    code, _, said = interrupt(
        copy, "bench", "busy", after=1, started=True, end=lambda pid: os.kill(pid, signal.SIGTERM)
    )
    assert (code, "Traceback" in said) == (130, False), said


PRESS_AS = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
module = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
runpy.run_module("mlpkit", run_name="__main__", alter_sys=True)
"""


@posix
@pytest.mark.parametrize("module", ["argparse", "tqdm", "numpy.linalg", "mlpkit.engines", "mlpkit.nn.models"])
def test_ctrl_c_while_python_imports_is_no_traceback(module):
    """Before it comes to the package's own first line, Python itself answers: nothing can be done about that."""
    done = subprocess.run(
        [sys.executable, "-c", PRESS_AS, module, "doctor"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
