"""The kernels of whole epochs train right with no GPU: `emulator.py` runs their blocks, warps and waits on a CPU."""

import re
from pathlib import Path
from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence, sweep
from test_persistent import distance, make, train

from mlpkit import kernels
from mlpkit.data import Split
from mlpkit.executors import trainer_of
from mlpkit.nn.models import MLP, mlp
from mlpkit.nn.network import Network
from mlpkit.optim import SGD, AdamW

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
both = pytest.mark.parametrize("name", ["persistent", "cluster"])
ODD = mlp(50, 7, 128, 1, 3)
BATCHES = {"persistent": (32, 64, 100), "cluster": (32, 64, 100, 128)}  # and some larger ones, below

# Changes of the kernels that the emulator must see: (what to look for, what to write).
FAULTS = {
    "persistent": {
        "one buffer for two steps": [
            ("exchange[step % 2]", "exchange[0]"),
            ("exchange[(step + 1) % 2]", "exchange[0]"),
        ],
        "nobody waits for the images": [
            ("shared.images[step % BUFFERS].wait(step / BUFFERS % 2, tag, sync_first);", "")
        ],
        "nobody waits for dz1": [("mail.wait(tag, at, DZ1);", "")],
        "a tile does not wait for its numbers": [("this->wait(tag, at, what);", "")],
        "a tile does not wait for its parts": [("sync();\n        float2 g", "float2 g")],
        "nobody waits for W3": [
            ("third.look_for(messages.W[0], tag, NEW_W3);", ""),
            ("third.wait(messages.W[0], tag, NEW_W3);", ""),
        ],
    },
    "cluster": {
        "nobody waits for a1": [("barrier_cluster_arrive();\n    barrier_cluster_wait();  // for a1", "")],
        "nobody waits for new weights": [
            ("begin(network, shared);\n    barrier_cluster_arrive();", "begin(network, shared);"),
            ("barrier_cluster_wait();  // for the new W2, W3 and W4", ""),
            ("barrier_cluster_arrive();\n        stamp(step, 14);", ""),
            ("barrier_cluster_wait();\n    finish(", "finish("),
        ],
        "a block waits for itself alone": [
            (
                "barrier_cluster_arrive();\n        barrier_cluster_wait();  // for what the examples left",
                "__syncthreads();",
            )
        ],
        "nobody waits for the images": [("cp_async_wait_all();\n        __syncthreads();", "__syncthreads();")],
        "nobody waits for the rates": [("exchange.dz[0], rank);\n    cp_async_wait_all();", "exchange.dz[0], rank);")],
    },
}
BY_THREADS = ("#ifndef BULK\n", "#define BULK 0\n#ifndef BULK\n")  # as chips copy that have no bulk copies
FAULTS_OF_COPIES = {  # and of an RTX 3090's single buffer
    "nobody waits for its copies": ("cp_async_wait_all();\n        sync();", "sync();"),
    "nobody waits for the others' copies": ("cp_async_wait_all();\n        sync();", "cp_async_wait_all();"),
    "images come before the last ones are done with": ("sync_first();  // now the images' memory", "// "),
}
FAULTS_OF_ROUNDS = {  # and where a block takes the parts of four
    "splits are written over": ("if (round > 0) sync_first();  // now the splits'", "// "),
    "rows are written over": ("if (round > 0) __syncthreads();  // now the rows'", "// "),
    "every round has the first one's columns": ("return blockIdx.x + round * COLUMN_GRID;", "return blockIdx.x;"),
}
DEADLOCKS = {
    "persistent": ("receive(at(0), tag, what);", "receive(at(0), ~tag, what);"),  # a step that never is
    "cluster": (  # a warp that stands for its block
        "barrier_cluster_arrive();\n    barrier_cluster_wait();  // for a1",
        "if (threadIdx.x < 32) {\n barrier_cluster_arrive();\n barrier_cluster_wait();\n }\n __syncthreads();",
    ),
}
HALVES = {  # what is left out of the cluster's barrier, and what is said then
    "barrier_cluster_wait();  // for a1": "arrives twice at its cluster's barrier",
    "barrier_cluster_arrive();\n        stamp(step, 14);": "waits at its cluster's barrier, where it has not arrived",
}


