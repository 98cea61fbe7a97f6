"""A picture made smaller or larger as Matlab's `imresize(..., "bicubic")` does, which papers on super-resolution use.

Each number is a weighted sum of its neighbours, down and across: so an axis is a product with a matrix. Keys (1981),
"Cubic convolution interpolation for digital image processing", has the weights. What makes a picture smaller must also
blur it, or fine patterns turn into coarse ones (aliasing): the cubic is then as much wider as the picture is smaller.
"""

import numpy as np

from mlpkit.checks import check_array, check_sizes

MOST = 2**24  # elements of a matrix at a time


def cubic(t):
    """Return Keys' cubic at the distances t, in pixels: 1 at 0, 0 at all other integers, and 0 from 2 on."""
    t = np.abs(t)
    near, far = (1.5 * t - 2.5) * t * t + 1, ((-0.5 * t + 2.5) * t - 4) * t + 2
    return np.where(t <= 1, near, np.where(t <= 2, far, 0))


def weights(n, m, some=slice(None)):
    """Return the matrix (m, n) that makes m pixels of n: each row sums to 1. Behind an edge the picture is mirrored.

    some: of its rows, a slice.
    """
    stretch = max(1, n / m)  # of the cubic, which lies over 4 * stretch pixels
    centres = (np.arange(m)[some] + 0.5) * n / m - 0.5
    pixels = np.floor(centres - 2 * stretch)[:, None] + np.arange(np.ceil(4 * stretch) + 2)
    shares = cubic((centres[:, None] - pixels) / stretch)
    mirrored = np.mod(pixels.astype(int), 2 * n)
    matrix = np.zeros((len(centres), n))
    np.add.at(matrix, (np.arange(len(centres))[:, None], np.minimum(mirrored, 2 * n - 1 - mirrored)), shares)
    return matrix / matrix.sum(axis=1, keepdims=True)


def resize(picture, size):
    """Return a picture (..., h, w) of a size (height, width), floats in its own dtype; of uint8, float64, not rounded.

    Raises TypeError for what is no array, ValueError for no picture, or no size.
    """
    check_array("picture", picture)
    if picture.dtype.kind not in "uif":
        raise TypeError(f"a picture's pixels are numbers, such as uint8 or float32, not {picture.dtype}.")
    size = check_sizes(size, least=1)
    if picture.ndim < 2 or not picture.size or len(size) != 2:
        raise ValueError(f"a picture (..., height, width) gets a size (height, width), not {picture.shape} and {size}.")
    (h, w), found = picture.shape[-2:], picture.astype(np.float64, copy=False)
    found = np.concatenate([weights(h, size[0], some) @ found for some in _parts(h, size[0])], axis=-2)
    found = np.concatenate([found @ weights(w, size[1], some).T for some in _parts(w, size[1])], axis=-1)
    return found if picture.dtype.kind in "ui" else found.astype(picture.dtype, copy=False)


def _parts(n, m):
    """Return slices of a matrix' m rows: one of a picture 30,000 pixels wide would take gigabytes."""
    step = max(1, MOST // n)
    return [slice(at, at + step) for at in range(0, m, step)]
