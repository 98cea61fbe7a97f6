"""What lies where arrows point: between pixels the mean of the four around, weighted by nearness; outside it is 0.

Of a map, whose values are names, there is no mean: there it is the nearest pixel.
"""

import numpy as np

IN_CACHE = 50  # images whose values on the way fit a core's cache: twice as fast as 1,000


def looked_up(images, arrows, nearest=False):
    """Return what lies at the ends of arrows (n, 2, height, width), in images (n, channels, height, width).

    nearest: at the nearest pixel, and not between four. Maps (n, height, width) are images of one channel.
    """
    found, look = np.empty_like(images), _nearest if nearest else _looked_up
    for start in range(0, len(images), IN_CACHE):
        part = slice(start, start + IN_CACHE)
        planes = images[part] if images.ndim == 4 else images[part, None]
        found[part] = look(planes, arrows[part]).reshape(found[part].shape)
    return found


def _nearest(images, arrows):
    framed, down, across = _framed(images, arrows)
    row, column = (np.rint(place).astype(np.int32)[:, None] for place in (down, across))
    image, channel = (np.arange(count) for count in images.shape[:2])
    return framed[image[:, None, None, None], channel[:, None, None], row, column]


def _framed(images, arrows):
    """Return the images in a frame of 0, and where in there each pixel looks: down and across, (n, height, width)."""
    height, width = images.shape[2:]
    down = np.clip(arrows[:, 0] + np.arange(1, height + 1, dtype=np.float32)[:, None], 0, height + 1)
    across = np.clip(arrows[:, 1] + np.arange(1, width + 1, dtype=np.float32), 0, width + 1)
    return np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1))), down, across


def _looked_up(images, arrows):
    n, channels, height, width = images.shape
    framed, down, across = _framed(images, arrows)
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
    return np.rint(found).astype(np.uint8) if images.dtype == np.uint8 else found
