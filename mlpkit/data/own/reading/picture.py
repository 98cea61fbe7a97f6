"""One picture, PNG or JPEG, as bytes: turned as its camera says, on white where it is transparent, cut to size."""

import warnings
from contextlib import contextmanager, suppress

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mlpkit.paths import check_readable

FORMATS = ("PNG", "JPEG")  # of which phones' MPO is one
TURNED = 0x0112  # Exif's name for which way is up: from 5 to 8, height is width
SCALED = ("L", "LA", "RGB", "RGBA", "CMYK")  # modes whose pixels Pillow can average
GREY = ("1", "L", "LA", "La", "I;16", "I;16B", "I")


def look_at(path):
    """Return (height, width) of a picture, and whether it is grey; its pixels stay in the file.

    path: or a binary file, here and below. Raises OSError where there is no file that can be read, ValueError, with the
    reason, where it is no picture, or has more pixels than Pillow's limit.
    """
    with _opened(path) as picture:
        return picture.size if _turned(picture) in range(5, 9) else picture.size[::-1], picture.mode in GREY


def read_picture(path, grey, size=None, longest=None):
    """Return a picture as (channels, height, width) uint8. grey: one channel, else red, green and blue.

    size: (height, width), to which it is made to fit: scaled until it just covers that, as Pillow's bilinear filter
    does, and its middle cut out, as torchvision's Resize and CenterCrop do. longest: pixels that the longer side may
    have; a larger picture is shrunk, by Pillow's bicubic filter. Raises what `look_at` raises, and ValueError for a
    picture that is cut short or damaged.
    """
    with _opened(path) as picture:
        scaled = picture.mode in SCALED and "transparency" not in picture.info  # else one colour is a hole
        if longest and scaled:  # before it is copied: a JPEG is decoded at a fraction of its size
            picture.thumbnail((longest, longest))
        picture.load()
        plain = ImageOps.exif_transpose(_plain(picture, grey))
        if longest:
            plain.thumbnail((longest, longest))
        if size:
            plain = ImageOps.fit(plain, size[::-1], Image.Resampling.BILINEAR)
        pixels = np.asarray(plain)
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


@contextmanager
def _opened(path):
    """Yield a picture. Raises ValueError with the reason for whatever its decoder raises, which is not documented."""
    if not hasattr(path, "read"):
        check_readable(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd Exif data, and of sizes, which are refused below
            with Image.open(path, formats=FORMATS) as picture:
                if Image.MAX_IMAGE_PIXELS and picture.width * picture.height > Image.MAX_IMAGE_PIXELS:
                    raise Image.DecompressionBombError
                yield picture
    except UnidentifiedImageError:
        raise ValueError("no PNG or JPEG, or damaged") from None
    except Image.DecompressionBombError:
        raise ValueError(
            f"above Pillow's limit of {Image.MAX_IMAGE_PIXELS:,} pixels, PIL.Image.MAX_IMAGE_PIXELS"
        ) from None
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(" ".join(str(error).split()).rstrip(".") or "damaged") from error


def _turned(picture):
    """Return Exif's number for which way is up, 1 where there is none that can be read."""
    with suppress(Exception):  # what Pillow raises for odd Exif data is not documented
        return picture.getexif().get(TURNED, 1) if "exif" in picture.info else 1
    return 1


def _plain(picture, grey):
    """Return a picture of bytes, grey or of three colours, with its Exif data where they say which way is up."""
    plain, kind = picture, "L" if grey else "RGB"
    if picture.mode.startswith("I"):  # 16 bits; Pillow's own conversion makes all that is above 255 white
        values = np.asarray(picture)
        white = values == picture.info.get("transparency", -1)
        plain = Image.fromarray(np.where(white, 255, values // 257).clip(0, 255).astype(np.uint8))
    elif picture.has_transparency_data:
        plain = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    plain = plain.convert(kind)
    plain.info = {"exif": picture.info["exif"]} if _turned(picture) in range(2, 9) else {}
    return plain
