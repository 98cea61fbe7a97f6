"""Several ranks train what one process trains that adds up the gradients of shares, to the bit; a dead one is named."""

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from threading import Barrier, Thread
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from mlpkit import data, engines, executors, machine
from mlpkit.__main__ import main
from mlpkit.data import Dataset, Split, epoch_order
from mlpkit.interrupts import put_off
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP
from mlpkit.nn.norm import BatchNorm
from mlpkit.parallel import gpus, ranks
from mlpkit.parallel.ring import RankLost, Ring
from mlpkit.parallel.shares import Sharded, share
from mlpkit.training.fit import Diverged
from mlpkit.training.recipe import Recipe
from mlpkit.training.refusals import check_norms

SMALL = Model((784,), (Linear(12), ReLU(), Linear(10)))
RECIPE = Recipe(model=SMALL, lr=0.1, batch_size=32, epochs=2, optimizer="momentum", schedule="cosine")


@pytest.fixture(scope="module")
def few():
    train, validation, test = data.load()[1:4]
    return Dataset("few", *(Split(X[:n], y[:n]) for (X, y), n in ((train, 201), (validation, 100), (test, 10))), ())


def summed_like_a_ring(vectors):
    """Return the sum of the ranks' vectors as the ring adds them up: chunk c begins with rank c's values."""
    ranks = len(vectors)
    cut = [np.array_split(vector, ranks) for vector in vectors]
    sums = []
    for chunk in range(ranks):
        found = cut[chunk][chunk].copy()
        for step in range(1, ranks):
            rank = (chunk + step) % ranks
            found = cut[rank][chunk] + found
        sums.append(found)
    return np.concatenate(sums)


