"""All-reduce by a kernel of our own: on a CPU here, where the other GPU is a mirror that sends what this one does."""

import ctypes
import sys
from threading import Barrier, Lock, Thread
from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from test_emulated import needs_compiler

from mlpkit import kernels
from mlpkit.kernels.ranks import argument, struct
from mlpkit.parallel.nvlink import LEAST_EARLY
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
    cupy.cuda.Device = lambda: SimpleNamespace(attributes=emulator.H100, synchronize=lambda: None)
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
def test_all_gpus_have_the_sums_in_the_order_of_the_ranks(ranks, folder, monkeypatch):
    n, arrays, barrier, lock = LEAST_EARLY + 1100, [[] for _ in range(ranks)], Barrier(ranks), Lock()
    vectors = [
        np.random.default_rng(rank).normal(size=n).astype(np.float32).view(emulator.Array) for rank in range(ranks)
    ]
    firsts, sums, wrong = [vector.copy() for vector in vectors], np.zeros(n, np.float32), []
    for vector in firsts:
        sums += np.float32(1 / ranks) * vector

    def run(rank):
        try:
            reduces = made(vectors[rank], Together(rank, arrays, barrier))
            for _ in range(2):
                vectors[rank][:] = firsts[rank]
                reduces.begin(vectors[rank][5:])
                barrier.wait()
                first, last = 8, (n - 9) // 4 * 4
                np.testing.assert_array_equal(vectors[rank][first:last], sums[first:last])
                np.testing.assert_array_equal(vectors[rank][:first], firsts[rank][:first])
                np.testing.assert_array_equal(vectors[rank][last:], firsts[rank][last:])
        except BaseException as error:
            wrong.append(error)
            barrier.abort()

    def locked(*arguments, call=emulator._Kernel.__call__, **options):
        with lock:  # the emulator runs one kernel at a time
            call(*arguments, **options)

    with emulator.with_cupy(folder):
        nvlink = prepared(monkeypatch)
        monkeypatch.setattr(emulator._Kernel, "__call__", locked)
        monkeypatch.setattr(nvlink.NvlinkReduction, "__call__", lambda self, grad: None)
        monkeypatch.setattr(nvlink.NvlinkReduction, "meet", lambda self: barrier.wait())

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
extern "C" __global__ void together(float* vectors, int n, int first, int early, const float* weights, Word* times,
                                    Word64* failure, Ranks ranks) {
    ranks.rank = current->block / EACH;
    all_reduce(vectors + ranks.rank * n, n, first, early, weights, times + ranks.rank * EACH, failure, ranks);
}
"""


@needs_compiler
@pytest.mark.parametrize(("ranks", "two_steps"), [(2, 0), (2, 1), (3, 1), (4, 0), (4, 1), (8, 1)])
def test_several_gpus_send_each_other_what_is_left(ranks, two_steps, folder):
    """All blocks of all GPUs are those of one launch."""
    n, first, early, blocks = 3001, 1004, 900, 2
    source = TOGETHER % kernels.source("all_reduce").replace(emulator.SHARED_MEMORY, "")
    vectors = np.random.default_rng(0).normal(size=(ranks, n)).astype(np.float32).view(emulator.Array)
    weights = (np.arange(1, ranks + 1) / sum(range(1, ranks + 1))).astype(np.float32).view(emulator.Array)
    times, failure = (np.zeros(size, kind).view(emulator.Array) for size, kind in ((ranks * blocks, "u4"), (1, "u8")))
    boxes = [np.zeros(2 * ranks * n, np.uint64) for _ in range(ranks)]
    among = struct(ranks)
    among["boxes"], among["slots"] = [box.ctypes.data for box in boxes], n
    for seed in range(3):
        file = emulator.File(folder, seed, "together", source, RANKS=ranks, TWO_STEPS=two_steps)
        before, wanted = vectors.copy(), np.zeros(n, np.float32)
        for rank in range(ranks):
            wanted += weights[rank] * vectors[rank]
        sizes = map(np.int32, (n, first, early))
        arguments = vectors, *sizes, weights, times, failure, argument(among)
        file.get_function("together")((ranks * blocks,), (64,), arguments, shared_mem=1024)
        for rank in range(ranks):
            np.testing.assert_array_equal(vectors[rank, :first], wanted[:first])
            np.testing.assert_array_equal(vectors[rank, first + early :], wanted[first + early :])
            kept = slice(first, first + early)
            np.testing.assert_array_equal(vectors[rank, kept], before[rank, kept])
        vectors[:] = before + vectors * np.arange(1, ranks + 1, dtype=np.float32)[:, None]
    assert not failure[0]


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
def test_a_gpu_that_was_waited_for_in_vain_is_told(folder, monkeypatch):
    with emulator.with_cupy(folder):
        reduces = reduction(folder, 0, random(8), monkeypatch)
        reduces.failed[0] = 1 << 48
        with pytest.raises(RankLost, match=r"^another GPU did not come to add up gradients: resume the training\.$"):
            reduces.check(wait=True)
