"""Kill a training at any moment, resume it, kill it again: nothing is lost, and it arrives where it would have arrived.

The test kills 25 times. As a script, `python tests/training/test_kills.py 1000`, this kills as often as it is told.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from mlpkit.nn.layers import Dropout, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.optim import BY_NAME
from mlpkit.optim.schedules import Cosine
from mlpkit.training.checkpoint import load_checkpoint
from mlpkit.training.fit import fit

MODEL = Model((6,), (Linear(40), BatchNorm(), ReLU(), Dropout(0.2), Linear(3)))
EPOCHS, STEPS = 30, 7
RNG = np.random.default_rng(0)
TRAIN, VALIDATION = ((RNG.normal(size=(n, 6)).astype(np.float32), RNG.integers(3, size=n)) for n in (50, 20))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_training_that_is_killed_again_and_again_arrives_all_the_same():
    path = os.pathsep.join(map(str, Path(__file__).parents[2:3]))
    command = [sys.executable, __file__, "25"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("25 kills")


def new():
    network = Network(model=MODEL)
    return network, BY_NAME["adam"](network, Cosine(0.01, EPOCHS * STEPS))


def run(network, optimizer, **options):
    return fit(network, optimizer, TRAIN, VALIDATION, batch_size=8, epochs=EPOCHS, **options)


def state(network, optimizer, history):
    vectors = (network.theta, network.statistics, *optimizer.state.values())
    return [vector.tobytes() for vector in vectors], optimizer.steps, history.loss, history.validation["accuracy"]


def found(folder):
    """Return the state in `last.npz`, and how many epochs it has; None and 0 before the first one."""
    if not (folder / "last.npz").exists():
        return None, 0
    network, optimizer = new()
    history, best = load_checkpoint(folder / "last.npz", network, optimizer, {})
    if (folder / "best.npz").exists():  # it is written after the other
        assert len(Network.load(folder / "best.npz").theta) == len(best[0])
    return state(network, optimizer, history), len(history.epochs)


def started(folder):
    """Start a training in a process of its own, which goes on where there is a checkpoint; return its number."""
    child = os.fork()
    if not child:
        run(*new(), checkpoints=folder, resume=(folder / "last.npz").exists())
        os._exit(0)
    return child


def kill(times, longest=0.1):
    """Kill trainings so often, each after at most `longest` seconds, and resume them; return what happened."""
    network, optimizer = new()
    history = run(network, optimizer)
    wanted, lowest = state(network, optimizer, history), min(epoch.validation["loss"] for epoch in history.epochs)
    moments, killed, arrived, left = random.Random(0), 0, 0, 0
    while killed < times:
        with tempfile.TemporaryDirectory() as name:
            folder, before = Path(name), 0
            while before < EPOCHS:
                child = started(folder)
                if killed < times:
                    time.sleep(moments.uniform(0, longest))
                    os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                killed += os.WIFSIGNALED(status)
                assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the training failed"
                now, epochs = found(folder)
                assert epochs >= before, "an epoch was lost"
                before, names = epochs, {path.name for path in folder.iterdir()}
                left += len(names - {".lock", "best.npz", "last.npz"})
            assert now == wanted, "it arrived elsewhere"
            child = started(folder)  # which has nothing to do, and cleans up
            assert os.waitpid(child, 0)[1] == 0
            assert {path.name for path in folder.iterdir()} == {".lock", "best.npz", "last.npz"}
            assert Network.load(folder / "best.npz").evaluate(*VALIDATION)["loss"] == lowest
            arrived += 1
    return f"{killed} kills, {arrived} trainings of {EPOCHS} epochs arrived where they would have; {left} half files"


if __name__ == "__main__":
    print(kill(int(sys.argv[1])))
