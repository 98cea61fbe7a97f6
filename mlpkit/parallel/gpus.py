"""The ranks of several GPUs: NCCL adds up their vectors, on the stream that computes, so a recorded step has it in it.

One process a GPU: a graph that is captured by one process for several devices is refused by CUDA.
"""

import ctypes
from contextlib import suppress
from importlib.util import find_spec

import numpy as np

from mlpkit.kernels import gpu

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
        self.nccl, self.rank, self.ranks = nccl(), rank, ranks
        self.communicator = self.nccl.NcclCommunicator(ranks, identifier, rank)

    def sum(self, vector):
        """Add the vectors of all ranks, in place. vector (n,): CuPy's, contiguous, or NumPy's, which is copied."""
        import cupy as cp

        there = cp.asarray(vector)
        stream, kind = cp.cuda.get_current_stream().ptr, getattr(self.nccl, TYPES[there.dtype])
        self.communicator.allReduce(there.data.ptr, there.data.ptr, there.size, kind, self.nccl.NCCL_SUM, stream)
        if there is not vector and isinstance(vector, np.ndarray):
            vector[:] = there.get()

    def close(self):
        """Leave the others."""
        self.communicator.destroy()
