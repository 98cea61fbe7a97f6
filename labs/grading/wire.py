"""Plain numbers over a pipe, between two processes of which one is not to be trusted: JSON, and the arrays' bytes.

This file is used on both sides, and imports nothing of the workbook.
"""

import json
import os
import select
import struct
import time

import numpy as np

HEADER = struct.Struct(">II")  # bytes of JSON, bytes of arrays
LARGEST = 64 * 2**20  # bytes of arrays a message
LARGEST_TEXT = 8 * 2**20  # bytes of JSON: as objects of Python they are 40 times as many
MOST_ITEMS = 100_000
DEEPEST = 8
MOST_TYPES = 100


class Ended(Exception):
    """The other side is gone, is late, or says what nobody can read."""


def send(descriptor, message):
    """Write a message: None, True, numbers, text, bytes, arrays; lists, tuples, dicts of them; others by type."""
    arrays: list[bytes] = []
    text = json.dumps(_pack(message, arrays)).encode()
    blob = b"".join(arrays)
    if len(text) > LARGEST_TEXT or len(blob) > LARGEST:
        raise ValueError("more than 64 MB of arrays, or 8 MB of lists")
    data = memoryview(HEADER.pack(len(text), len(blob)) + text + blob)
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError as error:
            raise Ended("it has ended") from error


def receive(descriptor, seconds=None):
    """Return the next message. Raises Ended after `seconds` without one, and for whatever is none."""
    deadline = None if seconds is None else time.monotonic() + seconds
    n_text, n_blob = HEADER.unpack(_read(descriptor, HEADER.size, deadline))
    if n_text > LARGEST_TEXT or n_blob > LARGEST:
        raise Ended("it sent more than 64 MB of arrays, or 8 MB of lists")
    text, blob = _read(descriptor, n_text, deadline), _read(descriptor, n_blob, deadline)
    try:
        return _unpack(json.loads(text), _Blob(blob))
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, MemoryError) as error:
        raise Ended("it sent what is no answer") from error


def _read(descriptor, size, deadline):
    parts = []
    while size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise Ended("it took too long")
        part = os.read(descriptor, min(size, 2**20))
        if not part:
            raise Ended("it has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _pack(value, arrays, depth=0):
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int and -(2**63) <= value < 2**63:
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is bytes and len(value) <= MOST_ITEMS:
        return {"bytes": value.hex()}
    if kind in (list, tuple, dict) and depth < DEEPEST and len(value) <= MOST_ITEMS:
        if kind is dict:
            return {"dict": [[str(key), _pack(item, arrays, depth + 1)] for key, item in value.items()]}
        return {kind.__name__: [_pack(item, arrays, depth + 1) for item in value]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc" and value.nbytes <= LARGEST:
        if type(value) is np.ma.MaskedArray:
            return {"odd": "MaskedArray"}
        array = np.asarray(value)
        start = sum(map(len, arrays))
        arrays.append(array.tobytes())
        return {"array": [array.dtype.str, list(array.shape), start, isinstance(value, np.generic)]}
    if getattr(value, "named", None) is True:
        return {"name": value.__name__}
    return {"odd": kind.__name__}


class _Blob:
    """The arrays' bytes, of which each is taken once: many arrays at one place would be more than what came.

    types: for what is no number, by name. A type takes a kilobyte, so there are few of them.
    """

    def __init__(self, data):
        self.data, self.left = data, len(data)
        self.types: dict = {}

    def take(self, start, size):
        self.left -= size
        if self.left < 0 or start + size > len(self.data):
            raise ValueError
        return self.data[start : start + size]


def _unpack(value, blob, depth=0):
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is not dict or len(value) != 1 or depth > DEEPEST:
        raise ValueError
    ((what, content),) = value.items()
    if what == "float":
        return float.fromhex(content)
    if what == "bytes":
        return bytes.fromhex(content)
    if what in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[what](_unpack(item, blob, depth + 1) for item in content)
    if what == "dict":
        return {str(key): _unpack(item, blob, depth + 1) for key, item in content}
    if what == "array":
        text, shape, start, scalar = content
        dtype = np.dtype(str(text)[:8])  # a longer one would be of many parts
        if dtype.kind not in "biufc" or any(type(n) is not int or n < 0 for n in (*shape, start)) or len(shape) > 32:
            raise ValueError
        size = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
        array = np.frombuffer(bytearray(blob.take(start, size)), dtype).reshape(shape)
        return array[()] if scalar and not shape else array
    if what == "name":
        return Name(str(content))
    if what == "odd":
        name = "".join(c for c in str(content) if c.isidentifier())[:40] or "object"
        name = name if len(blob.types) < MOST_TYPES else "object"
        if name not in blob.types:
            blob.types[name] = type(name, (), {})
        return blob.types[name]()
    raise ValueError


class Name(str):
    """What the other side has under this name."""