# GPUs for which the persistent kernel is made in other ways: multiprocessors, and KiB of shared memory for a block; the
# largest batches that fit there; and whether they have bulk copies.
GPUS = {
    "H200": (132, 227, 256, True),
    "H100 in a PCIe slot": (114, 227, 256, True),
    "RTX 5090": (170, 99, 128, True),
    "A100": (108, 163, 256, False),
    "RTX 4090": (128, 99, 128, False),
    "RTX 3090": (82, 99, 128, False),
    "A10": (72, 99, 128, False),
    "L4": (58, 99, 128, False),
    "RTX 4060 laptop": (24, 99, 128, False),
    "A100, a seventh of it": (14, 163, 128, False),
}


def persistent_on(gpu, folder, seed=0, source=None):
    """Return the persistent engine as one of these GPUs would have it."""
    multiprocessors, kib, _, bulk = GPUS[gpu]
    source = source or kernels.source("persistent")
    engine = emulator.engine("persistent", folder, seed, source if bulk else source.replace(*BY_THREADS))
    attributes = {"MultiProcessorCount": multiprocessors, "MaxSharedMemoryPerBlockOptin": kib << 10}
    engine.executor.gpu._device = lambda: SimpleNamespace(attributes=attributes)
    return engine


def images(n, model=MLP):
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(n, *model.input)) * (rng.random((n, *model.input)) < 0.2)
    return Split(pixels.astype(np.uint8), rng.integers(*model.output, size=n))


def same_as_float64(engine, batch_size, optimizer, steps=3, model=MLP, epochs=1):
    """Assert that an engine trains as float64 does; the last batch is short."""
    n = steps * batch_size - batch_size // 3
    case = images(n + 50, model), np.arange(n)[::-1] + 50, batch_size, optimizer
    losses, theta = train(engine, *case, model=model, epochs=epochs)
    wanted, wanted_theta = train("numpy_baseline", *case, np.float64, model, epochs)
    assert_allclose(losses, wanted, rtol=2e-5)
    assert distance(theta, wanted_theta) < 2e-5


def in_four_schedules(engine_of, batch_size=32):
    """Assert that what `engine_of` returns for a seed trains as float64 does, for four of them."""
    for seed in range(4):
        same_as_float64(engine_of(seed), batch_size, make("sgd"))


def changed(name, *changes):
    """Return a kernel's source with something else in the place of each part of it that is named."""
    source = kernels.source(name)
    for right, wrong in changes:
        assert right in source
        source = source.replace(right, wrong)
    return source


@needs_compiler
# Adam is AdamW that decays nothing, in the same kernel
@pytest.mark.parametrize("optimizer", sweep(["sgd", "adamw"], "adamw"))
@pytest.mark.parametrize(
    ("name", "batch_size"),
    sweep([(name, size) for name, sizes in BATCHES.items() for size in sizes], *[(name, 32) for name in BATCHES]),
)
def test_a_few_steps_are_as_close_to_float64_as_float32_is(name, batch_size, optimizer, folder):
    settings = {"weight_decay": 0.01} if optimizer == "adamw" else {}
    same_as_float64(emulator.engine(name, folder), batch_size, make(optimizer, **settings))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("batch_size", "model"), sweep([(256, MLP), (150, ODD)], (150, ODD)))
def test_two_blocks_share_the_images_of_the_largest_batches(batch_size, model, folder):
    same_as_float64(emulator.engine("persistent", folder, 1), batch_size, make("adam"), steps=2, model=model)


@needs_compiler
@pytest.mark.parametrize(
    ("gpu", "batch_size", "optimizer"),
    sweep(
        [
            ("A100", 64, "sgd"),
            ("A100", 100, "adam"),
            ("RTX 4090", 128, "adam"),
            ("RTX 3090", 64, "sgd"),
            ("A10", 32, "sgd"),
            ("RTX 5090", 64, "sgd"),
            ("RTX 3090", 128, "sgd"),
            ("L4", 100, "adam"),
            ("RTX 4060 laptop", 128, "sgd"),
            ("RTX 4060 laptop", 32, "adam"),
            ("A100, a seventh of it", 128, "adam"),
            ("A100", 256, "sgd"),
        ],
        ("A100", 64, "sgd"),
        ("RTX 4060 laptop", 32, "adam"),
    ),
)
def test_on_smaller_gpus_it_trains_as_well(gpu, batch_size, optimizer, folder):
    """With fewer row blocks, one batch of images at a time or halves of one, parts in turn, and what threads copy."""
    engine = persistent_on(gpu, folder)
    same_as_float64(engine, batch_size, make(optimizer), steps=2)
    rows = next(rows for rows in engine.executor.BATCHES if rows >= batch_size)
    blocks, shared_bytes = needs(engine, batch_size, optimizer)
    wanted, most = engine.executor.configuration(rows, 784).needs(784)
    assert blocks == wanted
    assert 0 <= most - shared_bytes <= 256  # biases without Adam's averages take less


