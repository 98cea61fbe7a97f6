"""Styles that are made: pictures by code from a seed, as nobody's painting comes along with the workbook."""

import numpy as np

NIGHT = np.array([[16, 30, 84], [28, 62, 140], [52, 110, 182], [120, 170, 205], [244, 208, 84], [250, 238, 190]]) / 255
SUMMER = np.array([[214, 68, 44], [242, 158, 50], [250, 214, 96], [40, 132, 132], [22, 72, 108], [240, 232, 210]]) / 255
SEA = np.array([[18, 52, 92], [36, 98, 150], [92, 158, 190], [226, 232, 220], [238, 206, 160]]) / 255


def strokes(size=256, seed=0, palette=NIGHT, layers=30):
    """Return a picture (3, size, size) float32 from 0 to 1 of short brush strokes along a field of whirls."""
    rng = np.random.default_rng(seed)
    whirls = rng.random((7, 2)) * size, rng.choice([-1, 1], 7) * rng.uniform(0.6, 1.4, 7), 0.16 * size
    picture = np.ones((size, size, 3)) * palette[1]
    for _ in range(layers):
        _paint_layer(picture, whirls, palette, size**2 // 218, rng)
    return picture.transpose(2, 0, 1).astype(np.float32)


def _along(points, centres, spins, reach):
    """Return the direction of the field at points (n, 2), as vectors of length 1, and how near whirls they are."""
    away = points[:, None] - centres
    squares = (away**2).sum(axis=2) / reach**2
    turning = (spins / (squares + 0.15))[..., None] * away[..., ::-1] * (1, -1)
    found = (0.15, 0.5) + turning.sum(axis=1) / reach
    return found / (np.linalg.norm(found, axis=1, keepdims=True) + 1e-9), np.exp(-squares).max(axis=1)


def _paint_layer(picture, whirls, palette, count, rng):
    """Drag so many round brushes along the field, all at once; bristles leave lines."""
    size, points = len(picture), rng.random((count, 2)) * len(picture)
    shades = np.clip(0.75 * _along(points, *whirls)[1] + 0.22 * rng.standard_normal(count) + 0.15, 0, 0.999)
    low, part = np.divmod(shades * (len(palette) - 1), 1)
    colours = palette[low.astype(int)] * (1 - part[:, None]) + palette[low.astype(int) + 1] * part[:, None]
    colours = np.clip(colours + 0.05 * rng.standard_normal((count, 3)), 0, 1)[:, None]
    widths, bristles = rng.uniform(1.2, 2.4, (count, 1)), rng.uniform(-0.07, 0.07, (count, 1, 1))
    ends, square = rng.uniform(5, 12, count), np.indices((9, 9)).reshape(2, -1).T - 4
    for step in range(12):
        direction, _ = _along(points, *whirls)
        points = points + 1.6 * direction
        pixels = points.astype(int)[:, None] + square
        apart = pixels - points[:, None]
        cover = 0.85 * np.clip(widths + 0.5 - np.linalg.norm(apart, axis=2), 0, 1)
        side = (apart * (direction[:, ::-1] * (1, -1))[:, None]).sum(axis=2, keepdims=True)
        there = (cover > 0) & (pixels >= 0).all(axis=2) & (pixels < size).all(axis=2) & (step < ends)[:, None]
        paint = np.clip(colours + bristles * np.sin(4 * side), 0, 1)[there]
        at = tuple(pixels[there].T)
        picture[at] += cover[there][:, None] * (paint - picture[at])


def mosaic(size=256, seed=0, palette=SUMMER, tile=14):
    """Return a picture (3, size, size) float32 from 0 to 1 of many-cornered tiles with dark joints between them."""
    rng = np.random.default_rng(seed)
    count = size // tile + 3
    grid = tile * (np.indices((count, count)).transpose(1, 2, 0) - 1) + rng.uniform(0, tile, (count, count, 2))
    rows, columns = np.mgrid[:size, :size]
    near = np.full((2, size, size), np.inf)
    which = np.zeros((size, size), int)
    for i, j in np.ndindex(3, 3):  # a pixel's nearest middle is in one of nine fields
        field = rows // tile + i, columns // tile + j
        away = np.hypot(rows - grid[field][..., 0], columns - grid[field][..., 1])
        which = np.where(away < near[0], field[0] * count + field[1], which)
        near = np.sort(np.concatenate([near, away[None]]), axis=0)[:2]
    waves = np.sin(grid[..., 0] / 23) + np.sin(grid[..., 1] / 31 + 1) + 0.7 * rng.standard_normal((count, count))
    index = np.clip((waves + 2.2) / 4.4 * len(palette), 0, len(palette) - 1).astype(int)
    colours = np.clip(palette[index] * rng.uniform(0.85, 1.1, (count, count, 1)), 0, 1).reshape(-1, 3)
    joint = np.clip((near[1] - near[0]) / 2.4, 0, 1)[..., None]
    light = 0.9 + 0.1 * np.clip((near[1] - near[0]) / tile, 0, 1)[..., None]
    found = joint * light * colours[which] + (1 - joint) * np.array([0.08, 0.07, 0.09])
    return found.transpose(2, 0, 1).astype(np.float32)


def waves(size=256, seed=0, palette=SEA, radius=26):
    """Return a picture (3, size, size) float32 from 0 to 1 of overlapping scales of rings, as on Japanese cloth."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size].astype(float)
    rows, columns = rows + 3 * np.sin(columns / 37 + seed), columns + 3 * np.sin(rows / 29)
    found = np.ones((size, size, 3)) * palette[-1]
    for row in range(-1, 3 * size // radius + 3):
        for column in range(-1, size // (2 * radius) + 2):
            middle = row * radius / 2, (2 * column + row % 2) * radius
            away = np.hypot(rows - middle[0], columns - middle[1])
            ring = (away / (radius / 5)).astype(int)
            shade = palette[(ring + rng.integers(2)) % (len(palette) - 1)] * rng.uniform(0.92, 1.05)
            inside = np.clip(radius - away, 0, 1)[..., None]
            line = np.clip(np.abs(away / (radius / 5) % 1 - 0.5) * 8 - 3, 0, 1)[..., None]
            paint = shade * (1 - line) + palette[3] * line
            found = found * (1 - inside) + inside * paint
    found += 0.02 * rng.standard_normal((size, size, 1))
    return np.clip(found, 0, 1).transpose(2, 0, 1).astype(np.float32)


STYLES = {"strokes": strokes, "mosaic": mosaic, "waves": waves}