def in_one_process(recipe, dataset, count, name="numpy_baseline"):
    """Return what one process trains that adds up shares' gradients in the ring's order, each by the engine's trainer.

    The first network's trainer updates it; where it would reduce, the others find the gradients of their shares.
    """
    networks = [recipe.make_network(name) for _ in range(count)]
    engine, n, cut, found = networks[0].engine, len(dataset.train.y), [], {}
    optimizers = [recipe.make_optimizer(network, n) for network in networks]
    X, y = map(engine.asarray, (networks[0].as_input(dataset.train.X), dataset.train.y))

    def add_up(grad):
        found[0] = engine.to_numpy(grad).copy()
        for rank in range(1, count):
            networks[rank].set_theta(engine.to_numpy(networks[0].theta))
            found[rank] = np.zeros_like(found[0])
            if len(cut[rank]):
                trainers[rank].epoch(cut[rank])
        weighted = [found[rank] * (len(cut[rank]) / sum(map(len, cut))) for rank in range(count)]
        grad[:] = engine.asarray(summed_like_a_ring(weighted))

    def keep(rank):
        return lambda grad: found.update({rank: engine.to_numpy(grad).copy()})

    for rank, optimizer in enumerate(optimizers):
        optimizer.reduce = keep(rank) if rank else add_up
    trainers = [
        executors.trainer_of(network, optimizer, X, y, recipe.batch_size // count)
        for network, optimizer in zip(networks, optimizers, strict=True)
    ]
    for epoch in range(recipe.epochs):
        order = epoch_order(n, recipe.seed, epoch)
        for start in range(0, n, recipe.batch_size):
            cut[:] = np.array_split(order[start : start + recipe.batch_size], count)
            trainers[0].epoch(cut[0])
    return networks[0]


def theta_of_one_process(recipe, dataset, name):
    network = in_one_process(recipe, dataset, 2, name)
    return network.engine.to_numpy(network.theta)


def ring_of(rank, count, name, barrier, vectors, pipe):
    ring = Ring(rank, count, name, barrier)
    vector = vectors[rank].copy()
    ring.sum(vector)
    pipe.send(vector)
    ring.close()


@pytest.mark.parametrize(("count", "n"), [(1, 5), (2, 7), (3, 2), (3, 100)])
def test_the_ring_adds_up_in_its_own_order_and_all_have_the_same_bits(count, n):
    """In threads, which share memory, too. Two elements among three ranks leave one chunk empty."""
    from queue import Queue

    vectors = np.random.default_rng(n).normal(size=(count, n)).astype(np.float32)
    memory, barrier = SharedMemory(create=True, size=count * n * 8), Barrier(count)
    queues = [Queue() for _ in range(count)]
    for queue in queues:
        queue.send = queue.put
    try:
        threads = [
            Thread(target=ring_of, args=(r, count, memory.name, barrier, vectors, queues[r])) for r in range(count)
        ]
        for thread in threads:
            thread.start()
        found = [queue.get(timeout=20) for queue in queues]
        for thread in threads:
            thread.join()
    finally:
        memory.close()
        memory.unlink()
    for each in found:
        assert_array_equal(each, summed_like_a_ring(list(vectors)))
    np.testing.assert_allclose(found[0], vectors.sum(axis=0), rtol=1e-5, atol=1e-6)


def test_shares_are_whole_batches_cut_in_the_same_places():
    order = np.arange(21)
    whole, last = zip(*(share(order, 8, rank, 2) for rank in (0, 1)), strict=True)
    assert whole[0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert whole[1].tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
    assert [each.tolist() for each in last] == [[16, 17, 18], [19, 20]]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_have_the_bits_of_one_process(few, count):
    """201 examples in batches of 32: the last batch has 9. Of 4 ranks each has another share of it."""
    seen = []
    network, history = ranks.train(RECIPE, few, ranks=count, on_epoch=lambda history: seen.append(len(history.epochs)))
    alone = in_one_process(RECIPE, few, count)
    assert_array_equal(network.theta, alone.theta)
    assert seen == [1, 2]
    assert history.validation["loss"][-1] == alone.evaluate(*few.validation)["loss"]
    _, usual = RECIPE.train(few)
    np.testing.assert_allclose(history.loss, usual.loss, rtol=1e-4)


CPU = [name for name in engines.names() if not engines.on_gpu(name)]
SEES = Model((1, 28, 28), (Conv(4, 5), MaxPool(2), ReLU(), Flatten(), Linear(10)))


QUICK = ("numpy_im2col",)  # of which no compiler keeps anybody waiting; the baseline is above


@pytest.mark.parametrize("model", [SMALL, SEES], ids=["dense", "convolutions"])
@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CPU]
)
def test_every_cpu_engine_takes_part_and_has_the_bits_of_one_process(few, engine, model):
    """Who trains no convolutions refuses them. Those that Python interprets take an epoch of fewer examples."""
    recipe, dataset = RECIPE.but(model=model), few
    if engines.interpreted(engine):
        recipe, dataset = recipe.but(epochs=1), few._replace(train=Split(few.train.X[:41], few.train.y[:41]))
    module = engines.load(engine)
    if not set(model.operations) <= set(dir(module)) or executors.of(module).why_not(model, None, 16):
        with pytest.raises(ValueError, match="take another engine"):
            ranks.train(recipe, dataset, engine, ranks=2)
        return
    network, _ = ranks.train(recipe, dataset, engine, ranks=2)
    threads = dict.fromkeys(ranks.THREADS, str(max(1, machine.cores() // 2)))  # a rank's: they cut what is summed
    with patch.dict(os.environ, threads), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        alone = pool.submit(theta_of_one_process, recipe, dataset, engine).result()
    assert_array_equal(network.engine.to_numpy(network.theta), alone)
    np.testing.assert_allclose(alone, in_one_process(recipe, dataset, 2).theta, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_statistics_are_the_mean_of_the_ranks_and_one_row_for_two_ranks_is_no_trouble(few):
    normed = RECIPE.but(model=Model((784,), (Linear(12), BatchNorm(), ReLU(), Linear(10))), lr=1e-9)
    whole = few._replace(train=Split(few.train.X[:192], few.train.y[:192]))
    found, usual = ranks.train(normed, whole, ranks=2)[0].statistics, normed.train(whole)[0].statistics
    np.testing.assert_allclose(found[:12], usual[:12], rtol=1e-4)  # the mean of shares' means is that of the batch
    assert 0.5 < np.median(found[12:] / usual[12:]) < 2  # and variances are those of smaller batches
    odd = few._replace(train=Split(few.train.X[:193], few.train.y[:193]))  # the last batch has one row
    assert_array_equal(ranks.train(RECIPE, odd, ranks=2)[0].theta, in_one_process(RECIPE, odd, 2).theta)


@pytest.mark.slow
def test_the_first_rank_writes_checkpoints_and_another_number_of_ranks_goes_on(few, tmp_path):
    ranks.train(RECIPE.but(schedule="constant", epochs=1), few, ranks=2, checkpoints=str(tmp_path))
    longer = RECIPE.but(schedule="constant")
    network, history = ranks.train(longer, few, ranks=4, checkpoints=str(tmp_path), resume=True)
    assert len(history.epochs) == 2
    np.testing.assert_allclose(network.theta, in_one_process(longer, few, 2).theta, rtol=1e-4, atol=1e-6)
    assert {"last.npz", "best.npz"} <= {path.name for path in tmp_path.iterdir()}


def test_a_dead_rank_ends_all_within_seconds_in_a_sentence(few):
    context, began = get_context("spawn"), []

    def kill(history):
        if not began:
            began.append(time.monotonic())
            children = [int(pid) for pid in _children()]
            os.kill(max(children), signal.SIGKILL)  # the last one that was started

    with pytest.raises(RankLost, match=r"rank 1 was killed by SIGKILL, and the others were stopped: resume it, where"):
        ranks.train(RECIPE.but(epochs=10_000), few, ranks=2, on_epoch=kill)
    assert time.monotonic() - began[0] < 5
    assert not [pid for pid in _children() if _line(pid).count(b"spawn_main")]
    assert context


def test_a_rank_that_is_killed_while_it_starts_is_named_at_once(few):
    """It has not read yet what it is to train, and nobody waits for that."""

    def kill_the_first():
        while not (found := _children()):
            time.sleep(0.001)
        os.kill(min(map(int, found)), signal.SIGKILL)

    Thread(target=kill_the_first).start()
    began = time.monotonic()
    with pytest.raises(RankLost, match="rank 0 was killed by SIGKILL"):
        ranks.train(RECIPE.but(epochs=10_000), few, ranks=2)
    assert time.monotonic() - began < 10


def test_a_rank_that_is_killed_in_the_middle_of_a_message_is_named_too():
    ours, theirs = get_context("spawn").Pipe()
    os.write(theirs.fileno(), b"\0\0\1\0" + b"the first bytes of 256")
    theirs.close()
    with pytest.raises(RankLost, match="rank 0 was killed by SIGKILL"):
        ranks._heard(None, {ours: SimpleNamespace(join=lambda seconds: None, exitcode=-9)}, None)


@pytest.mark.parametrize(("code", "said"), [(None, "waited in vain"), (-9, "rank 1 was killed by SIGKILL")])
def test_of_a_rank_that_waited_in_vain_and_the_one_it_waited_for_the_latter_is_heard(code, said):
    """If it says nothing, and does not end, nobody waits for it for ever."""
    (ours, theirs), (others, silent) = (get_context("spawn").Pipe() for _ in range(2))
    theirs.send(("error", RankLost("waited in vain")))
    theirs.close()
    if code:
        silent.close()
    ended = {ours: SimpleNamespace(join=lambda seconds: None, exitcode=0)}
    ended[others] = SimpleNamespace(join=lambda seconds: None, exitcode=code)
    with patch.object(ranks, "LAST_WORDS", 0.1), pytest.raises(RankLost, match=said):
        ranks._heard(None, ended, None)


SCRIPT = """
from mlpkit import data
from mlpkit.data import Split
from mlpkit.nn.layers import Linear
from mlpkit.nn.models import Model
from mlpkit.parallel import ranks
from mlpkit.training.recipe import Recipe

class Mine(Linear):
    pass

def main():
    few = data.load()
    few = few._replace(train=Split(*(part[:64] for part in few.train)))
    try:
        ranks.train(Recipe(model=Model((784,), ({layer}(10),)), epochs=1), few, ranks=2)
    except ValueError as error:
        print(error)

"""


@pytest.mark.parametrize(
    ("layer", "last", "said"),
    [
        ("Linear", "main()", 'put what your script does under `if __name__ == "__main__":`.'),
        ("Mine", "exec(\"if __name__ == '__main__': main()\")", "into a file beside the notebook or script"),
    ],
)
def test_a_script_without_a_guard_or_a_layer_of_a_notebook_is_refused_in_a_sentence(layer, last, said, tmp_path):
    """Python's own way to say it is a traceback of every rank. A notebook, as `-c`, has no file to import."""
    source = SCRIPT.format(layer=layer) + last
    (tmp_path / "script.py").write_text(source)
    run = [str(tmp_path / "script.py")] if layer == "Linear" else ["-c", source]
    found = subprocess.run([sys.executable, *run], capture_output=True, text=True, timeout=60)
    assert said in found.stdout
    assert found.stderr == ""


def test_shared_memory_that_is_too_small_is_refused_before_a_rank_would_die_of_it(few):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    full = OSError(errno.ENOSPC, "No space left on device")
    said = (
        r"76,\d+ bytes of shared memory, where ranks meet, can't be had \(No space left on device\): give a container"
    )
    with patch.object(os, "posix_fallocate", side_effect=full, create=True), pytest.raises(OSError, match=said):
        ranks.train(RECIPE, few, ranks=2)
    if os.path.isdir("/dev/shm"):
        assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("psm_")]


def test_ctrl_c_waits_for_a_process_that_is_being_started_and_never_comes_to_it():
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    done = []

    def start():
        with put_off(starts=True):
            signal.raise_signal(signal.SIGINT)
            done.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["True\n"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_dropout_drops_other_cells_of_each_share():
    """Of the same image a quarter of the cells is kept by neither rank, by one, by the other, and by both.

    A weight's gradient tells which: with one seed for both it would have two values, not four.
    """
    recipe, rows = RECIPE.but(model=Model((784,), (Dropout(0.5), Linear(10)))), np.ones((1, 784), np.float32)
    memory, barrier, found = SharedMemory(create=True, size=2 * 8 * 7850), Barrier(2), {}

    def train(rank):
        network, ring = recipe.make_network("numpy_baseline"), Ring(rank, 2, memory.name, barrier)
        given = network, recipe.make_optimizer(network, 2), rows, np.zeros(1, int), 2
        Sharded(executors.of(network.engine), ring, *given).epoch(np.zeros(2, int))
        found[rank] = abs(network.grad[:7840].reshape(784, 10)[:, 0])
        ring.close()

    threads = [Thread(target=train, args=(rank,)) for rank in (0, 1)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        memory.close()
        memory.unlink()
    assert_array_equal(found[0], found[1])
    _, counts = np.unique((found[0] / found[0].max()).round(4), return_counts=True)
    assert len(counts) == 4
    assert all(0.2 < count / 784 < 0.3 for count in counts)


def _children():
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [pid for pid in file.read().split() if b"spawn_main" in _line(pid)]


def _line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_what_a_rank_raises_is_raised_here_and_its_traceback_is_not_shown(few, capfd):
    with pytest.raises(Diverged, match="the loss became"):
        ranks.train(RECIPE.but(lr=1e20, schedule="constant"), few, ranks=np.int64(2))
    assert "Traceback" not in capfd.readouterr().err


def test_what_the_first_rank_warns_of_is_told_here(few, capfd):
    """In a notebook nobody sees what a rank writes to the terminal."""
    bright = few._replace(train=Split(few.train.X.astype(np.float32), few.train.y))
    with pytest.warns(UserWarning, match="divide all") as told:
        RECIPE.but(epochs=1, lr=1e-9).train(bright)
    with pytest.warns(UserWarning, match="divide all") as heard:
        ranks.train(RECIPE.but(epochs=1, lr=1e-9), bright, ranks=2)
    assert [str(each.message) for each in heard] == [str(each.message) for each in told]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("n", [200, 30])
def test_a_batch_norm_of_one_row_a_rank_is_refused(few, n):
    normed = RECIPE.but(model=Model((784,), (Linear(12), BatchNorm(), ReLU(), Linear(10))))
    with pytest.raises(ValueError, match="batches of at least 64"):
        check_norms(normed.model, n, 32, 32)
    with pytest.raises(ValueError, match="one row, as a rank would have, which is in the last batch of 201 examples"):
        ranks.train(normed.but(batch_size=99), few, ranks=3)


def test_ranks_that_can_not_be_had_are_refused(few, capsys):
    for options, said in (
        (dict(ranks=3), "a batch of 32 can't be shared by 3 ranks: take a multiple of 3"),
        (dict(ranks=0), "ranks must be at least 1"),
        (dict(ranks=2, gpus=True), "numpy_baseline computes on the CPU: say how many ranks, or take an engine"),
        (dict(ranks=2, engine="cuda_graph"), "cuda_graph computes on the GPU: say how many gpus"),
        (dict(ranks=-1), "ranks must be at least 1"),
        (dict(ranks=5_000), "5000 ranks are too many for"),
        (dict(ranks=10**30), "ranks are too many for"),
    ):
        with pytest.raises(ValueError, match=said):
            ranks.train(RECIPE, few, **options)
    assert main(["train", "--ranks", "5", "--epochs", "1"]) == 1
    assert "take a multiple of 5" in capsys.readouterr().err


def test_kernels_that_update_by_themselves_refuse_ranks():
    if engines.available()["cuda_persistent"]:
        pytest.skip("no GPU")
    network = Recipe().make_network("cuda_persistent")
    optimizer = Recipe().make_optimizer(network, 100)
    optimizer.reduce = print
    with pytest.raises(ValueError, match="reduce"):
        executors.check_trains(network, optimizer, 64)


@pytest.mark.gpus
@pytest.mark.parametrize(
    ("engine", "model", "optimizer"),
    [("cupy_fused", SMALL, "sgd"), ("cuda_graph", MLP, "sgd"), ("cuda_persistent", MLP, "sgd"),
     ("cuda_conv_fused", LENET5, "sgd"), ("cuda_conv_graph", LENET5, "sgd"), ("cuda_conv_graph", MLP, "momentum"),
     ("cuda_conv_graph", FASHION_CNN, "adam"), ("cuda_conv_graph_bf16", FASHION_CNN, "sgd")],
)  # fmt: skip
def test_two_gpus_train_what_one_does(engine, model, optimizer):
    """The last batch has 127 examples: one rank's share of it is as large as of any other batch, and one's is not.

    Small differences grow from step to step, so the first losses are compared.
    """
    gpus.check(2)
    train, validation, test = data.load()[1:4]
    n = 50 * 128 + 127
    few = Dataset("few", Split(train.X[:n], train.y[:n]), validation, test, ())
    rate = {"sgd": 0.01, "momentum": 0.002, "adam": 1e-3}[optimizer]
    recipe = Recipe(model=model, epochs=2, batch_size=128, lr=rate, optimizer=optimizer)
    network, history = ranks.train(recipe, few, engine, ranks=2, gpus=True)
    one, usual = recipe.train(few, engine)
    np.testing.assert_allclose(history.loss[:20], usual.loss[:20], rtol=3e-2 if "bf16" in engine else 2e-3)
    found, wanted = (each.evaluate(*validation)["accuracy"] for each in (network, one))
    assert found == pytest.approx(wanted, abs=0.01)


@pytest.mark.gpus
@pytest.mark.parametrize("engine", ["cuda_three_kernels", "cuda_cluster"])
def test_kernels_that_update_and_do_not_send_gradients_are_refused(engine, few):
    with pytest.raises(ValueError, match="updates within its kernel"):
        ranks.train(Recipe(epochs=1, batch_size=128), few, engine, ranks=2, gpus=True)
