"""Coloured pictures side by side, as a notebook keeps them, and those that a recorded run has painted."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mlpkit.checks import check_array, check_count

KEPT = Path(__file__).with_name("pictures")
LABEL = 26  # pixels for the words above a picture


def gallery(pictures, alt, columns=3, width=432):
    """Return pictures by label, each (3, height, width) from 0 to 1 or bytes, as one PNG of 256 colours, dithered.

    width: of all, in a page's pixels, of which each has four of the file.
    """
    from mlpkit.plots.style import Picture  # to measure, nobody needs a figure

    edge = 2 * width // columns - 4
    tiles = [_tile(label, as_bytes(picture), edge) for label, picture in pictures.items()]
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in row) + 6 for row in rows]
    sheet = Image.new("RGB", (columns * (edge + 4), sum(heights)), "white")
    for row, top in zip(rows, np.cumsum([0, *heights]), strict=False):
        for column, tile in enumerate(row):
            sheet.paste(tile, (column * (edge + 4), int(top)))
    packed = io.BytesIO()
    sheet.quantize(256, Image.Quantize.MEDIANCUT).save(packed, format="png", optimize=True)
    return Picture(packed.getvalue(), alt, sheet.width // 2)


def _tile(label, picture, edge):
    image = _image(picture)
    image = image.resize((edge, max(1, round(edge * image.height / image.width))), Image.Resampling.LANCZOS)
    tile = Image.new("RGB", (edge, image.height + LABEL), "white")
    tile.paste(image, (0, LABEL))
    ImageDraw.Draw(tile).text((2, 2), label, "black", ImageFont.load_default(19))
    return tile


def _image(picture):
    """Return bytes (3, height, width), or grey ones (1, height, width), as an image of three colours."""
    if picture.ndim != 3 or len(picture) not in (1, 3) or not picture.size:
        raise ValueError(f"a picture has the shape (3, height, width), or (1, height, width), not {picture.shape}.")
    return Image.fromarray(np.ascontiguousarray(np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)))


def as_bytes(picture):
    """Return a picture from 0 to 1 as uint8; what lies beyond is cut, and bytes stay as they are."""
    picture = np.asarray(picture)
    return picture if picture.dtype == np.uint8 else (255 * picture.clip(0, 1)).round().astype(np.uint8)


def fitted(picture, size):
    """Return the middle square of a picture, bytes, as (3, size, size) float32 from 0 to 1. Grey becomes three equals.

    Raises TypeError and ValueError for what is no picture, or no size.
    """
    check_array("a picture", picture)
    if picture.dtype != np.uint8:
        raise TypeError(f"a picture is uint8 here, not {picture.dtype}: take it from `pictures`, or see `as_bytes`.")
    image, size = _image(picture), check_count("size", size)
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    found = image.resize((size, size), Image.Resampling.LANCZOS, (left, top, left + edge, top + edge))
    return np.asarray(found).transpose(2, 0, 1).astype(np.float32) / 255


def kept(name):
    """Return a picture (3, height, width) uint8 that a recorded run has painted, by its name."""
    with Image.open(KEPT / f"{name}.jpg") as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def keep(name, picture, folder=KEPT, quality=88):
    """Write a picture to where `kept` finds it."""
    folder.mkdir(exist_ok=True)
    Image.fromarray(np.ascontiguousarray(as_bytes(picture).transpose(1, 2, 0))).save(
        folder / f"{name}.jpg", quality=quality
    )
