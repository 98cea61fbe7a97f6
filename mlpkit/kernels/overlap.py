"""Launch a kernel that begins before the one before it on its stream has ended: NVIDIA's "programmatic" launch.

Its blocks take their places as soon as there is room, and do what needs nobody's results, such as to fetch weights.
Then they wait until what was asked for before is done: such a kernel has to say `griddepcontrol_wait()` before it reads
or writes what others do; see `ptx.cuh`. A graph records it. CuPy has no word for it.
"""

import threading
from contextlib import contextmanager
from functools import cached_property

from . import gpu
from .compiling import rehearsing
from .driver import Arguments, call, cuda

_ID = cuda.CUlaunchAttributeID
SERIALIZATION = _ID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, "programmaticStreamSerializationAllowed"
COOPERATIVE = _ID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, "cooperative"


def is_possible():
    """Return whether the GPU can do that: it is Hopper, or newer."""
    return gpu.capability() >= 90


class Overlapping:
    """A kernel of CuPy's, to be called as that is; arguments are arrays, CuPy's, or numbers and structs of NumPy's.

    together: whether its blocks wait for each other: then all of them run at once, or the driver refuses.
    """

    def __init__(self, kernel, together=False):
        self.kernel = kernel
        self.attributes = [_attribute(*what) for what in (SERIALIZATION, COOPERATIVE)[: 1 + together]]

    @cached_property
    def function(self):
        return cuda.CUfunction(self.kernel.kernel.ptr)

    def __call__(self, grid, block, arguments, shared_mem=0):
        """Ask for the kernel on the current stream. Raises RuntimeError where the driver refuses."""
        import cupy

        if rehearsing():
            self.kernel(grid, block, arguments)
            return
        config = cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.sharedMemBytes, config.hStream = shared_mem, cuda.CUstream(cupy.cuda.get_current_stream().ptr)
        config.attrs, config.numAttrs = self.attributes, len(self.attributes)
        given = Arguments(arguments)
        call(cuda.cuLaunchKernelEx, config, self.function, given.address, 0)


class InTurn:
    """A kernel that calls `begin_in_turn()`, before which it reads only what was there when the kernel ahead began.

    Where steps are `recording`, it overlaps with those before it.
    """

    def __init__(self, kernel):
        self.kernel = kernel
        kernel.preferred_shared_memory_carveout = 100  # a multiprocessor that is divided anew has to be empty

    def __call__(self, grid, block, arguments, shared_mem=0, enable_cooperative_groups=False):
        if getattr(_here, "recording", False) and is_possible() and _behind_kernels():
            Overlapping(self.kernel, enable_cooperative_groups)(grid, block, arguments, shared_mem)
        else:
            options = {"enable_cooperative_groups": True} if enable_cooperative_groups else {}
            self.kernel(grid, block, arguments, shared_mem=shared_mem, **options)


_here = threading.local()  # `recording`: whether this thread does


@contextmanager
def recording():
    """Return a context in which this thread's current stream is captured, and kernels begin in turn."""
    _here.recording = True
    try:
        yield
    finally:
        _here.recording = False


@contextmanager
def apart():
    """Return a context in which kernels begin when those before them have ended, even where steps are `recording`."""
    before, _here.recording = getattr(_here, "recording", False), False
    try:
        yield
    finally:
        _here.recording = before


def _behind_kernels():
    """Return whether what is asked for next, while the current stream is captured, depends on kernels alone."""
    import cupy

    stream = cuda.CUstream(cupy.cuda.get_current_stream().ptr)
    ask = getattr(cuda, "cuStreamGetCaptureInfo_v3", cuda.cuStreamGetCaptureInfo)  # one of both, by CUDA's version
    try:
        _, _, _, nodes, *_ = call(ask, stream)
    except RuntimeError:  # a driver from before CUDA 12.3 has neither
        return False
    types = [call(cuda.cuGraphNodeGetType, node)[0] for node in nodes]
    return types != [] and all(each == cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL for each in types)


def _attribute(which, name):
    found = cuda.CUlaunchAttribute()
    found.id = which
    setattr(found.value, name, 1)
    return found
