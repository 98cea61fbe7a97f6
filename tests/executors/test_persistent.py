"""Executors that update the parameters inside their kernels: three kernels a step, and one launch an epoch."""

import gc
import signal
import weakref
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import blobs, one_sentence, sweep
from test_kernels import needs_compiler

from experiments.lab import ptxas
from experiments.persistence import stages
from mlpkit import data, engines, executors, kernels
from mlpkit.data import epoch_order
from mlpkit.executors import trainer_of
from mlpkit.executors.cuda.rates import rates, settings
from mlpkit.interrupts import put_off
from mlpkit.kernels import gpu
from mlpkit.nn.models import LENET5, MLP, mlp
from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME, SGD, Adam, AdamW, Momentum
from mlpkit.optim.schedules import Cosine
from mlpkit.training.fit import Diverged, fit

NAMES = ("cuda_three_kernels", "cuda_persistent", "cuda_cluster")
MOST = {"cuda_cluster": 128}  # rows of a batch, where it is less than what is tried
RATES = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3}


# Bytes that are spilled where there are more images, rows and averages than registers: (batch, Adam).
SPILLED = {(128, 1): 16, (256, 0): 64, (256, 1): 120}

# What the persistent kernel is on smaller GPUs: a chip, the kernel's macros, and bytes that may be spilled. (Row blocks
# with four examples spill some, whatever the batch.)
SMALLER = {
    "A100, 64": ("sm_80", {"BATCH": 64, "MOST_ROW_BLOCKS": 32}, 8),
    "A100, 128": ("sm_80", {"BATCH": 128, "MOST_ROW_BLOCKS": 32, "BUFFERS": 1}, 136),
    "RTX 3090, 32": ("sm_86", {"BATCH": 32, "MOST_ROW_BLOCKS": 16}, 8),
    "RTX 3090, 64": ("sm_86", {"BATCH": 64, "MOST_ROW_BLOCKS": 16, "BUFFERS": 1}, 40),
    "A10, 32": ("sm_86", {"BATCH": 32, "MOST_ROW_BLOCKS": 8}, 40),
    "RTX 4090, 64": ("sm_89", {"BATCH": 64, "BUFFERS": 1}, 8),
    "RTX 4090, 128": ("sm_89", {"BATCH": 128, "SHARED_BY": 2, "BUFFERS": 1}, 56),
    "RTX 4060 laptop, 128": (
        "sm_89",
        {"BATCH": 128, "SHARED_BY": 2, "BUFFERS": 1, "MOST_ROW_BLOCKS": 32, "COLUMN_ROUNDS": 4, "ROW_ROUNDS": 4},
        72,
    ),
}


# Without a GPU


@needs_compiler
@pytest.mark.parametrize("adam", [0, 1])
@pytest.mark.parametrize("batch", sweep([32, 64, 128, 256], 128))
def test_the_persistent_kernel_compiles_for_every_batch_size(batch, adam):
    found = ptxas.resources("persistent", BATCH=batch, ADAM=adam)["train"]
    assert found.registers <= 128  # of which a multiprocessor has enough for 512 threads
    assert found.spilled_bytes <= SPILLED.get((batch, adam), 8)  # a word or two that hardly anything waits for


@needs_compiler
@pytest.mark.parametrize("adam", sweep([0, 1], 1))
@pytest.mark.parametrize("case", sweep(SMALLER, "A100, 64"))
def test_the_persistent_kernel_compiles_for_smaller_gpus(case, adam):
    chip, macros, spilled = SMALLER[case]
    found = ptxas.resources("persistent", chip, ADAM=adam, **macros)["train"]
    assert found.registers <= 128
    assert found.spilled_bytes <= spilled


@needs_compiler
@pytest.mark.parametrize("chip", sweep(["sm_80", "sm_86", "sm_89", "sm_90"], "sm_80", "sm_90"))
def test_a_unit_of_its_own_copies_images_where_there_is_one(chip):
    code = kernels.ptx("persistent", chip)
    assert ("cp.async.bulk" in code) == (chip == "sm_90")
    assert ("cp.async.cg.shared.global" in code) == (chip != "sm_90")


