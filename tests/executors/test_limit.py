"""The persistent kernel for convolutional networks trains right: on `emulator.py` with no GPU, and on one."""

import re
from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import sweep
from test_emulated import images, needs_compiler
from test_persistent import distance, make, train

from experiments.lab import ptxas
from mlpkit import engines, executors, kernels
from mlpkit.kernels import gpu
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP, BatchNorm, Conv, Flatten, Linear, MaxPool, Model, ReLU
from mlpkit.nn.network import Network
from mlpkit.optim import SGD, Momentum

GPU = pytest.mark.gpu
ODD = {
    "one block, one layer": Model((1, 12, 12), (Conv(5, 3), MaxPool(2), ReLU(), Flatten(), Linear(7))),
    "colours": Model(
        (3, 13, 15),
        (Conv(7, 2, padding=1), ReLU(), MaxPool(2), Conv(9, 3, padding=2), MaxPool(2), ReLU(), Flatten(), Linear(33),
         ReLU(), Linear(5)),
    ),
    "three blocks, four layers": Model(
        (2, 30, 26),
        (Conv(4, 1), ReLU(), MaxPool(2), Conv(6, 4, padding=1), ReLU(), MaxPool(2), Conv(13, 3, padding=1), ReLU(),
         MaxPool(2), Flatten(), Linear(140), ReLU(), Linear(20), ReLU(), Linear(30), ReLU(), Linear(3)),
    ),
    "windows of seven": Model(
        (1, 28, 28),
        (Conv(10, 7), ReLU(), MaxPool(2), Conv(12, 3, padding=1), ReLU(), MaxPool(2), Flatten(), Linear(50), ReLU(),
         Linear(10)),
    ),
}  # fmt: skip

# What the emulator must see if it is left out
FAULTS = {
    "nobody waits for the dense weights": "wait_for_copy(&head().dense[0], phase, NEW_DENSE, step);\n    stamp(3);",
    "nobody waits for the other dense weights": "wait_for_copy(&head().dense[1], phase, NEW_DENSE, step);",
    "nobody waits for the filters": "mail.wait(step, at(convs), NEW_CONVS);",
    "nobody waits for the slopes": "wait_for(&exchange.slopes_there, GRID * step, SLOPES_THERE, step);",
    "nobody waits for the rows": "cp_async_wait_all();\n        __syncwarp();",
    "nobody waits for the gradients": "mail.wait(step, at, CONVS_THERE);",
    "old weights are read again": "if (waits) wait_for(&exchange.dense_new, GRID * step, NEW_DENSE, step);",
}


@pytest.fixture
def fused(folder, monkeypatch):
    """Return a maker of emulated engines on a GPU of eight multiprocessors."""
    monkeypatch.setitem(emulator.H100, "MultiProcessorCount", 8)

    def maker(seed=0, source=None):
        return emulator.engine("conv_fused", folder, seed, source or kernels.source("limit"))

    return maker


def same_as_float64(engine, batch_size, optimizer, model=LENET5, steps=3):
    """Assert that an engine trains as float64 does; the last batch is short."""
    n = steps * batch_size - batch_size // 3
    case = images(n + 5, model), np.arange(n)[::-1] + 5, batch_size, optimizer
    losses, theta = train(engine, *case, model=model)
    wanted, wanted_theta = train("numpy_baseline", *case, np.float64, model)
    assert_allclose(losses, wanted, rtol=2e-5)
    assert distance(theta, wanted_theta) < 2e-6


@needs_compiler
@pytest.mark.parametrize(("batch_size", "optimizer"), sweep([(8, "sgd"), (12, "adam"), (1, "adamw")], (12, "adam")))
def test_lenet_trains_as_in_float64(batch_size, optimizer, fused):
    settings = {"weight_decay": 0.01} if optimizer == "adamw" else {}
    same_as_float64(fused(), batch_size, make(optimizer, **settings))


@needs_compiler
@pytest.mark.parametrize("name", sweep(ODD, "colours", "three blocks, four layers"))
def test_odd_networks_train_as_in_float64(name, fused):
    same_as_float64(fused(1), 7, make("sgd", weight_decay=0.01), ODD[name])


