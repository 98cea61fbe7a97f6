"""Few large images as more, smaller ones: bands of rows, each with the rows around it that its windows reach.

A convolution that wants many images, one in each lane of a vector register, gets them so; what it computes is the same.
"""

import numpy as np

LEAST = 16  # rows of a band: those around it are computed with twice


def bands_of(n, rows, wanted):
    """Return into how many bands each of n images is cut. rows: of its results. wanted: images that are best."""
    return max(1, min(rows // LEAST, -(-wanted // n)))


def cut(x, bands, rows, size, stride, padding):
    """Return x (n, c, h, w) as (n * bands, c, ...): what results' rows are made of, band by band, padding included."""
    n, c, h, w = x.shape
    each = -(-rows // bands)
    found = np.zeros((n, bands, c, (each - 1) * stride + size, w + 2 * padding), x.dtype)
    for band in range(bands):
        first = band * each * stride - padding  # of x
        start, end = max(first, 0), max(0, min(first + found.shape[3], h))
        found[:, band, :, start - first : end - first, padding : padding + w] = x[:, :, start:end]
    return found.reshape(n * bands, *found.shape[2:])


def cut_results(z, bands):
    """Return z (n, c, rows, columns) as (n * bands, c, rows of a band, columns); zeros are behind the last row."""
    n, c, rows, columns = z.shape
    each = -(-rows // bands)
    found = np.zeros((n, bands, c, each, columns), z.dtype)
    for band in range(bands):
        part = z[:, :, band * each : (band + 1) * each]
        found[:, band, :, : part.shape[2]] = part
    return found.reshape(n * bands, c, each, columns)


def merge_results(z, bands, rows):
    """Return what `cut_results` has cut, whole again."""
    n, (_, c, each, columns) = len(z) // bands, z.shape
    whole = z.reshape(n, bands, c, each, columns).swapaxes(1, 2).reshape(n, c, bands * each, columns)
    return np.ascontiguousarray(whole[:, :, :rows])


def add_up(dx, bands, shape, rows, stride, padding):
    """Return gradients (n, c, h, w) of images that `cut` has cut: rows of two bands get the sum of both."""
    n, c, h, w = shape
    each = -(-rows // bands)
    parts = dx.reshape(n, bands, *dx.shape[1:])
    found = np.zeros((n, c, (bands - 1) * each * stride + dx.shape[2], dx.shape[3]), dx.dtype)
    for band in range(bands):
        found[:, :, band * each * stride :][:, :, : dx.shape[2]] += parts[:, band]
    part = found[:, :, padding : padding + h, padding : padding + w]
    beyond = [(0, whole - there) for whole, there in zip(shape, part.shape, strict=True)]  # what no window has seen
    return np.pad(part, beyond) if np.any(beyond) else np.ascontiguousarray(part)