@needs_compiler
@pytest.mark.parametrize(
    ("real", "sizes"),
    sweep([*product(("float", "double"), ("6,3", "6,5,3", "784,300,100,10", "12,4,5,4,5,3"))],
          ("float", "6,3"), ("double", "12,4,5,4,5,3")),
)  # fmt: skip
def test_the_three_kernels_compile_for_any_sizes(real, sizes):
    found = ptxas.resources("three_kernels", "sm_80", REAL=real, PIXEL=real, SIZES=sizes)
    assert found.keys() == {"first_layer", "rows", "update"}


@needs_compiler
@pytest.mark.parametrize("inputs", sweep([16, 32, 48, 784], 16))
def test_the_persistent_kernel_compiles_for_images_of_any_size(inputs):
    assert kernels.ptx("persistent", INPUTS=inputs, CLASSES=3, BATCH=32)


@needs_compiler
def test_the_pixels_meet_the_tensor_cores_as_bytes():
    code = kernels.ptx("persistent")
    assert "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32" in code


# With one


@pytest.fixture(scope="module")
def mnist():
    return data.load().train


def train(engine, split, order, batch_size, optimizer, dtype=np.float32, model=MLP, epochs=1):
    """Return (losses, theta) after some epochs; `optimizer` makes one for a network."""
    network = Network(engine, model, dtype=dtype)
    takes, to_numpy = optimizer(network), network.engine.to_numpy
    trainer = trainer_of(network, takes, *map(network.engine.asarray, split), batch_size)
    losses = [trainer.epoch(order) for _ in range(epochs)]
    trainer.close()
    assert takes.steps == epochs * -(-len(order) // batch_size)
    return np.concatenate([*map(to_numpy, losses)]), to_numpy(network.theta)


def make(name, **settings):
    return lambda network: BY_NAME[name](network, Cosine(RATES[name], 1000), **settings)


def distance(theta, wanted):
    return np.linalg.norm(theta - wanted) / np.linalg.norm(wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", RATES)
@pytest.mark.parametrize(
    ("name", "batch_size"),
    [(name, size) for name in NAMES for size in (1, 4, 32, 64, 100, 128, 256) if size <= MOST.get(name, size)],
)
def test_twenty_steps_are_as_close_to_float64_as_float32_is(name, batch_size, optimizer, mnist):
    order = epoch_order(len(mnist.y), 0, 0)[: 20 * batch_size - batch_size // 3]  # the last batch is short
    settings = {"weight_decay": 0.01} if optimizer == "adamw" else {}
    losses, theta = train(name, mnist, order, batch_size, make(optimizer, **settings))
    wanted, wanted_theta = train("numpy_baseline", mnist, order, batch_size, make(optimizer, **settings), np.float64)
    assert_allclose(losses, wanted, rtol=2e-5)
    assert distance(theta, wanted_theta) < 2e-5


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_epoch_follows_the_baseline(name, optimizer, mnist):
    order = epoch_order(len(mnist.y), 0, 0)
    losses, theta = train(name, mnist, order, 128, make(optimizer))
    wanted, exact = train("numpy_baseline", mnist, order, 128, make(optimizer), np.float64)
    _, usual = train("numpy_baseline", mnist, order, 128, make(optimizer))
    assert_allclose(losses, wanted, rtol=1e-2)
    assert distance(theta, exact) < max(1e-3, 20 * distance(usual, exact))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes",
    [
        (784, 64, 100, 32, 10),
        (784, 128, 128, 128, 3),
        (784, 128, 128, 128, 16),
        (50, 7, 128, 1, 10),
        (16, 8, 8, 8, 2),
    ],
)
@pytest.mark.parametrize("name", ["cuda_persistent", "cuda_cluster"])
def test_smaller_layers_are_filled_up_and_stay_themselves(name, sizes):
    rng = np.random.default_rng(0)
    split = data.Split(rng.integers(256, size=(100, sizes[0]), dtype=np.uint8), rng.integers(sizes[-1], size=100))
    for optimizer in (make("sgd"), make("adam", weight_decay=0.01)):
        case = split, np.arange(100), 32, optimizer
        losses, theta = train(name, *case, model=mlp(*sizes), epochs=2)
        wanted, exact = train("numpy_baseline", *case, np.float64, mlp(*sizes), epochs=2)
        assert_allclose(losses, wanted, rtol=2e-5)
        assert distance(theta, exact) < 2e-5


@pytest.mark.gpu
def test_layers_too_wide_for_three_kernels_are_refused_in_one_sentence(mnist):
    network = Network("cuda_three_kernels", mlp(784, 5000, 10))
    with pytest.raises(ValueError, match="shared memory") as caught:
        fit(network, SGD(network, 0.1), (mnist.X[:100], mnist.y[:100]), epochs=1, batch_size=32)
    one_sentence(caught.value, "cuda_three_kernels", "(784, 5000, 10)")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(6, 3), (6, 5, 3), (6, 33, 129, 3), (6, 5, 4, 5, 4, 3)])