@pytest.mark.parametrize(
    ("capability", "name"), sweep([("8.6", "lenet5"), ("8.0", "lenet5"), ("8.6", "colours")], ("8.0", "lenet5"))
)
@needs_compiler
def test_older_chips_train_as_in_float64(capability, name, fused, monkeypatch):
    monkeypatch.setenv(gpu.SETTING, capability)
    monkeypatch.setitem(emulator.H100, "MultiProcessorCount", 14)  # the smallest laptop's
    engine = fused(3, kernels.source("limit_portable"))
    same_as_float64(engine, 11, make("sgd", weight_decay=0.01), {**ODD, "lenet5": LENET5}[name])


@needs_compiler
def test_several_launches_are_one(fused):
    engine, case = fused(), (images(40, LENET5), np.arange(40), 8, make("adam"))
    whole = train(engine, *case, model=LENET5)
    engine.executor.WaitingTrainer.epoch.__globals__["MOST_STEPS"] = 2
    for one, other in zip(train(engine, *case, model=LENET5), whole, strict=True):
        assert_array_equal(one, other)


@needs_compiler
def test_neighbours_share_what_they_read(fused):
    source = kernels.source("limit").replace("#define PAIRS 0", "#define PAIRS 1")
    same_as_float64(fused(2, source), 7, make("sgd"))


