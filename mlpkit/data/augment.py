"""Images as they might have come, too: shifted, turned, bent a little, anew in each epoch.

Each pixel of a new image looks at a place of the old one, a little way off, and takes what is there: see `look`. So one
set of arrows, two values a pixel, says all of a change, and changes add up. A target that is an image itself goes
along by the same arrows.

The arrows come from the seed and the epoch alone: every engine sees the same images.
"""

from dataclasses import dataclass

import numpy as np

from mlpkit.checks import check_not_negative

AT_ONCE = 1000  # images whose changes are drawn together


@dataclass(frozen=True)
class Augmentation:
    """How far images change: a callable (images, targets, seed, epoch) -> (images, targets).

    shift: pixels, across and down, each drawn evenly from -shift to shift. rotation: degrees, from -rotation to
    rotation, about the middle. elastic: pixels, the standard deviation of arrows that are drawn at random, and blended
    with those around them over `smoothness` pixels (Simard, Steinkraus and Platt, 2003: "elastic distortions").

    Raises ValueError or TypeError for what is no such number.
    """

    shift: float = 0.0
    rotation: float = 0.0
    elastic: float = 0.0
    smoothness: float = 4.0

    def __post_init__(self):
        for name, value in vars(self).copy().items():
            object.__setattr__(self, name, _checked(name, value, 0.1 if name == "smoothness" else 0))

    def __call__(self, images, targets, seed, epoch):
        """Return new images and their targets; those that are given stay as they are.

        images (n, channels, height, width): uint8 or floats. targets: images like them, with channels of their own;
        maps (n, height, width) of integers, such as a class for each pixel, of which the nearest is taken, not a mean;
        others, such as labels (n,) or rows (n, k), are returned as they are. Raises TypeError for other images,
        ValueError for targets that are images of another size, or not as many.
        """
        if not _is_image(images) or images.ndim != 4:
            raise TypeError("images are changed as an array (n, channels, height, width) of uint8 or floats.")
        from .look import looked_up  # here, because only who trains so needs it

        moved = _go_along(targets, images)
        targets = np.asarray(targets) if moved else targets
        rng = np.random.default_rng((seed, 1 + epoch, 1))  # (seed, 1 + epoch) draws the order
        changed, went = np.empty_like(images), np.empty_like(targets) if moved else targets
        for start in range(0, len(images), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            arrows = self.arrows(rng, len(images[part]), *images.shape[2:])
            changed[part] = looked_up(images[part], arrows)
            if moved:
                went[part] = looked_up(targets[part], arrows, not _is_image(targets))
        return changed, went

    def arrows(self, rng, n, height, width):
        """Return (n, 2, height, width) float32: how far down and across each pixel of each image looks."""
        down, across = _from_middle(height)[:, None], _from_middle(width)
        angle = np.radians(rng.uniform(-self.rotation, self.rotation, (n, 1, 1))).astype(np.float32)
        sine, less = np.sin(angle), np.cos(angle) - 1
        arrows = np.stack([less * down - sine * across, sine * down + less * across], axis=1)
        arrows += rng.uniform(-self.shift, self.shift, (n, 2, 1, 1)).astype(np.float32)
        if self.elastic:
            arrows += self.elastic * self.bends(rng, n, height, width)
        return arrows

    def bends(self, rng, n, height, width):
        """Return (n, 2, height, width) float32: smooth, at random, with a variance of 1 at each pixel."""
        down, across = (_blend(length, self.smoothness) for length in (height, width))
        return down @ rng.standard_normal((n, 2, down.shape[1], across.shape[1]), np.float32) @ across.T


def _is_image(array):
    """Say whether values between those of the array make sense: bytes with channels, or floats."""
    dtype = array.dtype if isinstance(array, np.ndarray) else None
    return dtype is not None and (dtype.kind == "f" or (dtype == np.uint8 and array.ndim == 4))


def _go_along(targets, images):
    """Say whether targets are images, or maps, as large as the images. Raises ValueError for those of another size."""
    shape, size = np.shape(targets), images.shape[2:]
    if len(shape) != 4 and (len(shape) != 3 or shape[1:] != size):
        return False
    if shape[0] != len(images) or shape[-2:] != size:
        raise ValueError(f"targets must be as many as the images, and as large, {images.shape}, not {shape}.")
    return True


def _from_middle(length):
    return np.arange(length, dtype=np.float32) - np.float32((length - 1) / 2)


def _blend(length, smoothness):
    """Return (length, knots): weights at each pixel of random numbers `smoothness` apart; their squares add to 1."""
    knots = np.arange(-smoothness, length - 1 + 2 * smoothness, smoothness)
    weights = np.exp(-0.5 * ((np.arange(length)[:, None] - knots) / smoothness) ** 2)
    return (weights / np.sqrt((weights**2).sum(axis=1, keepdims=True))).astype(np.float32)


def _checked(name, value, least, most=1000):
    number = check_not_negative(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {number}.")
    return number