def needs(engine, batch_size, optimizer):
    """Return the multiprocessors that a trainer's kernel takes, and the bytes of shared memory on each."""
    network = Network(engine)
    trainer = engine.executor.Trainer(network, make(optimizer)(network), *images(batch_size), batch_size)
    return trainer.blocks, trainer.shared_bytes


@needs_compiler
def test_it_knows_to_the_byte_what_the_largest_batch_needs(folder):
    """On an H200 that is all that there is."""
    engine = persistent_on("H200", folder)
    configuration = engine.executor.configuration(256, 784)
    assert needs(engine, 256, "adam") == configuration.needs(784) == (128, 227 << 10)
    assert configuration.macros() == {}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("fault", FAULTS_OF_ROUNDS)
def test_a_fault_of_what_blocks_do_in_turn_is_seen(fault, folder):
    source = changed("persistent", FAULTS_OF_ROUNDS[fault])
    with pytest.raises((AssertionError, emulator.Failed)):
        in_four_schedules(lambda seed: persistent_on("RTX 4060 laptop", folder, seed, source), 64)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("fault", FAULTS_OF_COPIES)
def test_a_fault_of_what_threads_copy_is_seen(fault, folder):
    source = changed("persistent", FAULTS_OF_COPIES[fault])
    with pytest.raises((AssertionError, emulator.Failed)):
        in_four_schedules(lambda seed: persistent_on("RTX 3090", folder, seed, source), 64)


