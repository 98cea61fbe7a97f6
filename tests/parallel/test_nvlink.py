"""All-reduce by a kernel of our own: on a CPU, where each GPU's part is done with a mirror of the other's."""

from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from test_emulated import needs_compiler

from mlpkit.parallel.nvlink import LEAST_EARLY
from mlpkit.parallel.ring import RankLost


class Two:
    """One of two GPUs, whose vectors are both here; whatever this one says, the other one seems to say, too."""

    ranks = 2

    def __init__(self, rank, vectors):
        self.rank, self.vectors = rank, vectors

    def addresses(self, array):
        """Return where the vectors are, or flags (2, ranks, blocks) that are those of both."""
        for vector in self.vectors:
            if array.ctypes.data == vector.ctypes.data:
                return np.array([each.ctypes.data for each in self.vectors], np.uint64)
        places, apart = np.array([array.ctypes.data] * 2), array.nbytes // 4
        places[1 - self.rank] += apart if self.rank == 0 else -apart
        return places.astype(np.uint64)


class Network:
    """What a reduction asks of a network."""

    def __init__(self, cupy, grad, n_weights):
        self.engine, self.dtype, self.grad, self.n_weights = cupy, grad.dtype, grad, n_weights


def summed(monkeypatch, folder, n, sizes, early=None):
    """Return what both GPUs have in the end, and the weighted sum of what they had. early: the first of a part."""
    with emulator.with_cupy(folder) as _, monkeypatch.context() as patch:
        cupy = __import__("cupy")
        cupy.cuda.Device = lambda: SimpleNamespace(attributes=emulator.H100, synchronize=lambda: None)
        patch.setitem(emulator.H100, "MultiProcessorCount", 3)
        nvlink = emulator.own("parallel.nvlink")
        nvlink.EARLY_BLOCKS = 2
        nvlink.NvlinkReduction.__call__, call = lambda *_: None, nvlink.NvlinkReduction.__call__
        rng = np.random.default_rng(n)
        vectors = [rng.normal(size=n).astype(np.float32).view(emulator.Array) for _ in range(2)]
        had, weights = [vector.copy() for vector in vectors], np.array(sizes, np.float32) / np.float32(sum(sizes))
        for rank in range(2):
            reduction = nvlink.NvlinkReduction(Two(rank, vectors), Network(cupy, vectors[rank], n - 9))
            reduction.weigh(sizes)
            if early is not None:
                reduction.begin(vectors[rank][early:])
            call(reduction, vectors[rank])
            reduction.check(wait=True)
        return vectors, np.float32(weights[0] * had[0]) + np.float32(weights[1] * had[1]), reduction


@needs_compiler
@pytest.mark.parametrize(("n", "sizes"), [(5, (1, 1)), (6001, (3, 2)), (20_000, (1, 0))])
def test_each_gpu_has_the_weighted_sum_of_both(n, sizes, folder, monkeypatch):
    found, wanted, _ = summed(monkeypatch, folder, n, sizes)
    for each in found:
        np.testing.assert_array_equal(each, wanted)


@needs_compiler
def test_a_gpu_that_was_waited_for_in_vain_is_named(folder, monkeypatch):
    reduction = summed(monkeypatch, folder, 8, (1, 1))[2]
    reduction.failed[0] = 2
    with pytest.raises(RankLost, match=r"^rank 1 did not come to add up gradients: resume the training\.$"):
        reduction.check()


@needs_compiler
@pytest.mark.parametrize("early", [4, 1025])
def test_what_is_there_early_is_summed_up_once(early, folder, monkeypatch):
    found, wanted, _ = summed(monkeypatch, folder, LEAST_EARLY + 1100, (2, 1), early)
    for each in found:
        np.testing.assert_array_equal(each, wanted)
