"""The persistent kernel trains right with no GPU: `emulator.py` runs its blocks, warps and packets on the CPU."""

import os

import emulator
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_persistent import RATES, distance, make, train

from mlpkit import kernels
from mlpkit.data import Split
from mlpkit.network import Network
from mlpkit.optim import SGD
from mlpkit.train import Diverged, fit

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")

# Changes of the kernel that the emulator must see: (what to look for, what to write).
FAULTS = {
    "one buffer for two steps": [("exchange[step % 2]", "exchange[0]"), ("exchange[(step + 1) % 2]", "exchange[0]")],
    "nobody waits for the images": [("wait_for(&shared.arrived[step % BUFFERS], step / BUFFERS % 2);", "")],
    "nobody waits for packets": [("mail.wait(tag, at);", "")],
    "a tile does not wait for its parts": [("sync_half(layer());", "")],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the compiled kernels: one for all processes that share a run of the tests."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(autouse=True)
def fill_up_on_the_cpu(request, monkeypatch):
    """Let the code that lays networks out for the kernel take NumPy's arrays for CuPy's."""
    if "folder" in request.fixturenames:
        from mlpkit.engines import _held

        monkeypatch.setattr(_held, "cp", np)


def images(n, sizes=(784, 10)):
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(n, sizes[0])) * (rng.random((n, sizes[0])) < 0.2)
    return Split(pixels.astype(np.uint8), rng.integers(sizes[-1], size=n))


def same_as_float64(engine, batch_size, optimizer, steps=3, **network):
    """Assert that an engine trains as float64 does; the last batch is short."""
    n = steps * batch_size - batch_size // 3
    case = images(n + 50, network.get("sizes", (784, 10))), np.arange(n)[::-1] + 50, batch_size, optimizer
    losses, theta = train(engine, *case, **network)
    wanted, wanted_theta = train("numpy_baseline", *case, np.float64, **network)
    assert_allclose(losses, wanted, rtol=2e-5)
    assert distance(theta, wanted_theta) < 2e-5


def in_four_schedules(folder, source):
    for seed in range(4):
        same_as_float64(emulator.engine(folder, seed, source), 32, make("sgd"))


@needs_compiler
@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize("batch_size", [32, 64, 100])
def test_a_few_steps_are_as_close_to_float64_as_float32_is(batch_size, optimizer, folder):
    settings = {"weight_decay": 0.01} if optimizer == "adamw" else {}
    same_as_float64(emulator.engine(folder), batch_size, make(optimizer, **settings))


@needs_compiler
def test_the_largest_batches_have_one_buffer_for_images(folder):
    same_as_float64(emulator.engine(folder, 1), 256, make("adam"))


@needs_compiler
@pytest.mark.parametrize("optimizer", [make("sgd"), make("adam", weight_decay=0.01)], ids=["sgd", "adam"])
def test_smaller_layers_are_filled_up(optimizer, folder):
    same_as_float64(emulator.engine(folder, 1), 32, optimizer, sizes=(50, 7, 128, 1, 3), epochs=2)


@needs_compiler
def test_every_schedule_gives_the_same_to_the_last_bit(folder):
    split, order = images(80), np.arange(80)
    found = [train(emulator.engine(folder, seed), split, order, 32, make("adam")) for seed in range(5)]
    for losses, theta in found[1:]:
        assert_array_equal(losses, found[0][0])
        assert_array_equal(theta, found[0][1])


@needs_compiler
@pytest.mark.parametrize("place", ["first weight", "last weight", "first bias", "last bias"])
def test_a_nan_stays_visible(place, folder):
    network = Network(emulator.engine(folder))
    weights, parameters = network.n_weights, len(network.theta)
    places = {"first weight": 0, "last weight": weights - 1, "first bias": weights, "last bias": parameters - 1}
    network.theta[places[place]] = np.nan
    with pytest.raises(Diverged):
        fit(network, SGD(network, 0.1), images(80), epochs=1, batch_size=32)


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen_in_one_of_a_few_schedules(fault, folder):
    source = kernels.source("persistent")
    for right, wrong in FAULTS[fault]:
        assert right in source
        source = source.replace(right, wrong)
    with pytest.raises((AssertionError, emulator.Failed)):
        in_four_schedules(folder, source)


@needs_compiler
def test_a_deadlock_is_an_error_and_not_a_hang(folder):
    source = kernels.source("persistent").replace(
        "receive(just_before(packets), tag)", "receive(just_before(packets), 0)"
    )
    with pytest.raises(emulator.Failed, match=r"stuck: [0-9]+ threads look"):
        train(emulator.engine(folder, 0, source), images(40), np.arange(40), 32, make("sgd"))


def test_what_the_emulator_does_not_know_is_named():
    source = kernels.source("persistent")
    with pytest.raises(emulator.Changed, match=r"no function 'float root\(float x\)'"):
        emulator.translated(source.replace("float root(float x)", "float root_of(float x)"))
    with pytest.raises(emulator.Changed, match="does not replace: asm volatile"):
        emulator.translated(source + 'void wait() { \n    asm volatile("membar.gl;"); }\n')
