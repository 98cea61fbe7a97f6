"""Every way to feed trains alike, images are moved and not changed, and the table has a line for each measurement."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import one_sentence

from experiments import feed
from experiments.feed.step import synchronize
from experiments.feed.tandem import Ahead
from experiments.lab import results
from mlpkit import engines
from mlpkit.kernels import gpu
from mlpkit.nn.network import Network

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(256, size=(600, 784), dtype=np.uint8), RNG.integers(10, size=600)
QUICK = feed.Plan(
    samples=3,
    copies=(4096,),
    batch_sizes=(32,),
    epochs=1,
    check_steps=3,
    allocations=(4096,),
    tandem_batch_sizes=(32,),
    shares=(0, 1 / 4, 1),
    tandem_steps=4,
)
FEED = {
    "kind": "feed",
    "way": "pinned",
    "dtype": "float32",
    "batch_size": 32,
    "loss_error": 1e-7,
    "steps": 18,
    "call_us": [3.0, 5.0],
    "samples_us": [4.0, 6.0],
    "parts": [{"wait": 1.0}, {"wait": 3.0}],
}
ALLOCATION = {
    "kind": "allocation",
    "memory": "GPU",
    "pooled": True,
    "bytes": 1,
    "first_us": 2,
    "samples_us": [1],
    "free_us": [1],
}
COPY = {"kind": "copy", "direction": "to the GPU", "memory": "pinned", "bytes": 4096}
RUNS = [
    COPY | {"call_us": [4.0], "samples_us": [8.0], "queued_us": [4.0]},
    FEED,
    {"kind": "gather", "how": "anew", "dtype": "uint8", "batch_size": 32, "samples_us": [1.0]},
    {"kind": "call", "what": "send a batch", "samples_us": [1.0]},
    ALLOCATION,
    {"kind": "step", "pooled": True, "samples_us": [1.0]},
    {"kind": "memory", "engine": "cuda_graph", "dtype": "uint8", "used": {"data": 1}, "kept": 1, "graph": 1},
    {"kind": "device", "free": 1, "total": 2},
    {"kind": "out of memory", "of": "the GPU", "asked": 4, "error": "E", "text": "no", "goes_on": True},
    {"kind": "given back", "states": {"held": (1, 1)}, "samples_us": [1.0]},
    {"kind": "rows", "side": "CPU", "batch_size": 32, "rows": 8, "samples_us": [1.0]},
    {"kind": "tandem", "batch_size": 32, "share": 0.5, "samples_us": [1.0]},
    {"kind": "ahead", "what": "order", "how": "at once", "samples_us": [1.0]},
]


def test_a_batch_is_one_piece_of_memory_and_gathers_its_rows():
    X, y = TRAIN
    batch, index = feed.Batch(8, "uint8", np.empty), np.array([3, 1, 4, 1, 5, 9, 2, 6])
    batch.gather(X, y, index)
    assert_array_equal(batch.x, X[index])
    assert_array_equal(batch.labels, y[index])
    assert batch.memory.nbytes == 8 * (784 + 8)
    assert np.shares_memory(batch.memory, batch.x)
    assert np.shares_memory(batch.memory, batch.labels)


def test_images_have_both_types_and_only_full_batches():
    pixels, y = TRAIN
    images = feed.Images(pixels.reshape(-1, 1, 28, 28), y)
    assert_array_equal(images.X["uint8"], pixels)
    assert images.X["float32"].dtype == np.float32
    assert_array_equal(np.round(255 * images.X["float32"]), images.X["uint8"])
    order = images.full_batches(feed.RECIPE)
    assert len(order) == len(set(order.tolist())) == 512


def test_shifted_images_have_moved():
    moves = RNG.integers(-2, 3, (len(TRAIN[0]), 2))
    out = np.zeros_like(TRAIN[0])
    feed.shifted(TRAIN[0], moves, out)
    for before, after, move in list(zip(TRAIN[0], out, moves, strict=True))[:20]:
        assert_array_equal(np.roll(before.reshape(28, 28), move, axis=(0, 1)).ravel(), after)


def test_the_gradient_has_the_size_that_the_copies_are_timed_for():
    assert feed.GRADIENT == Network().grad.nbytes == 539_176


def test_the_titles_of_the_variants_differ():
    titles = [way.title for way in feed.VARIANTS]
    assert len(set(titles)) == len(titles)


def test_the_table_has_a_line_for_each_run():
    lines = feed.table({"runs": RUNS}).splitlines()
    assert len(lines) == len(RUNS)
    assert lines[0] == "copy: direction to the GPU, memory pinned, bytes 4096; us: call 4.0, samples 8.0, queued 4.0"
    assert lines[1].endswith("loss_error 1e-07, steps 18; us: call 4.0, samples 5.0, wait 2.0")
    assert lines[7] == "device: free 1, total 2"


def test_the_published_record_can_be_read():
    record = results.published("feed")
    assert len(feed.table(record).splitlines()) == len(record["runs"])
    for way in feed.COPIED:
        assert all(us >= 0 for us in feed.pieces(record, way, 128).values())


def test_numbers_are_read_from_the_record():
    record = {"runs": RUNS}
    assert feed.median_of(record, kind="feed", way="pinned") == 5
    assert feed.median_of(record, "queued_us", kind="copy", bytes=4096) == 4
    assert feed.parts_of(FEED) == {"wait": 2}
    assert feed.parts_of(FEED | {"parts": []}) == {}


PIECES = {"gather": 20.0, "calls": 5.0, "stage": 0.0, "copy": 10.0, "compute": 30.0}


@pytest.mark.parametrize(
    ("way", "pieces", "a_step"),
    [
        ("pageable", PIECES | {"stage": 10.0}, 40),  # computes and copies, one after the other
        ("pinned", PIECES, 40),  # the next copy waits for the step, and the gathering for the copy
        ("overlapped", PIECES, 30),  # the step is all that is left
        ("overlapped", PIECES | {"gather": 50.0}, 55),  # the host is the slowest
    ],
)
def test_each_piece_begins_when_it_can(way, pieces, a_step):
    rows = feed.lanes(way, pieces)
    ends = [end for _, _, end in rows["GPU"]]
    assert ends[-1] - ends[-2] == a_step
    for spans in rows.values():
        assert all(end <= begin for (_, _, end), (_, begin, _) in pairwise(spans))
    for (_, _, copied), (_, begin, _) in zip(rows["copies"], rows["GPU"], strict=True):
        assert begin >= copied


@pytest.mark.skipif(gpu.why_not() is None, reason="there is a GPU here")
def test_without_a_gpu_there_is_one_sentence():
    with pytest.raises(engines.EngineUnavailable) as raised:
        feed.measure(train=TRAIN)
    one_sentence(raised.value, gpu.why_not())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", feed.VARIANTS[1:])
def test_every_variant_trains_as_the_baseline_does(kind):
    images, recipe = feed.Images(*TRAIN), feed.RECIPE.but(batch_size=32)
    way = kind(images, recipe)
    order = images.full_batches(recipe)
    for _ in range(2):  # the second time from the first parameters again
        way.step.restart()
        feed.check(way.epoch(order).get(), images, recipe, kind.title)


@pytest.mark.gpu
@pytest.mark.parametrize("share", [0, 1 / 32, 1 / 2, 31 / 32, 1])
def test_a_shared_batch_trains_as_the_baseline_does(share):
    images, recipe = feed.Images(*TRAIN), feed.RECIPE.but(batch_size=32)
    pair = feed.in_tandem(images, recipe, share)
    feed.check(pair.losses(images.full_batches(recipe)), images, recipe, f"share {share}")


@pytest.mark.gpu
def test_images_prepared_ahead_are_those_that_are_trained_on():
    ahead = Ahead(feed.Images(*TRAIN), feed.RECIPE.but(batch_size=32), augment=True)
    prepared = ahead.staging.copy()
    ahead.train()
    synchronize()
    assert_array_equal(ahead.way.X.get(), prepared)
    ahead.epochs(2, at_once=True)
    assert not np.array_equal(ahead.staging, prepared)


@pytest.mark.gpu
def test_a_small_run_has_every_kind_of_measurement():
    record = feed.measure(train=TRAIN, save=lambda record: None, progress=lambda text: None, plan=QUICK)
    assert {run["kind"] for run in record["runs"]} == {run["kind"] for run in RUNS}
    assert len(feed.table(record).splitlines()) == len(record["runs"])
    errors = [run for run in record["runs"] if run["kind"] == "out of memory"]
    assert all("OutOfMemoryError" in run["error"] and run["goes_on"] for run in errors)
