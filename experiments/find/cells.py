"""Photographs with boxes as they might have come, too: mirrored, nearer or farther, in other light."""

from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from mlpkit.data.dataset import Split

LEAST = 0.4  # of a box's area that must stay in a picture


def several_of(train, validation, variations, seed, processes=1):
    """Return images and truth of both parts: each picture as it is, and so many variations."""
    most = max(train.y.shape[1], validation.y.shape[1])
    padded = [np.pad(y, ((0, 0), (0, most - y.shape[1]), (0, 0)), constant_values=-1) for _, y in (train, validation)]
    images, truth = np.concatenate([train.X, validation.X]), np.concatenate(padded)
    with ProcessPoolExecutor(processes) as pool:
        found = [Split(images, truth), *pool.map(partial(varied, images, truth, seed), range(variations))]
    return tuple(map(np.concatenate, zip(*found, strict=True)))


def varied(images, truth, seed, number):
    """Return each picture changed, and its truth, by the generator of (seed, number)."""
    rng = np.random.default_rng((seed, number, 25))
    changed, boxes = np.empty_like(images), np.empty_like(truth)
    for i, (image, rows) in enumerate(zip(images, truth, strict=True)):
        changed[i], boxes[i] = _varied(rng, image, rows)
    return Split(changed, boxes)


def _varied(rng, image, rows):
    """A window of the picture, from 0.6 to 1.25 of its size, becomes the picture; what lies outside is grey."""
    from PIL import Image

    height, width = image.shape[1:]
    zoom, stretch = rng.uniform(0.6, 1.25), np.exp(rng.uniform(-0.1, 0.1))
    wide, high = width * zoom * stretch, height * zoom / stretch
    left, top = rng.uniform(*sorted((0, width - wide))), rng.uniform(*sorted((0, height - high)))
    picture = Image.fromarray(image.transpose(1, 2, 0))
    window = picture.transform((width, height), Image.Transform.AFFINE, (wide / width, 0, left, 0, high / height, top),
                               Image.Resampling.BILINEAR, fillcolor=(128, 128, 128))  # fmt: skip
    pixels = np.asarray(window).transpose(2, 0, 1).astype(np.float32)
    scale = np.array([width / wide, height / high] * 2)
    boxes = (rows[:, 1:] - [left, top] * 2) * scale
    inside = np.clip(boxes, 0, [width, height] * 2)
    areas = [(each[:, 2] - each[:, 0]) * (each[:, 3] - each[:, 1]) for each in (inside, boxes)]
    rows = np.where((rows[:, :1] >= 0) & (areas[0] > LEAST * areas[1])[:, None], np.c_[rows[:, 0], inside], -1)
    for axis, edge in ((2, width), (1, height)):
        if rng.random() < 0.5:
            pixels = np.flip(pixels, axis)
            sides = [3 - axis, 5 - axis]
            rows[:, sides] = np.where(rows[:, :1] >= 0, edge - rows[:, sides[::-1]], -1)
    light = rng.uniform(0.75, 1.25) * rng.uniform(0.93, 1.07, (3, 1, 1))
    mean = pixels.mean()
    pixels = (pixels - mean) * rng.uniform(0.8, 1.2) + mean * light
    return pixels.clip(0, 255).astype(np.uint8), rows.astype(np.float32)