def test_the_page_about_gpus_says_what_fits_where():
    page = (Path(__file__).parents[2] / "binder" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|`]+) \| (\d+) \| (\d+) \| (\d+|none) \|$", page, re.MULTILINE)
    said = {gpu: (int(found), int(kib), int(most.replace("none", "0"))) for gpu, found, kib, most in rows}
    assert said == {gpu: facts[:3] for gpu, facts in GPUS.items()}


@pytest.mark.parametrize("gpu", [*GPUS, "no GPU"])
def test_a_gpu_that_is_too_small_is_refused_in_one_sentence(gpu, folder, monkeypatch):
    monkeypatch.setitem(GPUS, "no GPU", (11, 99, 0, False))
    multiprocessors, kib, most, _ = GPUS[gpu]
    engine = persistent_on(gpu, folder)
    optimizer = SGD(Network(), 0.1)
    fits = [
        size for size in (1, 32, 33, 64, 65, 128, 129, 256) if engine.executor.why_not(MLP, optimizer, size) is None
    ]
    assert max(fits, default=0) == most
    for size in (most + 1, 256):
        if most < size <= 256:
            needs = f"at most {most}, not {size}" if most else "at least 12 multiprocessors"
            one_sentence(
                engine.executor.why_not(MLP, optimizer, size), needs, multiprocessors, f"{kib} KiB", "cuda_graph"
            )
    large = engine.executor.why_not(mlp(8000, 8, 8, 8, 10), optimizer, 32)
    one_sentence(large, "12 multiprocessors with 329 KiB", "cuda_graph")


@needs_compiler
@both
@pytest.mark.parametrize("optimizer", sweep(["sgd", "adam"], "sgd"))
def test_smaller_layers_are_filled_up(name, optimizer, folder):
    settings = {"weight_decay": 0.01} if optimizer == "adam" else {}
    same_as_float64(emulator.engine(name, folder, 1), 32, make(optimizer, **settings), steps=2, model=ODD, epochs=2)


@needs_compiler
@both
@pytest.mark.parametrize("others", sweep([1, 3], 1))
def test_every_schedule_gives_the_same_to_the_last_bit(name, others, folder):
    split, order = images(80), np.arange(80)
    found = [train(emulator.engine(name, folder, seed), split, order, 32, make("adam")) for seed in range(others + 1)]
    for losses, theta in found[1:]:
        assert_array_equal(losses, found[0][0])
        assert_array_equal(theta, found[0][1])


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", sweep([SGD, AdamW], AdamW))
def test_networks_together_do_what_each_does_alone_to_the_last_bit(kind, folder):
    rates, batch_size = (0.1, 0.01, 0.001), 32  # settings may differ, too
    engine = emulator.engine("cluster", folder, 2)
    together, alone = ([Network(engine, seed=seed) for seed in range(3)] for _ in range(2))
    X, y = map(engine.asarray, images(80))
    orders = engine.asarray(np.stack([np.random.default_rng(seed).permutation(80) for seed in range(3)]))
    optimizers = [kind(network, rate, weight_decay=rate) for network, rate in zip(together, rates, strict=True)]
    losses = engine.executor.Together(together, optimizers, X, y, batch_size).epoch(orders)
    assert losses.shape == (3, 3)
    for i, network in enumerate(alone):
        takes = kind(network, rates[i], weight_decay=rates[i])
        assert_array_equal(engine.executor.Trainer(network, takes, X, y, batch_size).epoch(orders[i]), losses[i])
        assert_array_equal(network.theta, together[i].theta)


PLACES = [(name, place) for name in BATCHES for place in ("first weight", "last weight", "first bias", "last bias")]


@needs_compiler
@pytest.mark.parametrize(("name", "place"), sweep(PLACES, ("persistent", "first weight"), ("cluster", "last bias")))
def test_a_nan_stays_visible(name, place, folder):
    engine = emulator.engine(name, folder)
    network = Network(engine)
    weights, parameters = network.n_weights, len(network.theta)
    places = {"first weight": 0, "last weight": weights - 1, "first bias": weights, "last bias": parameters - 1}
    network.theta[places[place]] = np.nan
    trainer = trainer_of(network, SGD(network, 0.1), *map(engine.asarray, images(50)), 32)
    assert np.isnan(trainer.epoch(np.arange(50))).all()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in faults])
def test_a_fault_is_seen_in_one_of_a_few_schedules(name, fault, folder):
    source = changed(name, *FAULTS[name][fault])
    with pytest.raises((AssertionError, emulator.Failed)):
        in_four_schedules(lambda seed: emulator.engine(name, folder, seed, source))


@needs_compiler
@both
def test_a_deadlock_is_an_error_and_not_a_hang(name, folder):
    source = changed(name, DEADLOCKS[name])
    with pytest.raises(emulator.Failed, match=r"stuck: [0-9]+ threads look for what never comes, [0-9]+ wait"):
        train(emulator.engine(name, folder, 0, source), images(40), np.arange(40), 32, make("sgd"))


@needs_compiler
def test_numbers_are_read_four_at_a_time_only_where_a_gpu_could(folder):
    source = changed("persistent", ("float parts[WARPS][STRIDE];", "float first, parts[WARPS][STRIDE];"))
    with pytest.raises(emulator.Failed, match="a misaligned address"):
        train(emulator.engine("persistent", folder, 0, source), images(40), np.arange(40), 32, make("sgd"))


@needs_compiler
@pytest.mark.parametrize("half", HALVES)
def test_half_a_barrier_is_an_error(half, folder):
    source = changed("cluster", (half, ""))
    with pytest.raises(emulator.Failed, match=HALVES[half]):
        train(emulator.engine("cluster", folder, 0, source), images(40), np.arange(40), 32, make("sgd"))


@needs_compiler
def test_what_is_no_launch_of_the_kernel_is_an_error(folder):
    engine = emulator.engine("cluster", folder)
    network = Network(engine)
    train = engine.executor.Trainer(network, SGD(network, 0.1), *images(40), 32).kernel
    with pytest.raises(emulator.Failed, match="not the kernel's arguments"):
        train((8,), (512,), (np.int32(0),))
    with pytest.raises(emulator.Failed, match="shared memory"):
        train((8,), (512,), (), shared_mem=1 << 18)


@both
def test_assembly_that_the_emulator_does_not_know_is_named(name):
    source = kernels.source(name) + 'void wait() { \n    asm volatile("membar.gl;"); }\n'
    with pytest.raises(emulator.Changed, match="does not replace: asm volatile"):
        emulator.translated(name, source)


@needs_compiler
def test_an_instruction_that_the_emulator_does_not_know_is_named(folder):
    source = changed("cluster", ("cp_async_wait_all();", "prefetch_tensormap(nullptr);"))
    with pytest.raises(emulator.Changed, match="prefetch_tensormap"):
        emulator.compiled("cluster", folder, source)