@pytest.mark.parametrize("batch_size", [1, 7, 50, 64])
def test_three_kernels_take_any_sizes(batch_size, sizes, dtype):
    split, found = blobs(50, dtype=dtype), []
    for engine in ("cuda_three_kernels", "numpy_baseline"):
        network = Network(engine, mlp(*sizes), dtype=dtype)
        history = fit(network, Adam(network, 0.01), split, epochs=2, batch_size=batch_size)
        found.append((history.loss, network.engine.to_numpy(network.theta)))
    assert_allclose(
        found[0][0], found[1][0], **({"rtol": 2e-4, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-9})
    )
    assert_allclose(found[0][1], found[1][1], atol=2e-4 if dtype == np.float32 else 1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_bytes_and_the_same_bytes_as_fractions_train_alike(name, mnist):
    found = []
    for X in (mnist.X[:300], mnist.X[:300].astype(np.float32) / 255):
        network = Network(name)
        history = fit(network, SGD(network, 0.1), (X, mnist.y[:300]), epochs=2, batch_size=64)
        found.append((history.loss, network.engine.to_numpy(network.theta)))
    assert_array_equal(*(losses for losses, _ in found))
    assert_array_equal(*(theta for _, theta in found))


@pytest.mark.gpu
def test_two_runs_are_the_same_to_the_last_bit(mnist):
    order = epoch_order(len(mnist.y), 0, 0)[:10_000]
    first, second = (train("cuda_persistent", mnist, order, 128, make("adam")) for _ in range(2))
    assert_array_equal(first[0], second[0])
    assert_array_equal(first[1], second[1])


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["first weight", "last weight", "first bias", "last bias"])
@pytest.mark.parametrize("name", NAMES)
def test_a_nan_stays_visible(name, place, mnist):
    def poisoned(network):
        weights, parameters = network.n_weights, len(network.theta)
        places = {"first weight": 0, "last weight": weights - 1, "first bias": weights, "last bias": parameters - 1}
        network.theta[places[place]] = np.nan  # `fit` would refuse it before the first step
        return SGD(network, 0.1)

    losses, _ = train(name, mnist, np.arange(500), 64, poisoned)
    assert np.isnan(losses).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_weights_that_grow_without_bound_are_seen(name, mnist):
    network = Network(name)
    with pytest.raises(Diverged):
        fit(network, SGD(network, 1e4), (mnist.X[:5000], mnist.y[:5000]), epochs=3, batch_size=64)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_network_nobody_needs_is_forgotten(name, mnist):
    network = Network(name)
    fit(network, SGD(network, 0.1), (mnist.X[:100], mnist.y[:100]), epochs=1, batch_size=32)
    gone = weakref.ref(network)
    del network
    gc.collect()
    assert gone() is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_another_optimizer_is_refused_in_one_sentence(name, mnist):
    network = Network(name)
    with pytest.raises(ValueError, match="not Momentum") as caught:
        fit(network, Momentum(network, 0.1), (mnist.X[:100], mnist.y[:100]), epochs=1)
    one_sentence(caught.value, name, "SGD", "Adam", "AdamW")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_network_that_is_no_perceptron_is_refused_in_one_sentence(name):
    network = Network(name, LENET5)
    with pytest.raises(ValueError, match="multilayer perceptrons") as caught:
        fit(network, SGD(network, 0.1), (np.zeros((9, 1, 28, 28), np.uint8), np.zeros(9, int)), epochs=1)
    one_sentence(caught.value, name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_epochs_of_any_length_follow_each_other(name, mnist):
    """On the host or on the GPU is where the order may be; and the losses of one epoch stay when the next one comes."""
    orders = [epoch_order(len(mnist.y), 0, epoch)[:n] for epoch, n in enumerate((1000, 300, 64, 5, 1000))]
    found = []
    for engine, place in ((name, "host"), (name, "GPU"), ("numpy_baseline", "host")):
        network = Network(engine)
        on_engine, to_numpy = network.engine.asarray, network.engine.to_numpy
        trainer = trainer_of(network, Adam(network, 1e-3), *map(on_engine, mnist), 64)
        losses = [trainer.epoch(on_engine(order) if place == "GPU" else order) for order in orders]
        found.append((np.concatenate([*map(to_numpy, losses)]), to_numpy(network.theta)))
    for on_host, on_gpu in zip(*found[:2], strict=True):
        assert_array_equal(on_host, on_gpu)
    assert_allclose(found[0][0], found[2][0], rtol=2e-4)
    assert distance(found[0][1], found[2][1]) < 2e-4


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "blocks"), [("persistent", 128), ("cluster", 8)])
def test_stamps_tell_the_time_of_each_stage(name, blocks, mnist):
    network = Network(f"cuda_{name}")
    X, y = map(network.engine.asarray, mnist)
    trainer = executors.of(network.engine).Trainer(network, SGD(network, 0.01), X, y, 128, STAMPED_STEPS=5)
    trainer.epoch(epoch_order(len(mnist.y), 0, 0))
    stamps = stages.written(name, trainer, blocks)
    assert stamps.shape == (blocks, 5, stages.STAMPS[name])
    assert (np.diff(stamps[..., 0], axis=1) > 0).all()


