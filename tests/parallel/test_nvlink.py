"""All-reduce by a kernel of our own: on a CPU here, where the other GPU is a mirror that sends what this one does."""

import ctypes
import itertools
import sys
from threading import Barrier, Lock, Thread
from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from test_emulated import needs_compiler

from mlpkit import kernels
from mlpkit.kernels.cnn.updates import Update
from mlpkit.kernels.ranks import argument, struct
from mlpkit.parallel.nvlink import LEAST_EARLY, early_of
from mlpkit.parallel.ring import RankLost


class Mirror:
    """One of two GPUs: what it writes to the other one's arrays comes to its own, as if that had sent the same."""

    ranks = 2

    def __init__(self, rank):
        self.rank = rank

    def addresses(self, array):
        """Return where both ranks' arrays seem to lie: of rows a rank; or of mailboxes or times, (2, ranks, ...)."""
        row = array.nbytes // (2 if array.ndim == 2 or array.size == 2 else 4)
        return (array.ctypes.data + row * (1 - 2 * self.rank) * (np.arange(2) != self.rank)).astype(np.uint64)


def reduction(folder, rank, vector, patch, blocks=3):
    """Return a reduction whose kernel runs on a GPU of three multiprocessors, and whose copies are done at once."""
    nvlink = prepared(patch, blocks)
    network = SimpleNamespace(engine=sys.modules["cupy"], dtype=vector.dtype, grad=vector, n_weights=len(vector) - 9)
    return nvlink.NvlinkReduction(Mirror(rank), network)


def prepared(patch, blocks=3):
    """Return the module `nvlink`, for such GPUs."""
    cupy = sys.modules["cupy"]
    patch.setitem(emulator.H100, "MultiProcessorCount", blocks)
    about = dict(attributes=emulator.H100, compute_capability="90", synchronize=lambda: None)
    cupy.cuda.Device = lambda: SimpleNamespace(**about)
    cupy.cuda.runtime.memcpyAsync = lambda to, of, size, *_: ctypes.memmove(to, of, size)
    return emulator.own("parallel.nvlink")


def random(n):
    return np.random.default_rng(n).normal(size=n).astype(np.float32).view(emulator.Array)


@needs_compiler
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("n", [5, 6001])
def test_messages_are_added_up_with_their_weights(n, rank, folder, monkeypatch):
    """Of a mirror they are this GPU's own, with its own weight."""
    with emulator.with_cupy(folder):
        vector = random(n)
        reduces = reduction(folder, rank, vector, monkeypatch)
        for sizes in ((1, 1), (3, 1)):
            vector[:] = random(n)
            reduces.weigh(sizes)
            reduces(vector)
            part = np.float32(sizes[rank] / sum(sizes)) * random(n)
            np.testing.assert_array_equal(vector, part + part)
        reduces.check(wait=True)


