"""Pictures as a network for super-resolution sees them: small ones, and the same larger; cut up for training."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mlpkit.checks import check_array, check_count

from .bicubic import resize
from .quality import as_bytes, luminance


def check_picture(picture):
    """Raise TypeError unless `picture` is an array, ValueError unless it has rows and columns."""
    check_array("a picture", picture)
    if picture.ndim < 2 or not all(picture.shape[-2:]):
        raise ValueError(f"a picture has rows and columns of pixels, and this array the shape {picture.shape}.")


def cropped(picture, scale):
    """Return a picture without the last rows and columns that make its sides no multiple of the scale."""
    check_picture(picture)
    h, w = (length // check_count("scale", scale) * scale for length in picture.shape[-2:])
    if not h or not w:
        raise ValueError(f"a picture of {picture.shape[-2:]} pixels is too small for a scale of {scale}.")
    return picture[..., :h, :w]


def small_and_large(picture, scale):
    """Return two luminances (1, h, w) and (1, scale h, scale w), float32 from 0 to 1, of a picture uint8 (3 or 1, ...).

    The small one is `bicubic.resize` of the large one, and is not rounded: the protocol of SRCNN and FSRCNN.
    """
    large = cropped(luminance(picture), scale) / 255
    small = resize(large, [length // scale for length in large.shape[-2:]])
    return small.astype(np.float32), large.astype(np.float32)


def with_halo(small, halo):
    """Return a picture with `halo` pixels around it, its own, mirrored at its edges: what its outermost pixels see."""
    check_count("halo", halo, least=0)
    check_picture(small)
    return np.pad(small, [(0, 0)] * (small.ndim - 2) + [(halo, halo)] * 2, "symmetric")


def patches(pictures, scale, size, halo, shrunk=(1.0,)):
    """Return (X, y) to train on: X (n, 1, size + 2 halo, ...) float32, y (n, 1, scale size, ...) uint8, which is exact.

    pictures: uint8 (3 or 1, h, w). Patches lie side by side, each with a halo of what is around it. shrunk: each
    picture counts once for each of these sizes, relative to its own.
    """
    X, y = [], []
    for picture in pictures:
        check_array("a picture", picture)
        for factor in shrunk:
            lengths = [round(length * factor) for length in picture.shape[1:]]
            resized = picture if factor == 1 else np.clip(np.round(resize(picture, lengths)), 0, 255).astype(np.uint8)
            if min(lengths) < scale * size:
                continue
            small, large = small_and_large(resized, scale)
            X.append(_windows(with_halo(small[0], halo), size + 2 * halo, size))
            y.append(_windows(as_bytes(large[0]), scale * size, scale * size))
    if not X:
        raise ValueError(f"no picture has {scale * size} x {scale * size} pixels: give larger ones, or a smaller size.")
    return np.concatenate(X)[:, None], np.concatenate(y)[:, None]


def _windows(picture, size, step):
    found = sliding_window_view(picture, (size, size))[::step, ::step]
    return found.reshape(-1, size, size)


def eightfold(images):
    """Return images (n, ..., h, h) as (8 n, ..., h, h): turned by 0, 90, 180 and 270 degrees, and mirrored."""
    quarters = [np.rot90(images, quarter, (-2, -1)) for quarter in range(4)]
    return np.concatenate([*quarters, *(each[..., ::-1] for each in quarters)])