# How arrays may lie

CUDA_EPOCHS = (*NAMES, "cuda_graph", "cuda_graph_cublas", "cuda_graph_epoch")
STRIDES = st.sampled_from([1, 2, 3, -1, -2])
INTEGERS = st.sampled_from(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])


def strewn(array, stride, dtype):
    """Return the same values of another type, so many apart; before the first one where the stride is negative."""
    room = np.full((len(array) * abs(stride), *array.shape[1:]), 77, dtype)[::stride]
    room[: len(array)] = array
    return room[: len(array)]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CUDA_EPOCHS)
def test_arrays_may_lie_as_they_like(name, mnist):
    """X, y and the order with gaps or backwards, labels and order of any integer type, on the host or on the GPU."""
    import cupy

    X, y, order = mnist.X[:120], mnist.y[:120], np.random.default_rng(0).permutation(120)[:100]

    def losses(X, y, order):
        network = Network(name)
        trainer = trainer_of(network, SGD(network, 0.1), X, y, 32)
        found = cupy.asnumpy(trainer.epoch(order))
        trainer.close()
        return found

    wanted = losses(cupy.asarray(X), cupy.asarray(y), order)

    def placed(array, stride, dtype, on_gpu=True):
        where = cupy if on_gpu else np
        room = where.asarray(strewn(array, stride, dtype).base)[::stride]  # the copy to the GPU keeps the gaps
        return room[: len(array)]

    @settings_of_hypothesis(max_examples=12, deadline=None, derandomize=True)
    @given(STRIDES, STRIDES, INTEGERS, STRIDES, INTEGERS, st.booleans())
    def check(of_X, of_y, type_of_y, of_order, type_of_order, order_on_gpu):
        arrays = (
            placed(X, of_X, np.uint8),
            placed(y, of_y, type_of_y),
            placed(order, of_order, type_of_order, order_on_gpu),
        )
        assert_allclose(losses(*arrays), wanted, rtol=1e-4)  # of wrong labels or images they would be far off

    check()


# A block that waits in vain