@needs_compiler
@pytest.mark.parametrize("early", [4, 1025])
def test_what_comes_early_is_added_up_once(early, folder, monkeypatch):
    n = LEAST_EARLY + 1100
    with emulator.with_cupy(folder):
        vector = random(n)
        reduces = reduction(folder, 0, vector, monkeypatch)
        reduces.weigh((3, 1))
        first, last = -(-early // 4) * 4, (n - 9) // 4 * 4
        for _ in range(3):
            vector[:] = random(n)
            reduces.begin(vector[early:])
            reduces(vector)
            one, other = (np.float32(weight) * random(n) for weight in (0.75, 0.25))
            np.testing.assert_array_equal(vector[first:last], (one + other)[first:last])
            np.testing.assert_array_equal(vector[last:], (one + one)[last:])
            np.testing.assert_array_equal(vector[:first], (one + one)[:first])
        reduces.begin(vector[n - 100 :])  # too little
        assert reduces.early == slice(0, 0)
        monkeypatch.setitem(type(reduces).begin.__globals__, "MOST_EARLY", LEAST_EARLY)
        reduces.begin(vector[early:])  # too much
        assert reduces.early == slice(0, 0)


class Together:
    """One of several GPUs that all are here, each in a thread: `arrays` has what each has asked about, in turn."""

    def __init__(self, rank, arrays, barrier):
        self.rank, self.ranks, self.arrays, self.barrier = rank, len(arrays), arrays, barrier

    def addresses(self, array):
        """Return where the arrays of all lie."""
        self.arrays[self.rank].append(array)
        self.barrier.wait()
        turn = len(self.arrays[self.rank]) - 1
        return np.array([each[turn].ctypes.data for each in self.arrays], np.uint64)


@needs_compiler
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_goes_early_comes_to_all_others_who_are_told_so(ranks, folder, monkeypatch):
    n, arrays, barrier, lock = LEAST_EARLY + 1100, [[] for _ in range(ranks)], Barrier(ranks), Lock()
    vectors, wrong = [random(n + rank)[rank:] for rank in range(ranks)], []

    def run(rank):
        try:
            reduces = made(vectors[rank], Together(rank, arrays, barrier))
            for step in (1, 2, 3):
                reduces.number[0] = step
                reduces.begin(vectors[rank][5:])
                barrier.wait()
                first, last = reduces.early.start, reduces.early.stop
                assert (first, last) == (8, (n - 9) // 4 * 4)
                share = -(-(last - first) // (4 * ranks)) * 4
                own = (
                    slice(first, last)
                    if ranks == 2
                    else slice(first + rank * share, min(first + (rank + 1) * share, last))
                )
                for other in {*range(ranks)} - {rank}:
                    came = reduces.came[step % 2, other, : own.stop - own.start]
                    np.testing.assert_array_equal(came, vectors[other][own])
                    assert reduces.arrived[other] == step
                barrier.wait()
                vectors[rank] += 1
        except BaseException as error:
            wrong.append(error)
            barrier.abort()

    def locked(*arguments, call=emulator._Kernel.__call__, **options):
        with lock:  # the emulator runs one kernel at a time
            call(*arguments, **options)

    with emulator.with_cupy(folder):
        nvlink = prepared(monkeypatch)
        monkeypatch.setattr(emulator._Kernel, "__call__", locked)
        monkeypatch.setattr(nvlink.NvlinkReduction, "try_all", lambda self: None)

        def made(vector, communicator):
            network = SimpleNamespace(engine=sys.modules["cupy"], dtype=vector.dtype, grad=vector, n_weights=n - 9)
            with lock:
                kernels.load("all_reduce", RANKS=ranks)
            return nvlink.NvlinkReduction(communicator, network)

        threads = [Thread(target=run, args=(rank,)) for rank in range(ranks)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    if wrong:
        raise wrong[0]


TOGETHER = """
#undef blockIdx
#undef gridDim
#define EACH (blocks.size() / RANKS)
#define blockIdx (Index{(unsigned)(current->block %% EACH)})
#define gridDim (Index{(unsigned)EACH})
%s
extern "C" __global__ void together(int n, Early early, const float* weights, Word* times, Word64* failure,
                                    Ranks ranks, Update u) {
    const int rank = ranks.rank = current->block / EACH;
    u.theta += rank * n, u.grad += rank * n, u.m += rank * n, u.v += rank * n;
    early.came += rank * RANKS * early.row, early.number += rank, early.vector += rank * n;
    reduce<KIND>(early.vector, n, early, weights, times + 2 * rank * EACH, failure, ranks, u);
}
"""


@needs_compiler
@pytest.mark.parametrize(("ranks", "two_steps"), [(2, 0), (2, 1), (3, 1), (4, 0), (4, 1), (8, 1)])
@pytest.mark.parametrize(("early", "updates"), [(0, 0), (0, 2), (11_004, 0), (11_004, 1), (11_004, 2)])
def test_several_gpus_tell_each_other_what_is_left_and_the_sums_and_may_take_a_step(
    ranks, two_steps, early, updates, folder
):
    """All blocks of all GPUs are those of one launch. What goes early has come already."""
    n, first, blocks, threads = 13_000, 1004, 2, 512
    source = TOGETHER % kernels.source("all_reduce").replace(emulator.SHARED_MEMORY, "")
    vectors = array(np.random.default_rng(0).normal(size=(ranks, n)))
    weights = array(np.arange(1, ranks + 1) / sum(range(1, ranks + 1)))
    times, failure = (
        np.zeros(size, kind).view(emulator.Array) for size, kind in ((2 * ranks * blocks, "u4"), (1, "u8"))
    )
    boxes = [np.zeros(2 * ranks * n, np.uint64) for _ in range(ranks)]
    among, about = struct(ranks), early_of(ranks)
    among["boxes"], among["slots"] = [box.ctypes.data for box in boxes], n
    share = -(-early // (4 * ranks)) * 4 if two_steps else early
    came, acked = array(np.full((ranks, ranks, share), np.nan)), np.zeros((ranks, ranks), np.uint32)
    sums = array(np.full((ranks, 2, ranks, share), -0.0))
    for of, to in itertools.permutations(range(ranks), 2):
        sent = vectors[of, first : first + early][share * to * two_steps :][:share]
        came[to, of, : len(sent)] = sent
    arrived, number = np.full(ranks, 9, np.uint32), np.ones(ranks, np.uint32)  # some are a step ahead
    of_all = ([row.ctypes.data for row in rows] for rows in (sums, acked))
    about[0] = *of_all, *(each.ctypes.data for each in (vectors, came, arrived, number)), share, first, early
    rate, t = array([0.25]), array([1])
    for seed in range(2):
        file = emulator.File(folder, seed, "together", source, RANKS=ranks, TWO_STEPS=two_steps, KIND=updates)
        before, wanted = vectors.copy(), np.zeros(n, np.float32)
        for rank in range(ranks):
            wanted += weights[rank] * vectors[rank]
        theta, m, v = (array(np.ones((ranks, n))) for _ in range(3))
        of_adam = (m, v, t, 0.9, 0.99, 1e-8) if updates == 2 else ()
        step = Update(theta, vectors, rate, *of_adam)
        arguments = np.int32(n), argument(about), weights, times, failure, argument(among), step.argument()
        file.get_function("together")((ranks * blocks,), (threads,), arguments, shared_mem=1024)
        if updates:
            np.testing.assert_array_equal(theta, np.broadcast_to(theta[0], theta.shape))
            of_m, of_v = 0.9 + 0.1 * wanted, 0.99 + 0.01 * wanted**2  # Adam's averages
            changed = wanted if updates == 1 else 10 * of_m / np.sqrt(100 * of_v)
            np.testing.assert_allclose(theta[0], 1 - rate * changed, rtol=1e-5)
        else:
            np.testing.assert_array_equal(vectors, np.broadcast_to(wanted, vectors.shape))
        assert (number == seed + 2).all() or not early
        assert np.signbit(sums).all()  # again
        vectors[:] = before
    assert not failure[0]


def array(values):
    return np.asarray(values, np.float32).view(emulator.Array)


@needs_compiler
def test_a_step_that_others_do_not_take_is_not_added_up(folder, monkeypatch):
    with emulator.with_cupy(folder):
        vector = random(70_000)
        reduces = reduction(folder, 0, vector, monkeypatch)
        vector[:] = random(70_000)
        with reduces.apart():
            reduces.begin(vector)
            reduces(vector)
        np.testing.assert_array_equal(vector, random(70_000))


@needs_compiler
def test_after_an_odd_number_of_steps_all_meet_at_the_end_of_a_graph(folder, monkeypatch):
    """The next graph begins with the place that this one's last step has used, which others may still read."""
    with emulator.with_cupy(folder):
        vector = random(70_000)
        reduces = reduction(folder, 0, vector, monkeypatch)
        for steps in (1, 2, 3, 4):
            before = reduces.times[0, 0]
            for _ in range(steps):
                reduces.begin(vector)
                reduces(vector)
            reduces.join()
            assert reduces.times[0, 0] - before == steps + steps % 2
            assert reduces.begun == 0
        assert reduces.times[1, 0] == reduces.number[0] - 1 == 10


@needs_compiler
def test_a_gpu_that_was_waited_for_in_vain_is_told(folder, monkeypatch):
    with emulator.with_cupy(folder):
        reduces = reduction(folder, 0, random(8), monkeypatch)
        losses = np.ones(3)
        reduces.mark(losses)
        assert (losses == 1).all()
        reduces.failed[0] = 1 << 48
        with np.errstate(divide="ignore"):
            reduces.mark(losses)  # so that no checkpoint is written
        assert np.isinf(losses).all()
        with pytest.raises(RankLost, match=r"^another GPU did not come to add up gradients: resume the training\.$"):
            reduces.check(wait=True)
