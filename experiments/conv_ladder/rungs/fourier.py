"""Fourier: spectra by cuFFT, a complex product of matrices for each frequency by cuBLAS, and back.

As many multiplications for a 7 x 7 kernel as for a 1 x 1: so it begins to pay where the kernel is large. Spectra are
what it pays with: `Prepared.workspace` is some five times the images.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from mlpkit import kernels

from . import Prepared, Rung
from .product import InOrder, by_value, product

FILE, THREADS, TILE = "conv_10_fourier", 256, 32
MOST = 2**31 - 2**16
FACTORS = (2, 3, 5, 7)  # cuFFT is fast for lengths that are products of these


def good(length):
    """Return the first number from `length` on that is a product of 2, 3, 5 and 7."""
    while True:
        rest = length
        for factor in FACTORS:
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1


def lengths(shape):
    """Return the rows and columns of the transforms: so many that what wraps around their border meets zeros."""
    sizes = zip((shape.height, shape.width), (shape.out_height, shape.out_width), strict=True)
    return tuple(good(max(h + shape.padding, (out - 1) * shape.stride + 1, shape.kernel)) for h, out in sizes)


def why_not(shape, which):
    """Return why these kernels can't, a sentence, or None."""
    down, across = lengths(shape)
    images = max(shape.batch * max(shape.channels, shape.channels_out), shape.channels * shape.channels_out)
    if images * down * across > MOST:
        return "these kernels count the numbers of a spectrum in 32 bits, and there are too many: take fewer images."
    return None


@dataclass
class Images:
    """Images (n, c, h, w) on their way to spectra or back: an array, its transforms, its spectra, and those turned.

    step, offset: where the transforms have the images' numbers: see the kernels.
    """

    shape: tuple[int, ...]
    lengths: tuple[int, int]
    step: int = 1
    offset: int = 0

    def __post_init__(self):
        import cupy

        (n, c), (down, across) = self.shape[:2], self.lengths
        self.transforms = cupy.empty((n * c, down, across), np.float32)
        self.spectra = cupy.empty((n * c, down, across // 2 + 1), np.complex64)
        self.matrices = cupy.empty((down * (across // 2 + 1), n, c), np.complex64)

    @property
    def nbytes(self):
        return self.transforms.nbytes + self.spectra.nbytes + self.matrices.nbytes

    def there(self, array, sign=1):
        """Return calls that make spectra of an array, frequency by frequency; sign -1: conjugates."""
        rows, columns = len(self.spectra), self.spectra[0].size
        return (
            self.launch("spread", self.transforms.size, array, self.transforms),
            transform(self.transforms, self.spectra, self.lengths),
            transpose(self.spectra, self.matrices, rows, columns, sign),
        )

    def back(self, array):
        """Return calls that make an array of the spectra."""
        rows, columns = self.spectra[0].size, len(self.spectra)
        scale = np.float32(1 / (self.lengths[0] * self.lengths[1]))
        return (
            transpose(self.matrices, self.spectra, rows, columns, 1),
            transform(self.spectra, self.transforms, self.lengths),
            self.launch("pick", array.size, self.transforms, array, scale),
        )

    def launch(self, name, threads, a, b, *more):
        n, c, h, w = self.shape
        sizes = by_value(n * c, h, w, *self.lengths, self.step, self.offset)
        kernel = kernels.load(FILE).get_function(name)
        return partial(kernel, (-(-threads // THREADS),), (THREADS,), (a, b, sizes, *more))


def prepare(shape, which, a, b):
    """Return the pass of a shape for float32 operands. See `Rung`. Raises ValueError for what `why_not` says no to."""
    import cupy

    if reason := why_not(shape, which):
        raise ValueError(reason)
    make = partial(Images, lengths=lengths(shape))
    x, y, w = make(shape.x), make(shape.y, step=shape.stride), make(shape.w)
    X, Y, W = x.matrices, y.matrices, w.matrices
    if which == "forward":
        y.offset = -shape.padding
        first, second, (left, right, to), made = x.there(a), w.there(b, -1), (X, W.transpose(0, 2, 1), Y), y
    elif which == "input_gradient":
        x.offset = shape.padding
        first, second, (left, right, to), made = y.there(a), w.there(b), (Y, W, X), x
    else:
        w.offset = -shape.padding
        first, second, (left, right, to), made = x.there(a), y.there(b, -1), (Y.transpose(0, 2, 1), X, W), w
    out = cupy.empty(made.shape, np.float32)
    calls = (*first, *second, product(left, right, to), *made.back(out))
    return Prepared(InOrder(*calls), lambda: out, x.nbytes + y.nbytes + w.nbytes, (a, b))


def transform(a, out, lengths):
    """Return a call that makes spectra out of transforms, or transforms out of spectra, which it may overwrite."""
    from cupy.cuda import cufft

    there = a.dtype == np.float32
    kind, direction = (cufft.CUFFT_R2C, cufft.CUFFT_FORWARD) if there else (cufft.CUFFT_C2R, cufft.CUFFT_INVERSE)
    lie = [part for array in (a, out) for part in (array.shape[1:], 1, array[0].size)]
    return partial(cufft.PlanNd(lengths, *lie, kind, len(a), "C", 1, lengths[-1]).fft, a, out, direction)


def transpose(a, out, rows, columns, sign):
    """Return a launch that turns a matrix of complex numbers over; sign -1: and takes their conjugates."""
    blocks = -(-rows // TILE) * -(-columns // TILE)
    arguments = (a, out, np.int32(rows), np.int32(columns), np.float32(sign))
    return partial(
        kernels.load(FILE).get_function("transpose"), (blocks,), (THREADS,), arguments, shared_mem=8 * TILE * (TILE + 1)
    )


RUNGS = {"fft": Rung("spectra, and products of them", (FILE,), "float32", "nchw", prepare, why_not)}
