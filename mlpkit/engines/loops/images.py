"""Loops over images (n, c, h, w): pooling and batch normalization, each number read as few times as can be.

Sums are taken row by row in the arrays' own dtype, which vectors do, and the rows' sums in float64. See `fused`.
"""

import math

import numpy as np

prange = range  # see python_loops


def max_pool(x, size, stride):
    n, c, h, w = x.shape
    rows, columns = (h - size) // stride + 1, (w - size) // stride + 1
    y, index = np.empty((n, c, rows, columns), x.dtype), np.empty((n, c, rows, columns), np.int32)
    for plane in prange(n * c):
        image, channel = plane // c, plane % c
        at, out, places = x[image, channel], y[image, channel], index[image, channel]
        for i in range(rows):
            for j in range(columns):
                best, place = at[stride * i, stride * j], 0
                for p in range(size):
                    for q in range(size):
                        value = at[stride * i + p, stride * j + q]
                        if value > best:
                            best, place = value, size * p + q
                        elif value != value:  # the largest of numbers with a NaN among them is a NaN, and has no place
                            best, place = value, 0
                out[i, j], places[i, j] = best, place if best == best else 0
    return y, index


def max_pool_backward(dy, index, shape, size, stride):
    dx = np.empty(shape, dy.dtype)
    c = shape[1]
    for plane in prange(shape[0] * c):
        image, channel = plane // c, plane % c
        out, at, places = dx[image, channel], dy[image, channel], index[image, channel]
        out[:] = 0
        for i in range(at.shape[0]):
            for j in range(at.shape[1]):
                place = places[i, j]
                out[stride * i + place // size, stride * j + place % size] += at[i, j]
    return dx


def avg_pool(x, size, stride):
    n, c, h, w = x.shape
    y = np.empty((n, c, (h - size) // stride + 1, (w - size) // stride + 1), x.dtype)
    share = x.dtype.type(1 / size**2)
    for plane in prange(n * c):
        at, out = x[plane // c, plane % c], y[plane // c, plane % c]
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                total = x.dtype.type(0)
                for p in range(size):
                    for q in range(size):
                        total += at[stride * i + p, stride * j + q]
                out[i, j] = total * share
    return y


def avg_pool_backward(dy, shape, size, stride):
    dx = np.empty(shape, dy.dtype)
    c, share = shape[1], dy.dtype.type(1 / size**2)
    for plane in prange(shape[0] * c):
        out, at = dx[plane // c, plane % c], dy[plane // c, plane % c]
        out[:] = 0
        for i in range(at.shape[0]):
            for j in range(at.shape[1]):
                value = at[i, j] * share
                for p in range(size):
                    for q in range(size):
                        out[stride * i + p, stride * j + q] += value
    return dx


def cut_bands(x, bands, step, height, padding):
    """Return bands of x (n, c, h, w), (n * bands, c, height, w + 2 * padding): each begins `step` rows after the last.

    The first one begins with the padding; what is not in x is 0.
    """
    n, c, h, w = x.shape
    found = np.empty((n * bands, c, height, w + 2 * padding), x.dtype)
    for part in prange(n * bands):
        for channel in range(c):
            for i in range(height):
                row, at = found[part, channel, i], part % bands * step - padding + i
                for j in range(len(row)):
                    row[j] = 0
                for j in range(w if 0 <= at < h else 0):
                    row[padding + j] = x[part // bands, channel, at, j]
    return found


def add_bands(parts, bands, step, shape, padding):
    """Return images of a shape (n, c, h, w) of bands, which `cut_bands` has cut: what overlaps is added."""
    c, height, width = parts.shape[1:]
    found = np.empty(shape, parts.dtype)
    for plane in prange(shape[0] * c):
        image, channel = plane // c, plane % c
        for i in range(shape[2]):
            row, at = found[image, channel, i], i + padding
            for j in range(shape[3]):
                row[j] = 0
            for band in range(max(0, (at - height) // step + 1), min(at // step + 1, bands)):
                own = parts[image * bands + band, channel, at - band * step]
                for j in range(min(shape[3], width - padding)):
                    row[j] += own[padding + j]
    return found


def upsample_nearest(x, scale):
    n, c, h, w = x.shape
    y = np.empty((n, c, scale * h, scale * w), x.dtype)
    for plane in prange(n * c):
        image, channel = plane // c, plane % c
        for i in range(scale * h):
            for j in range(w):
                for q in range(scale):
                    y[image, channel, i, scale * j + q] = x[image, channel, i // scale, j]
    return y


def upsample_nearest_backward(dy, scale):
    n, c, h, w = dy.shape
    dx = np.empty((n, c, h // scale, w // scale), dy.dtype)
    for plane in prange(n * c):
        image, channel = plane // c, plane % c
        for i in range(h // scale):
            for j in range(w // scale):
                total = dy.dtype.type(0)
                for p in range(scale):
                    for q in range(scale):
                        total += dy[image, channel, scale * i + p, scale * j + q]
                dx[image, channel, i, j] = total
    return dx


def normalize(x, gamma, beta, eps, least):
    """Return `max(least, gamma * normalized + beta)`, for x (n, c, elements of a plane), and each channel's statistics.

    They are (3, c): mean, inverse deviation, and variance. least: 0 is ReLU, minus infinity is nothing. What is between
    is not written: the way back computes it again.
    """
    n, c, m = x.shape
    a, found, bound = np.empty_like(x), np.empty((3, c), x.dtype), x.dtype.type(least)
    for channel in prange(c):
        centre, squares = mean_and_squares(x, channel)
        scale = x.dtype.type(1 / math.sqrt(squares / (n * m) + eps))
        found[0, channel], found[1, channel], found[2, channel] = centre, scale, squares / max(n * m - 1, 1)
        factor, shift = gamma[channel], beta[channel]
        for image in range(n):
            for i in range(m):
                y = factor * ((x[image, channel, i] - centre) * scale) + shift
                a[image, channel, i] = bound if y < bound else y  # in this order a NaN stays a NaN
    return a, found


def normalize_backward(da, x, found, gamma, beta, dgamma, dbeta, least):
    """Return dx, and write dgamma and dbeta (c,), for da and x (n, c, elements of a plane). found: of `normalize`."""
    n, c, m = x.shape
    dx, bound, zero = np.empty_like(x), x.dtype.type(least), x.dtype.type(0)
    for channel in prange(c):
        centre, scale, total, product = found[0, channel], found[1, channel], 0.0, 0.0
        factor, shift = gamma[channel], beta[channel]
        for image in range(n):
            part, other = zero, zero
            for i in range(m):
                value = (x[image, channel, i] - centre) * scale
                dy = da[image, channel, i] if factor * value + shift > bound else zero
                part += dy
                other += dy * value
            total += part
            product += other
        dbeta[channel], dgamma[channel] = total, product
        middle, slope, outer = x.dtype.type(total / (n * m)), x.dtype.type(product / (n * m)), factor * scale
        for image in range(n):
            for i in range(m):
                value = (x[image, channel, i] - centre) * scale
                dy = da[image, channel, i] if factor * value + shift > bound else zero
                dx[image, channel, i] = outer * (dy - middle - value * slope)
    return dx


def mean_and_squares(x, channel):
    """Return the mean of a channel of x (n, c, elements of a plane), and the sum of the squares around it."""
    n, _, m = x.shape
    total, squares = 0.0, 0.0
    for image in range(n):
        part = x.dtype.type(0)
        for i in range(m):
            part += x[image, channel, i]
        total += part
    centre = x.dtype.type(total / (n * m))
    for image in range(n):
        part = x.dtype.type(0)
        for i in range(m):
            part += (x[image, channel, i] - centre) ** 2
        squares += part
    return centre, squares


def batch_norm_evaluate(x, gamma, beta, mean, variance, eps):
    """Do what the baseline's does, for x (n, c, elements of a plane)."""
    n, c, m = x.shape
    y = np.empty_like(x)
    for row in prange(n * c):
        image, channel = row // c, row % c
        scale = x.dtype.type(gamma[channel] / math.sqrt(variance[channel] + eps))
        centre, shift = mean[channel], beta[channel]
        for i in range(m):
            y[image, channel, i] = scale * (x[image, channel, i] - centre) + shift
    return y


def sum_planes(dz, db):
    """Write the sum of each channel of dz (n, c, elements of a plane) into db (c,)."""
    n, c, m = dz.shape
    for channel in prange(c):
        total = 0.0
        for image in range(n):
            part = dz.dtype.type(0)
            for i in range(m):
                part += dz[image, channel, i]
            total += part
        db[channel] = total
