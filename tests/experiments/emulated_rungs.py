"""Run the rungs that ask libraries for their products with no GPU: their kernels on the emulator, the rest by NumPy."""

import ctypes
import re
import sys
from functools import partial

import emulator
import numpy as np
import pytest
from conv_cases import error, operands, wanted

from experiments.conv_ladder.rungs import fourier, product, winograd
from mlpkit import kernels

KERNEL = re.compile(r'extern "C" __global__[^{;]*?\b(\w+)\([^()]*\)\n\{')


class Module:
    """A kernel file for the emulator, all of its kernels compiled at once, as `kernels.load` returns it."""

    def __init__(self, folder, name, **macros):
        source = kernels.source(name)
        found = KERNEL.findall(source)
        definitions = [f"-D{macro}={value}" for macro, value in macros.items()]
        self.library = emulator.compiled(name, folder, source, *definitions, kernel=found)

    def get_function(self, name):
        return Kernel(self.library[f"emulate_{name}"])


class Kernel:
    """A kernel of such a file: call it as CuPy's, with structs given as arrays of one item."""

    max_dynamic_shared_size_bytes = 48 << 10  # until somebody asks for more

    def __init__(self, function):
        self.function = function
        function.restype = ctypes.c_char_p
        function.argtypes = emulated_types()

    def __call__(self, grid, block, arguments, shared_mem=0):
        assert shared_mem <= max(self.max_dynamic_shared_size_bytes, 48 << 10)
        values = [each.reshape(()) if each.dtype.kind == "V" else each for each in map(np.asanyarray, arguments)]
        values = [np.array(each.data.ptr if isinstance(each, emulator.Array) else each) for each in values]
        places = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        sizes = (ctypes.c_size_t * len(values))(*(value.nbytes for value in values))
        if failure := self.function(places, sizes, len(values), *grid, *block, shared_mem, 0):
            raise emulator.Failed(failure.decode())


def emulated_types():
    """Return the types of the arguments of a launch."""
    size = ctypes.c_size_t
    return [ctypes.c_void_p, ctypes.POINTER(size), size, ctypes.c_int, ctypes.c_int, size, ctypes.c_uint]


@pytest.fixture
def cupy(folder, monkeypatch):
    """Put NumPy in the place of CuPy, cuBLAS and cuFFT, and the emulator in that of the GPU."""
    fake = emulator._cupy(folder, 0)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(kernels, "load", partial(Module, folder))
    for module in (product, winograd, fourier):
        monkeypatch.setattr(module, "product", multiply)
    monkeypatch.setattr(fourier, "transform", transform)
    return fake


def multiply(a, b, out, precision=None):
    """Do what `product.product` does."""

    def call():
        out[...] = np.matmul(a, b)

    return call


def transform(a, out, lengths):
    """Do what `fourier.transform` does: cuFFT's way back is not divided by the number of places."""

    def call():
        out[...] = np.fft.rfft2(a) if a.dtype == np.float32 else np.fft.irfft2(a, lengths) * np.prod(lengths)

    return call


def error_of(rung, shape, which, cupy):
    """Return how far off a rung's pass is, on the emulator, from float64."""
    a, b = operands(shape, which)
    prepared = rung.prepare(shape, which, *map(cupy.ascontiguousarray, (a, b)))
    prepared.call()
    return error(np.asarray(prepared.result()), wanted(shape, which, a, b))
