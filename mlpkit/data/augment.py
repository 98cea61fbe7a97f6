"""Images as they might have come, too: shifted, turned, bent a little, anew in each epoch.

Each pixel of a new image looks at a place of the old one, a little way off, and takes what is there: between pixels
the mean of the four around it, weighted by how near they are; outside of the image 0. So one set of arrows, two numbers
a pixel, says all of a change, and changes add up.

The arrows come from the seed and the epoch alone: every engine sees the same images.
"""

from dataclasses import dataclass

import numpy as np

from mlpkit.checks import check_between

AT_ONCE = 1000  # images whose changes are drawn together
IN_CACHE = 50  # images whose numbers on the way fit a core's cache: twice as fast as 1,000


@dataclass(frozen=True)
class Augmentation:
    """How far images change: a callable (images, seed, epoch) -> images.

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
        for name in ("shift", "rotation", "elastic"):
            object.__setattr__(self, name, check_between(name, getattr(self, name), 0, 1000))
        object.__setattr__(self, "smoothness", check_between("smoothness", self.smoothness, 0.1, 1000))

    def __call__(self, images, seed, epoch):
        """Return new images, like `images` (n, channels, height, width) of uint8, which stay as they are.

        Raises TypeError for other images.
        """
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
            raise TypeError("images are changed as bytes, an array (n, channels, height, width) of uint8.")
        rng = np.random.default_rng((seed, 1 + epoch, 1))  # (seed, 1 + epoch) draws the order
        changed = np.empty_like(images)
        for start in range(0, len(images), AT_ONCE):
            part = images[start : start + AT_ONCE]
            changed[start : start + AT_ONCE] = looked_up(part, self.arrows(rng, len(part), *images.shape[2:]))
        return changed

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


def looked_up(images, arrows):
    """Return what lies at the ends of arrows (n, 2, height, width), in images (n, channels, height, width) of uint8."""
    found = np.empty_like(images)
    for start in range(0, len(images), IN_CACHE):
        part = slice(start, start + IN_CACHE)
        found[part] = _looked_up(images[part], arrows[part])
    return found


def _looked_up(images, arrows):
    n, channels, height, width = images.shape
    framed = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))  # outside is 0
    down = np.clip(arrows[:, 0] + np.arange(1, height + 1, dtype=np.float32)[:, None], 0, height + 1)
    across = np.clip(arrows[:, 1] + np.arange(1, width + 1, dtype=np.float32), 0, width + 1)
    row, column = (np.minimum(place.astype(np.int32), most) for place, most in ((down, height), (across, width)))
    down, across = down - row, across - column  # what is left, from 0 to 1
    planes = np.arange(n * channels).reshape(n, channels, 1, 1) * framed[0, 0].size
    first = planes + (row * (width + 2) + column)[:, None]
    found = 0
    for step, weight in (
        (0, (1 - down) * (1 - across)),
        (1, (1 - down) * across),
        (width + 2, down * (1 - across)),
        (width + 3, down * across),
    ):
        found = found + np.take(framed.ravel()[step:], first) * weight[:, None]
    return np.rint(found).astype(np.uint8)


def _from_middle(length):
    return np.arange(length, dtype=np.float32) - np.float32((length - 1) / 2)


def _blend(length, smoothness):
    """Return (length, knots): weights at each pixel of random numbers `smoothness` apart; their squares add to 1."""
    knots = np.arange(-smoothness, length - 1 + 2 * smoothness, smoothness)
    weights = np.exp(-0.5 * ((np.arange(length)[:, None] - knots) / smoothness) ** 2)
    return (weights / np.sqrt((weights**2).sum(axis=1, keepdims=True))).astype(np.float32)
