"""The ranks of several GPUs: they add up their vectors on the stream that computes, so a recorded step has it in it.

NCCL does it; or, where each GPU reaches all others' memory, kernels of our own: see `nvlink`. One process a GPU: CUDA
refuses a graph that one process captures for several devices.
"""

import ctypes
import os
from contextlib import suppress
from importlib.util import find_spec

import numpy as np

from mlpkit.kernels import gpu

from .nvlink import NvlinkReduction
from .shares import Reduction

TYPES = {np.dtype(np.float32): "NCCL_FLOAT32", np.dtype(np.float64): "NCCL_FLOAT64"}


def check(count):
    """Return what lets so many ranks find each other. Raises ValueError where there are fewer GPUs, or no NCCL."""
    if gpu.count() < count:
        raise ValueError(f"{count} GPUs are asked for, and this machine has {gpu.count()}: take as many.")
    try:
        return nccl().get_unique_id()
    except (ImportError, OSError) as error:
        raise ValueError(
            f"GPUs add up their gradients by NCCL, which is missing ({error}): pip install nvidia-nccl-cu12."
        ) from error


def nccl():
    """Return CuPy's module of NCCL, the library being a system's, or that of a wheel. Raises ImportError or OSError."""
    with suppress(ModuleNotFoundError):
        for place in getattr(find_spec("nvidia.nccl"), "submodule_search_locations", None) or ():
            ctypes.CDLL(f"{place}/lib/libnccl.so.2", mode=ctypes.RTLD_GLOBAL)  # CuPy finds it then
    from cupy.cuda import nccl

    return nccl


def take(rank):
    """Compute on the GPU of a rank's number from here on; all are visible, since NCCL copies from one to another."""
    import cupy as cp

    cp.cuda.Device(rank).use()


class Nccl:
    """The ranks, each with a GPU of its own, the one that is current."""

    def __init__(self, rank, ranks, identifier):
        os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")  # connections are made now, not while a graph is recorded
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast, which few messages of this size would gain by
        self.nccl, self.rank, self.ranks = nccl(), rank, ranks
        self.communicator = self.nccl.NcclCommunicator(ranks, identifier, rank)
        self.Reduction, self.opened = NvlinkReduction if all_reach_all(ranks) else Reduction, []

    def sum(self, vector):
        """Add the vectors of all ranks, in place. vector (n,): CuPy's, contiguous, or NumPy's, which is copied."""
        import cupy as cp

        there = cp.asarray(vector)
        stream, kind = cp.cuda.get_current_stream().ptr, getattr(self.nccl, TYPES[there.dtype])
        self.communicator.allReduce(there.data.ptr, there.data.ptr, there.size, kind, self.nccl.NCCL_SUM, stream)
        if there is not vector and isinstance(vector, np.ndarray):
            vector[:] = there.get()

    def addresses(self, array):
        """Return where the arrays of all ranks lie that this one corresponds to, as this GPU reaches them: (ranks,).

        Raises CuPy's CUDARuntimeError where the system does not let processes share a GPU's memory.
        """
        import cupy as cp

        from mlpkit.kernels.driver import call, cuda

        base = int(call(cuda.cuMemGetAddressRange, cuda.CUdeviceptr(array.data.ptr))[0])
        handle = np.frombuffer(cp.cuda.runtime.ipcGetMemHandle(base), np.uint8)
        told = cp.asarray(np.concatenate([handle, np.array([array.data.ptr - base]).view(np.uint8)]))
        found, stream = cp.empty((self.ranks, told.size), np.uint8), cp.cuda.get_current_stream()
        self.communicator.allGather(told.data.ptr, found.data.ptr, told.size, self.nccl.NCCL_UINT8, stream.ptr)
        found_at = []
        for rank, row in enumerate(found.get()):
            if rank == self.rank:
                found_at.append(array.data.ptr)
            else:
                self.opened.append(cp.cuda.runtime.ipcOpenMemHandle(row[: len(handle)].tobytes()))
                found_at.append(self.opened[-1] + int(row[len(handle) :].view(np.int64)[0]))
        return np.array(found_at, np.uint64)

    def close(self):
        """Leave the others."""
        import cupy as cp

        cp.cuda.Device().synchronize()
        for place in self.opened:
            cp.cuda.runtime.ipcCloseMemHandle(place)
        self.communicator.destroy()


def all_reach_all(ranks):
    """Return whether each of the first GPUs can reach the memory of all others."""
    import cupy as cp

    pairs = ((a, b) for a in range(ranks) for b in range(ranks) if a != b)
    return all(cp.cuda.runtime.deviceCanAccessPeer(a, b) for a, b in pairs)
