"""How much a picture is like the right one, as papers on super-resolution measure it: in luminance, PSNR and SSIM."""

import numpy as np

from mlpkit.checks import check_array, check_count

WINDOW, SIGMA = 11, 1.5  # pixels of SSIM's window, and of its Gaussian
STABLE = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def luminance(picture):
    """Return the luminance (1, h, w) uint8, from 16 to 235, of a picture (3, h, w) uint8. One of (1, h, w) stays.

    `Y = 16 + (65.481 R + 128.553 G + 24.966 B) / 255`, rounded, as Matlab's `rgb2ycbcr` has it: ITU-R BT.601.
    """
    check_array("picture", picture)
    if picture.dtype != np.uint8 or picture.ndim != 3 or len(picture) not in (1, 3):
        raise ValueError(f"a picture is uint8 (3, h, w) or (1, h, w), not {picture.dtype} {picture.shape}.")
    if len(picture) == 1:
        return picture
    return np.floor(16.5 + np.tensordot([65.481, 128.553, 24.966], picture, 1) / 255)[None].astype(np.uint8)


def as_bytes(picture):
    """Return values from 0 to 1, and what is beyond, as uint8: rounded, and cut off at 0 and 255."""
    return np.floor(255 * np.clip(picture, 0, 1) + 0.5).astype(np.uint8)


def psnr(picture, right, border=0):
    """Return `10 log10(255^2 / mean squared error)`, in decibels, of uint8 (..., h, w); infinity for equal ones.

    border: pixels at each edge that do not count; papers leave out as many as the scale.
    """
    difference = np.subtract(*_inner(picture, right, border))
    error = np.mean(difference * difference)
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


def ssim(picture, right, border=0):
    """Return the structural similarity of uint8 (1, h, w), at most 1: Wang, Bovik, Sheikh and Simoncelli (2004).

    Means, variances and covariance are those in a Gaussian window of 11 x 11, wherever a whole one fits.
    """
    x, y = _inner(picture, right, border)
    if min(x.shape[-2:]) < WINDOW:
        raise ValueError(f"SSIM looks at windows of {WINDOW} x {WINDOW}, and the picture is {x.shape[-2:]}.")
    mean_x, mean_y, xx, yy, xy = map(_blur, (x, y, x * x, y * y, x * y))
    alike = (2 * mean_x * mean_y + STABLE[0]) * (2 * (xy - mean_x * mean_y) + STABLE[1])
    of = (mean_x**2 + mean_y**2 + STABLE[0]) * (xx - mean_x**2 + yy - mean_y**2 + STABLE[1])
    return float(np.mean(alike / of))


def _blur(x):
    gaussian = np.exp(-0.5 * ((np.arange(WINDOW) - WINDOW // 2) / SIGMA) ** 2)
    gaussian /= gaussian.sum()
    for _ in range(2):  # down, then across
        length = x.shape[-2] - WINDOW + 1
        x = sum(share * x[..., i : i + length, :] for i, share in enumerate(gaussian)).swapaxes(-1, -2)
    return x


def _inner(picture, right, border):
    """Return both without their borders, float64. Raises ValueError unless they are uint8 of one shape."""
    check_count("border", border, least=0)
    for each in (picture, right):
        check_array("picture", each)
    if picture.shape != right.shape or picture.dtype != np.uint8 or right.dtype != np.uint8:
        told = f"{picture.dtype} {picture.shape} and {right.dtype} {right.shape}"
        raise ValueError(f"two pictures are compared as uint8 of one shape, not {told}: see as_bytes.")
    if picture.ndim < 2 or min(picture.shape[-2:]) <= 2 * border:
        raise ValueError(f"a border of {border} leaves nothing of a picture {picture.shape}.")
    inner = slice(border, -border or None)
    return (each[..., inner, inner].astype(np.float64) for each in (picture, right))
