"""NumPy, products of spectra: a convolution becomes one small matrix product for each frequency.

The discrete Fourier transform of a sum of shifted images is the sum of their spectra, each multiplied by a number of
modulus 1 a frequency. So all k * k taps of a kernel become one factor, the kernel's own spectrum, whatever k is. With
X, Z and K for the spectra of the image, the output and the kernel, and * for the conjugate, at every frequency by
itself:

    Z = K* X        sum over the channels in          z[i] = sum(W[p] x[i + p])
    dK = dZ* X      sum over the images               dW[p] = sum(dz[i] x[i + p])
    dX = K dZ       sum over the channels out         dx[j] = sum(W[p] dz[j - p])

The transform is as long as the padded image, so that what wraps around its border is never kept. Real numbers need only
half of the frequencies. See Mathieu, Henaff and LeCun (2014).

A stride is no friend of it: the spectrum has every output, wanted or not. Dealt into phases (see `images.pieces`) the
images are stride * stride smaller ones, whose spectra are added up: the transforms back are of the size that is wanted,
but the products are as many as with a stride of 1, where every direct way does stride * stride fewer.

Float32 is transformed in float32. A kernel's spectrum is as large as an image's, so the kernels come in pieces, too,
and the images are transformed again for each.

Workspace: 20 MiB, or 16 images where that is more, and 2 copies of the kernels.
"""

import numpy as np

from .images.pieces import PIECE_BYTES, clear, join, pieces, places, product, put_bias_gradient, split, with_bias
from .numpy_baseline import *

OWN = ("conv", "conv_backward_weights", "conv_backward_input")


def conv(x, W, b, stride, padding):
    (n, c), (c_out, _, k, _), (h, w) = x.shape[:2], W.shape, places(x.shape, W.shape[-1], stride, padding)
    plan = _Plan(h, w, k, stride, x.itemsize)
    z = np.empty((n, c_out, h, w), x.dtype)
    for some, images in plan.pieces(c_out, n, c * stride * stride):
        K = plan.of_kernels(W[some]).swapaxes(1, 2)
        np.conj(K, out=K)
        for at in images:
            Z = product(K, plan.of_images(x[at], padding))
            z[at, some] = plan.back(Z)[:, :, :h, :w].swapaxes(0, 1)
    clear(z, x, k, stride, padding)
    return with_bias(z, b)


def conv_backward_weights(x, dz, dW, db, stride, padding):
    (c_out, c, k, _), (h, w) = dW.shape, dz.shape[2:]
    plan = _Plan(h, w, k, stride, x.itemsize)
    for some, images in plan.pieces(c_out, len(x), c * stride * stride):
        dK = 0
        for at in images:
            dK += plan.of_images(x[at], padding) @ plan.of_outputs(dz[at, some]).conj().swapaxes(1, 2)
        taps = plan.reach + 1
        phases = plan.back(dK)[:, :, :taps, :taps].reshape(stride, stride, c, -1, taps, taps)
        dW[some] = join(phases, dW[some].shape, 0)
    put_bias_gradient(dz, db)


def conv_backward_input(dz, W, shape, stride, padding):
    (c_out, c, k, _), (h, w) = W.shape, dz.shape[2:]
    plan = _Plan(h, w, k, stride, dz.itemsize)
    dx = np.empty(shape, dz.dtype)
    for some, images in plan.pieces(c, len(dz), c_out, stride * stride):
        K = plan.of_kernels(W[:, some])
        for at in images:
            phases = plan.back(product(K, plan.of_outputs(dz[at])))
            here = dx[at, some]
            here[...] = join(phases.reshape(stride, stride, -1, len(here), *plan.lengths), here.shape, padding)
    return dx


class _Plan:
    """Transforms for h * w windows: each phase with all that the windows read, its lengths rounded up to good ones."""

    def __init__(self, h, w, k, stride, itemsize):
        self.stride, self.reach = stride, -(-k // stride) - 1
        self.lengths = _good(h + self.reach), _good(w + self.reach)
        self.bytes = 4 * self.lengths[0] * (self.lengths[1] // 2 + 1) * itemsize  # complex, and a copy

    def pieces(self, channels, n, across, phases=1):
        """Yield slices of channels, each with slices of the n images."""
        for some in pieces(channels, across * phases * self.bytes, 4 * PIECE_BYTES):
            both = across + phases * (some.stop - some.start)
            yield some, list(pieces(n, both * self.bytes))

    def of_images(self, x, padding):
        """Return the spectra (frequencies, phases and channels, n) of x (n, c, ., .)."""
        return self._there(split(x, *self.lengths, self.stride, padding))

    def of_outputs(self, z):
        """Return the spectra (frequencies, c_out, n) of z (n, c_out, h', w')."""
        return self._there(split(z, *z.shape[2:]))

    def of_kernels(self, W):
        """Return the spectra (frequencies, phases and channels, c_out) of W (c_out, c, k, k)."""
        return self._there(split(W, self.reach + 1, self.reach + 1, self.stride))

    def _there(self, phases):
        spectra = np.fft.rfft2(phases, self.lengths)
        spectra = spectra.reshape(-1, phases.shape[3], spectra.shape[-2] * spectra.shape[-1])
        return np.ascontiguousarray(spectra.transpose(2, 0, 1))

    def back(self, spectra):
        """Return the arrays (., ., rows, columns) that have these spectra (frequencies, ., .)."""
        rows, columns = self.lengths
        spectra = spectra.transpose(1, 2, 0).reshape(*spectra.shape[1:], rows, columns // 2 + 1)
        return np.fft.irfft2(spectra, self.lengths)


def _good(length):
    """Return the first number from `length` on that is a product of 2, 3 and 5: of such lengths transforms are fast."""
    while True:
        rest = length
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1