SENDS_A1 = "send(messages.a1.at("
SILENT = "if (blockIdx.x != 5 || tag != 7) " + SENDS_A1  # a column block sends nothing in step 7


@pytest.fixture
def broken(monkeypatch):
    """What executors wait with, and a persistent kernel in which a block does not send what others wait for."""
    import cupy

    from mlpkit.executors.cuda import waiting

    code = kernels.source("persistent")
    assert code.count(SENDS_A1) == 1

    def load(name, **macros):
        options = [f"-D{macro}={value}" for macro, value in {**macros, "PATIENCE": 100_000}.items()]
        return cupy.RawModule(code=code.replace(SENDS_A1, SILENT), options=(*kernels.OPTIONS, *options))

    monkeypatch.setattr(waiting, "kernels", SimpleNamespace(load=load))
    waiting.compiled.cache_clear()
    yield waiting
    waiting.compiled.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_who_waits_in_vain_is_named_and_the_gpu_goes_on(optimizer, broken, mnist, monkeypatch):
    network = Network("cuda_persistent")
    before = network.engine.to_numpy(network.theta)
    words = r"block \d+ waited in vain for .* of step 7, so that epoch is lost"
    with pytest.raises(RuntimeError, match=words) as caught:
        fit(network, make(optimizer)(network), (mnist.X[:2000], mnist.y[:2000]), epochs=3, batch_size=64)
    one_sentence(caught.value, "cuda_persistent")
    assert_array_equal(network.engine.to_numpy(network.theta), before)
    order = np.arange(2000)
    trainer = trainer_of(network, make(optimizer)(network), *map(network.engine.asarray, mnist), 64)
    trainer.epoch(order)
    with pytest.raises(RuntimeError, match=words):
        trainer.close()
    assert np.isnan(network.engine.to_numpy(network.theta)).any()  # so that nobody takes it for a result
    trainer.close()  # has nothing to say twice
    monkeypatch.undo()
    broken.compiled.cache_clear()
    losses, _ = train("cuda_persistent", mnist, order, 64, make(optimizer))
    assert_allclose(losses, train("numpy_baseline", mnist, order, 64, make(optimizer), np.float64)[0], rtol=2e-4)


