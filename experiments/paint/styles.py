"""Styles that are made: pictures by code from a seed, as nobody's painting comes along with the workbook."""

import numpy as np

NIGHT = np.array([[16, 30, 84], [28, 62, 140], [52, 110, 182], [120, 170, 205], [244, 208, 84], [250, 238, 190]]) / 255
SUMMER = np.array([[214, 68, 44], [242, 158, 50], [250, 214, 96], [40, 132, 132], [22, 72, 108], [240, 232, 210]]) / 255
SEA = np.array([[18, 52, 92], [36, 98, 150], [92, 158, 190], [226, 232, 220], [238, 206, 160]]) / 255


def strokes(size=256, seed=0, palette=NIGHT, count=9000):
    """Return a picture (3, size, size) float32 from 0 to 1 of short brush strokes along a field of whirls."""
    rng = np.random.default_rng(seed)
    centres, spins = rng.random((7, 2)) * size, rng.choice([-1, 1], 7) * rng.uniform(0.6, 1.4, 7)
    picture = np.ones((size, size, 3)) * palette[1]
    reach = 0.16 * size
    for _ in range(count * size**2 // 256**2):
        point = rng.random(2) * size
        apart = np.linalg.norm(centres - point, axis=1)
        height = np.exp(-((apart / reach) ** 2)).max()  # near the middle of a whirl it is light
        shade = np.clip(height * 0.75 + 0.22 * rng.standard_normal() + 0.15, 0, 0.999) * (len(palette) - 1)
        low = int(shade)
        colour = palette[low] + (shade - low) * (palette[low + 1] - palette[low])
        _stroke(picture, point, _field(centres, spins, reach), np.clip(colour + 0.05 * rng.standard_normal(3), 0, 1), rng)
    return picture.transpose(2, 0, 1).astype(np.float32)


def _field(centres, spins, reach):
    def direction(point):
        away = point - centres
        weight = spins / ((away**2).sum(axis=1) / reach**2 + 0.15)
        found = np.array([0.5, 0.15]) @ np.array([[0, 1], [1, 0]]) + (weight[:, None] * away[:, ::-1] * [1, -1]).sum(axis=0) / reach
        return found / (np.linalg.norm(found) + 1e-9)

    return direction


def _stroke(picture, point, direction, colour, rng):
    """Drag a round brush along the field; its bristles leave lines."""
    width, size = rng.uniform(1.2, 2.4), len(picture)
    bristles = rng.uniform(-0.07, 0.07, 3)
    for _ in range(int(rng.uniform(5, 12))):
        point = point + 1.6 * direction(point)
        top, left = (int(max(0, value - 4)) for value in point)
        rows, columns = np.ogrid[top : min(size, top + 9), left : min(size, left + 9)]
        if not rows.size or not columns.size:
            return
        across = direction(point)[::-1] * [1, -1]
        away = np.hypot(rows - point[0], columns - point[1])
        cover = np.clip(width + 0.5 - away, 0, 1)[..., None] * 0.85
        side = ((rows - point[0]) * across[0] + (columns - point[1]) * across[1])[..., None]
        paint = np.clip(colour + bristles[0] * np.sin(4 * side), 0, 1)
        patch = picture[top : top + 9, left : left + 9]
        patch += cover * (paint - patch)


def mosaic(size=256, seed=0, palette=SUMMER, tile=14):
    """Return a picture (3, size, size) float32 from 0 to 1 of many-cornered tiles with dark joints between them."""
    rng = np.random.default_rng(seed)
    count = size // tile + 3
    grid = np.stack(np.meshgrid(*[np.arange(count) - 1] * 2, indexing="ij"), -1) * tile + rng.uniform(0, tile, (count, count, 2))
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
