"""A kernel's launch, made ready once: its arguments are turned into C's before, and not again at each call."""

import cupy as cp

from mlpkit.kernels import driver
from mlpkit.kernels.driver import Arguments, cuda


def ready(kernel, blocks, threads, arguments):
    """Return a function that launches a kernel, a `cupy.RawKernel`, on the stream of now.

    blocks, threads: how many, and in each block. arguments: see `driver.Arguments`. It raises RuntimeError where the
    driver refuses.
    """
    given, stream = Arguments(arguments), cuda.CUstream(cp.cuda.get_current_stream().ptr)
    sizes = blocks, 1, 1, threads, 1, 1, 0
    launch, of = cuda.cuLaunchKernel, (cuda.CUfunction(kernel.kernel.ptr), *sizes, stream, given.address, 0)

    def run(_kept=(kernel, given)):  # C knows addresses only
        if launch(*of)[0]:
            driver.call(launch, *of)

    return run