@pytest.fixture
def ctrl_c():
    """Python's own answer to Ctrl-C, which a process in the background has not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield partial(signal.raise_signal, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.gpu
@pytest.mark.parametrize("model", [MLP, mlp(784, 50, 60, 70, 10)])
def test_ctrl_c_comes_before_an_epoch_or_after_it(model, mnist, monkeypatch, ctrl_c):
    """theta and the optimizer's count of steps are always of the same epoch, wherever in `epoch` Ctrl-C comes."""
    network = Network("cuda_persistent", model)
    optimizer = Adam(network, 1e-3)
    trainer = trainer_of(network, optimizer, *map(network.engine.asarray, mnist), 64)
    order = np.arange(640)
    for part, name in [(trainer.feed, "send"), (trainer.vectors[0], "put"), (trainer.vectors[-1], "take")]:
        real, steps, theta = getattr(part, name), optimizer.steps, network.engine.to_numpy(network.theta).copy()

        def interrupted(*given, real=real, **named):
            ctrl_c()
            return real(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(part, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                trainer.epoch(order)
        assert optimizer.steps == steps + 10
        assert not np.array_equal(network.engine.to_numpy(network.theta), theta)
    trainer.close()


def test_ctrl_c_is_held_back_and_not_lost(ctrl_c):
    done = []

    def work():
        with put_off():
            ctrl_c()
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("case", SMALLER)
def test_what_smaller_gpus_do_is_as_close_to_float64(case, optimizer, mnist, monkeypatch):
    """Here they are this GPU with other macros, and threads copy the images."""
    executor, (_, macros, _) = executors.of(engines.load("cuda_persistent")), SMALLER[case]
    batch_size = macros["BATCH"]
    own = {name: value for name, value in macros.items() if name != "BATCH"} | {"BULK": 0}
    monkeypatch.setattr(executor, "configuration", lambda rows, inputs: SimpleNamespace(macros=lambda: own))
    order = epoch_order(len(mnist.y), 0, 0)[: 20 * batch_size - batch_size // 3]
    losses, theta = train("cuda_persistent", mnist, order, batch_size, make(optimizer))
    wanted, wanted_theta = train("numpy_baseline", mnist, order, batch_size, make(optimizer), np.float64)
    assert_allclose(losses, wanted, rtol=2e-5)
    assert distance(theta, wanted_theta) < 2e-5


@pytest.mark.gpu
@pytest.mark.parametrize("batch_size", [32, 100, 128])
@pytest.mark.parametrize(
    ("multiprocessors", "optimizer"), [(58, "sgd"), (40, "adam"), (24, "sgd"), (24, "adamw"), (14, "adam")]
)
def test_on_fewer_multiprocessors_it_is_as_close_to_float64(multiprocessors, optimizer, batch_size, mnist, monkeypatch):
    monkeypatch.setenv(gpu.FEWER, str(multiprocessors))
    order = epoch_order(len(mnist.y), 0, 0)[: 20 * batch_size - batch_size // 3]
    losses, theta = train("cuda_persistent", mnist, order, batch_size, make(optimizer))
    wanted, wanted_theta = train("numpy_baseline", mnist, order, batch_size, make(optimizer), np.float64)
    assert_allclose(losses, wanted, rtol=2e-5)
    assert distance(theta, wanted_theta) < 2e-5


def float_images(n=40, inputs=784):
    return np.random.default_rng(0).normal(size=(n, inputs)).astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "dtype", "batch_size", "X", "words"),
    [
        (mlp(784, 128, 10), np.float32, 32, None, ("three hidden layers", "(784, 128, 10)")),
        (mlp(784, 129, 8, 8, 10), np.float32, 32, None, ("at most 128 units",)),
        (mlp(784, 8, 8, 8, 17), np.float32, 32, None, ("at most 16 classes",)),
        (MLP, np.float64, 32, None, ("float32", "float64")),
        (MLP, np.float32, 257, None, ("at most 256", "257")),
        (MLP, np.float32, 32, float_images(), ("bytes", "255")),
        (mlp(8000, 8, 8, 8, 10), np.float32, 256, None, ("shared memory",)),
    ],
)
def test_what_the_kernel_can_not_hold_is_refused_in_one_sentence(model, dtype, batch_size, X, words):
    network = Network("cuda_persistent", model, dtype=dtype)
    X = np.zeros((40, *model.input), np.uint8) if X is None else X
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked below)
        fit(network, AdamW(network, 0.1), (X, np.zeros(40, np.int64)), epochs=1, batch_size=batch_size)
    one_sentence(caught.value, *words)


# What the kernels are told of an optimizer


@pytest.mark.parametrize("lr", [0.25, Cosine(0.25, 10)])
def test_the_rates_are_those_of_the_next_steps(lr):
    optimizer = Adam(Network(model=mlp(6, 5, 3)), lr, beta1=0.5, beta2=0.75)
    optimizer.steps = 3
    table = rates(optimizer, 4)
    assert optimizer.steps == 7
    assert_array_equal(table[:, 0], [optimizer.schedule(step) for step in range(3, 7)])
    assert_allclose(table[:, 1], [optimizer.schedule(t - 1) / (1 - 0.5**t) for t in range(4, 8)])
    assert_allclose(table[:, 2], [1 / (1 - 0.75**t) ** 0.5 for t in range(4, 8)])


def test_what_is_left_of_one_is_taken_in_float64():
    """In float32, 1 - 0.999 is off by 5e-5: after an epoch of Adam a tenth of some losses."""
    network = Network(model=mlp(6, 5, 3))
    beta1, rest1, beta2, rest2, *_ = settings(Adam(network, 0.1))
    assert (rest1, rest2) == (np.float32(0.1), np.float32(0.001))
    assert (beta1, beta2) == (np.float32(0.9), np.float32(0.999))
    assert settings(AdamW(network, 0.1, weight_decay=0.5))[-2:] == (0, 0.5)
    assert settings(Adam(network, 0.1, weight_decay=0.5))[-2:] == (0.5, 0)