HALVED = {
    "lenet5": LENET5,
    "colours": Model(
        (3, 13, 15),
        (Conv(8, 2, padding=1), ReLU(), MaxPool(2), Conv(14, 3, padding=2), MaxPool(2), ReLU(), Flatten(), Linear(33),
         ReLU(), Linear(5)),
    ),
    "one dense layer": Model(
        (2, 14, 14),
        (Conv(2, 3), MaxPool(2), ReLU(), Conv(8, 3), ReLU(), MaxPool(2), Flatten(), Linear(9)),
    ),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", sweep(HALVED, "colours"))
def test_two_blocks_share_an_image(name, fused):
    for seed in range(2):
        engine = fused(seed)
        assert engine.executor.macros_for(HALVED[name], SimpleNamespace(state={}), 3, np.uint8)["IMAGE_BLOCKS"] == 2
        same_as_float64(engine, 3, make("adam"), HALVED[name])


@needs_compiler
def test_only_what_has_two_halves_is_halved(fused):
    def halves(model, batch_size):
        return fused().executor.macros_for(model, SimpleNamespace(state={}), batch_size, np.uint8)["IMAGE_BLOCKS"]

    assert [halves(LENET5, n) for n in (1, 4, 5, 8)] == [2, 2, 1, 1]  # of eight multiprocessors
    assert {halves(model, 1) for model in ODD.values()} == {1}


# What neighbours must wait for
MEETINGS = {
    "sums of the dense layer": "if (SHARED) wait_for_copy(&head().sums[0], phase, NEIGHBOURS_SUMS, step);\n",
    "sums of gradients": "wait_for_copy(&head().sums[1], phase, NEIGHBOURS_SUMS, partial.step);\n",
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("meeting", MEETINGS)
def test_neighbours_that_do_not_wait_are_seen(meeting, fused):
    source = kernels.source("limit")
    assert source.count(MEETINGS[meeting]) == 1
    engine = fused(0, source.replace(MEETINGS[meeting], ""))
    with pytest.raises((AssertionError, emulator.Failed)):
        same_as_float64(engine, 3, make("sgd"), HALVED["colours"])


@needs_compiler
def test_every_schedule_gives_the_same_to_the_last_bit(fused):
    case = images(30, LENET5), np.arange(20), 8, make("adam")
    found = [train(fused(seed), *case, model=LENET5) for seed in (1, 2)]
    for losses, theta in found[1:]:
        assert_array_equal(losses, found[0][0])
        assert_array_equal(theta, found[0][1])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wait_that_is_left_out_is_seen(fault, fused):
    source = kernels.source("limit")
    assert FAULTS[fault] in source
    model = Model((1, 12, 12), (*ODD["one block, one layer"].layers, ReLU(), Linear(6)))

    def in_six_schedules():
        for seed in range(6):
            same_as_float64(fused(seed, source.replace(FAULTS[fault], ";")), 7, make("sgd"), model)

    with pytest.raises((AssertionError, emulator.Failed)):
        in_six_schedules()


def test_the_kernels_fit_into_registers():
    try:
        assert ptxas.resources("limit", ADAM=1, PAIRS=1)["train"].spilled_bytes == 0
        assert all(each.spilled_bytes == 0 for each in ptxas.resources("limit_graph", ADAM=1).values())
    except FileNotFoundError as error:
        pytest.skip(str(error))


CONV = (Conv(6, 3), ReLU(), MaxPool(2))
REFUSED = {
    "begins with 1 to 3 blocks": MLP,
    "has ReLU and MaxPool\\(2\\) after each Conv": Model((1, 9, 9), (Conv(6, 3), BatchNorm(), Flatten(), Linear(3))),
    "convolves with stride 1": Model((1, 12, 12), (Conv(6, 3, stride=2), *CONV[1:], Flatten(), Linear(3))),
    "ends with Flatten": Model((1, 12, 12), (*CONV, Flatten(), Linear(9), Linear(3))),
    "KiB of shared memory": FASHION_CNN,
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("part", REFUSED)
def test_it_says_what_it_is_not_made_for(part, fused):
    assert re.search(part, fused().executor.why_not(REFUSED[part], SGD(Network(), 0.1), 128))


@pytest.mark.slow
@needs_compiler
def test_what_it_takes_fits_into_a_block(fused):
    """Of narrow rows of weights, of which a warp's registers hold fewer, two dense layers just fit, or just don't."""
    sgd, narrow = SGD(Network(), 0.1), (Conv(8, 1, padding=1), *CONV[1:], Flatten())
    taken = []
    for units in (29, 31, 33, 40):
        model = Model((1, 28, 28), (*narrow, Linear(units), ReLU(), Linear(1)))
        engine = fused()
        if engine.executor.why_not(model, sgd, 64) is None:
            assert "train" in ptxas.resources("limit", **engine.executor.macros_for(model, sgd, 64, np.uint8))
            taken.append(units)
    assert taken == [29, 31]


@needs_compiler
def test_it_knows_three_optimizers(fused):
    assert "SGD, Adam, AdamW" in fused().executor.why_not(LENET5, Momentum(Network(), 0.1), 128)


@needs_compiler
def test_it_refuses_float64(fused):
    with pytest.raises(ValueError, match="float32"):
        train(fused(), images(30, LENET5), np.arange(8), 8, make("sgd"), np.float64, LENET5)


# On a GPU


def on_gpu():
    if reason := engines.available()["cuda_conv_fused"]:
        pytest.skip(reason)
    return engines.load("cuda_conv_fused")


@GPU
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("batch_size", [1, 64, 100, 128, 300])
def test_lenet_trains_as_in_float64_on_a_gpu(batch_size, optimizer):
    same_as_float64(on_gpu(), batch_size, make(optimizer))


@GPU
@pytest.mark.parametrize("name", sweep(ODD, "colours", "three blocks, four layers"))
def test_odd_networks_train_as_in_float64_on_a_gpu(name):
    same_as_float64(on_gpu(), 50, make("sgd"), ODD[name], steps=5)


@GPU
def test_two_runs_give_the_same_bits():
    case = images(2000, LENET5), np.arange(2000), 128, make("adam")
    first, second = (train(on_gpu(), *case, model=LENET5) for _ in range(2))
    assert_array_equal(first[0], second[0])
    assert_array_equal(first[1], second[1])


@GPU
def test_two_kernels_a_step_give_the_bits_of_one_an_epoch():
    if gpu.is_restricted():
        pytest.skip("two kernels a step are an experiment for Hopper's shared memory")
    from experiments.gpu_image_limit.two_kernels import Trainer

    engine, split, found = on_gpu(), images(1000, LENET5), []
    for kind in (executors.of(engine).Trainer, Trainer):
        network = Network(engine, LENET5)
        trainer = kind(network, make("adam")(network), *map(engine.asarray, split), 128)
        found.append((engine.to_numpy(trainer.epoch(np.arange(1000))), engine.to_numpy(network.theta)))
        trainer.close()
    assert_array_equal(found[0][0], found[1][0])
    assert_array_equal(found[0][1], found[1][1])
