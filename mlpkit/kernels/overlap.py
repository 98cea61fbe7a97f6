"""Launch a kernel that begins before the one before it on its stream has ended: NVIDIA's "programmatic" launch.

Its blocks take their places as soon as there is room, and do what needs nobody's results, such as to fetch weights.
Then they wait until what was asked for before is done: such a kernel has to say `griddepcontrol_wait()` before it reads
or writes what others do; see `ptx.cuh`. A graph records it. CuPy has no word for it.
"""

import ctypes

import numpy as np

from . import driver

COOPERATIVE, SERIALIZATION = 2, 6  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE, and _PROGRAMMATIC_STREAM_SERIALIZATION


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_uint32), ("padding", ctypes.c_uint32), ("value", ctypes.c_int32 * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint32),
    )


class Overlapping:
    """A kernel of CuPy's, to be called as that is; arguments are arrays, CuPy's, or numbers and structs of NumPy's.

    together: whether its blocks wait for each other: then all of them run at once, or the driver refuses.
    """

    def __init__(self, kernel, together=False):
        self.kernel, self.function = kernel, ctypes.c_void_p(kernel.kernel.ptr)
        names = [SERIALIZATION, COOPERATIVE][: 1 + together]
        self.attributes = (Attribute * len(names))(*(Attribute(name, 0, (ctypes.c_int32 * 16)(1)) for name in names))

    def __call__(self, grid, block, arguments, shared_mem=0):
        """Ask for the kernel on the current stream. Raises RuntimeError where the driver refuses."""
        import cupy

        values = [np.array(each.data.ptr if isinstance(each, cupy.ndarray) else each) for each in arguments]
        places = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        three = ctypes.c_uint32 * 3
        sizes = three(*grid, *[1] * (3 - len(grid))), three(*block, *[1] * (3 - len(block)))
        stream = cupy.cuda.get_current_stream().ptr
        config = Config(*sizes, shared_mem, stream, self.attributes, len(self.attributes))
        if status := driver.load().cuLaunchKernelEx(ctypes.byref(config), self.function, places, None):
            raise RuntimeError(f"the driver launches no such kernel: CUDA error {status}.")
