"""What somebody sends becomes the images that a network takes, or is refused in one sentence."""

import io
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from python_multipart import create_form_parser

from mlpkit.data.own.reading.picture import look_at, read_picture
from mlpkit.words import short

from .photographs import prepare

MOST_BYTES, MOST_JSON = 8 * 2**20, 2**20  # of a body: numbers as Python has them take thirty times their text
MOST_PIXELS, LONGEST = 25_000_000, 200  # of a picture as it comes, and of a side as it is worked on
MOST_SCANS = 100  # of a JPEG: each is a pass over all of its pixels, in a few bytes of the file
MOST_IN_FORM = 4 * MOST_PIXELS  # of all its pictures: others wait as long
ARRAYS, JSON, FORM = "application/octet-stream", "application/json", "multipart/form-data"
PICTURES = ("image/png", "image/jpeg")


class Refused(Exception):
    """A request that gets no prediction. status: HTTP's. headers: beside the sentence."""

    def __init__(self, status, sentence, headers=None):
        self.status, self.headers = status, headers or {}
        super().__init__(sentence)


@dataclass(frozen=True)
class Reader:
    """Reads bodies. shape: (channels, height, width) of an image. most: images a body. as_mnist: prepare photographs
    as MNIST's digits were; else they are scaled and cut to the shape."""

    shape: tuple[int, int, int]
    most: int
    as_mnist: bool

    def read(self, body, kind):
        """Return images (n, channels, height, width) uint8. kind: the content type. Raises Refused."""
        kind, _, options = (part.strip() for part in kind.partition(";"))
        if kind == ARRAYS:
            return self.arrays(body)
        if kind.lower() in PICTURES:
            return self.pictures([body])
        if kind.lower() == JSON:
            return self.numbers(body)
        if kind.lower() == FORM:
            return self.form(body, f"{kind}; {options}")
        raise Refused(
            415, f"send {', '.join(PICTURES)}, {ARRAYS}, {JSON} or {FORM}, not {short(kind, 60) or 'nothing'}."
        )

    def arrays(self, body):
        """Return images of bytes, row by row, one after another."""
        size = math.prod(self.shape)
        if not body or len(body) % size:
            raise Refused(422, f"an image has {size} bytes, shape {self.shape}, and {len(body)} are no images.")
        self.check_count(len(body) // size)
        return np.frombuffer(body, np.uint8).reshape(-1, *self.shape)

    def check_count(self, n):
        if not 1 <= n <= self.most:
            raise Refused(422, f"send 1 to {self.most} images in a request, not {n}.")

    def pictures(self, bodies):
        """Return pictures, PNG or JPEG. All are looked at before one is read."""
        found = [self.passes(body) for body in bodies]
        if any(pixels > MOST_PIXELS or scans > MOST_SCANS for pixels, scans in found):
            raise Refused(413, f"a picture has at most {MOST_PIXELS:,} pixels, in {MOST_SCANS} scans: scale it down.")
        passes = sum(pixels * scans for pixels, scans in found)
        if sum(pixels for pixels, _ in found) > MOST_IN_FORM or passes > MOST_PIXELS * MOST_SCANS:
            sentence = f"a form's pictures have at most {MOST_IN_FORM:,} pixels: scale them down, or send fewer."
            raise Refused(413, sentence)
        return np.concatenate([self.picture(body) for body in bodies])

    def picture(self, body):
        """Return one picture, which has been looked at."""
        try:
            if self.as_mnist:
                pixels = read_picture(io.BytesIO(body), False, longest=LONGEST)
                return prepare(np.moveaxis(pixels, 0, 2)).reshape(1, *self.shape)
            return read_picture(io.BytesIO(body), self.shape[0] == 1, self.shape[1:])[None]
        except ValueError as error:
            raise Refused(422, f"this picture can't be used: {_short(error)}.") from None

    def passes(self, body):
        """Return how many pixels a picture has, and how many scans: a PNG, which may hold their mark as well, one."""
        try:
            return math.prod(look_at(io.BytesIO(body))[0]), body.count(b"\xff\xda") if body[:2] == b"\xff\xd8" else 1
        except ValueError as error:
            raise Refused(422, f"this picture can't be used: {_short(error)}.") from None

    def numbers(self, body):
        """Return the images in a JSON text {"images": [...]}, whole numbers from 0 to 255."""
        if len(body) > MOST_JSON:
            raise Refused(413, f"JSON has at most {MOST_JSON:,} bytes: send arrays as {ARRAYS}.")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refused(422, f"this is no JSON: {_short(error)}.") from None
        if not isinstance(found, dict) or list(found) != ["images"] or not isinstance(found["images"], list):
            raise Refused(422, 'JSON must be {"images": [...]}, and nothing else.')
        self.check_count(len(found["images"]))
        sizes = self.shape[self.shape[0] == 1 :]
        values = found["images"]
        for size in sizes:
            if not all(type(each) is list and len(each) == size for each in values):
                raise Refused(422, f"each image must be lists of numbers, of shape {sizes}.")
            values = [value for each in values for value in each]
        if not all(type(value) in (int, float) and 0 <= value <= 255 and value == int(value) for value in values):
            raise Refused(422, "pixels must be whole numbers from 0, black, to 255, white.")
        return np.array(values, np.uint8).reshape(-1, *self.shape)

    def form(self, body, kind):
        """Return the pictures in a form, whether or not its fields have the names of files."""
        parts: list[bytes] = []

        def on_file(file):
            file.file_object.seek(0)
            add(file.file_object.read())

        def add(part):
            self.check_count(len(parts) + 1)
            parts.append(part or b"")

        headers: Any = {"Content-Type": kind.encode("latin-1", "replace")}
        memory = {"MAX_MEMORY_FILE_SIZE": 2 * MOST_BYTES}  # nothing goes to the disk
        try:
            parser = create_form_parser(headers, lambda field: add(field.value), on_file, config=memory)
            parser.write(body)
            parser.finalize()
        except Refused:
            raise
        except Exception as error:  # which, its documentation does not say
            raise Refused(422, f"this is no form: {_short(error)}.") from None
        self.check_count(len(parts))
        return self.pictures(parts)


def _short(error):
    return short(str(error).rstrip("."), 150)
