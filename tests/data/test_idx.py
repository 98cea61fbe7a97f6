"""What is written as IDX is read back; what is damaged is refused, with a sentence that names the file."""

import gzip
import os
import struct
import tracemalloc
import zlib
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.testing import assert_array_equal
from shared import LAYOUTS, idx_bytes, one_sentence

from mlpkit.data.idx import IDXError, read_idx

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: "i2", 0x0C: "i4", 0x0D: "f4", 0x0E: "f8"}
MiB = 2**20


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(sorted(TYPES.values())))).newbyteorder(draw(st.sampled_from("<>")))
    shape = draw(arrays_of.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
    store, look = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    return look(store(draw(arrays_of.arrays(dtype, shape))))


@given(array=arrays(), suffix=st.sampled_from(["", ".gz"]))
def test_what_is_written_is_read_back(array, suffix, tmp_path_factory):
    path, data = tmp_path_factory.getbasetemp() / f"round-trip{suffix}", idx_bytes(array)
    path.write_bytes(gzip.compress(data) if suffix else data)
    found = read_idx(path)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.dtype.isnative
    assert_array_equal(found, array)
    assert found.tobytes() == array.astype(found.dtype).tobytes()  # a NaN keeps its bits, a zero its sign
    found[...] = 0  # its own memory, not a read-only view of the file


@pytest.mark.parametrize(("code", "letters"), [*zip(TYPES, ["B", "b", "h", "i", "f", "d"], strict=True)])
def test_the_bytes_are_those_of_the_format(code, letters, tmp_path):
    """Written by hand with struct, from the format's description."""
    values = (1, 2, 3, 100, 5, 6)
    data = struct.pack(f">BBBBII6{letters}", 0, 0, code, 2, 2, 3, *values)
    (tmp_path / "by-hand").write_bytes(data)
    found = read_idx(tmp_path / "by-hand")
    assert found.dtype == TYPES[code]
    assert_array_equal(found, np.reshape(values, (2, 3)))
    assert idx_bytes(found) == data


def test_gzip_is_seen_from_the_bytes_and_not_from_the_name(tmp_path):
    array = np.arange(5, dtype=np.int16)
    (tmp_path / "plain.gz").write_bytes(idx_bytes(array))
    (tmp_path / "packed").write_bytes(gzip.compress(idx_bytes(array)))
    assert_array_equal(read_idx(tmp_path / "plain.gz"), array)
    assert_array_equal(read_idx(str(tmp_path / "packed")), array)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(3, np.int64), "int64"),
        (np.zeros(3, np.uint16), "uint16"),
        (np.zeros(3, bool), "bool"),
        (np.zeros(3, complex), "complex128"),
        (np.array(["a"]), "<U1"),
        (np.array([None]), "object"),
        (np.float32(1), "not 0"),
        (np.zeros((1,) * 5, np.uint8), "not 5"),
    ],
)
def test_what_idx_cannot_hold_is_refused(array, words):
    with pytest.raises(IDXError) as caught:
        idx_bytes(array)
    one_sentence(caught.value, words)


# Damage

WHOLE = idx_bytes(np.arange(12, dtype=np.int16).reshape(3, 4))
PACKED = gzip.compress(WHOLE, mtime=0)


def refuse(path, data, *words):
    """Assert that a file of these bytes is refused, in a sentence that names it."""
    path.write_bytes(data)
    with pytest.raises(IDXError) as caught:
        read_idx(path)
    one_sentence(caught.value, path, *words)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_file_cut_anywhere_is_refused(length, tmp_path):
    refuse(tmp_path / "cut", WHOLE[:length], "truncated")


@pytest.mark.parametrize("length", range(len(PACKED)))
def test_a_gzipped_file_cut_anywhere_is_refused(length, tmp_path):
    # With fewer than two bytes it can't be seen to be gzipped.
    refuse(tmp_path / "cut.gz", PACKED[:length], "damaged or cut short" if length > 1 else "truncated")


def test_a_gzipped_file_damaged_anywhere_is_never_read_as_something_else(tmp_path):
    """A flipped bit is found, by the checksum at the latest, unless it says nothing of the data: gzip's time stamp."""
    path, harmless = tmp_path / "flipped.gz", 0
    for position, bit in product(range(len(PACKED)), range(8)):
        data = bytearray(PACKED)
        data[position] ^= 1 << bit
        path.write_bytes(data)
        try:
            assert idx_bytes(read_idx(path)) == WHOLE
            harmless += 1
        except IDXError as error:
            one_sentence(error, path)
    assert harmless <= 8 * 8  # seven bytes of the header, and what fills up the last byte of the data


@pytest.mark.parametrize("garbage", [b"x", b"\0", WHOLE, b"x" * 100_000], ids=["x", "0", "twice", "much"])
def test_data_after_the_end_are_refused(garbage, tmp_path):
    refuse(tmp_path / "long", WHOLE + garbage, "too long")
    refuse(tmp_path / "long.gz", gzip.compress(WHOLE + garbage), "too long")


def test_garbage_after_the_gzip_data_is_refused(tmp_path):
    refuse(tmp_path / "trailing.gz", PACKED + b"x", "damaged")
    refuse(tmp_path / "twice.gz", PACKED + PACKED, "too long")


def test_a_file_that_was_gzipped_twice_is_told_from_others(tmp_path):
    """As a browser does that saves a .gz file under a server's compression."""
    refuse(tmp_path / "twice.gz", gzip.compress(PACKED), "gzipped twice", "gunzip")


def header(code, *sizes):
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, code, len(sizes), *sizes)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\1\x08\1\0\0\0\1\0", "not an IDX file"),
        (b"\x89PNG\r\n\x1a\n", "not an IDX file"),
        (b"<!DOCTYPE html>", "not an IDX file"),  # a download gone wrong
        (WHOLE[::-1], "not an IDX file"),
        (b"\0\0\x0a\1\0\0\0\1\0", "not an IDX file"),  # 0x0a is no type
        (b"\0\0\x0f\1\0\0\0\1\0", "not an IDX file"),
        (b"\0\0\x08\0\0", "0 dimensions"),
        (header(0x08, 1, 1, 1, 1, 1) + b"\0", "5 dimensions"),
        (b"\0\0\x08\xff" + bytes(2000), "255 dimensions"),
        (b"", "truncated"),
    ],
)
def test_a_file_of_another_kind_is_refused(data, words, pack, tmp_path):
    refuse(tmp_path / "other", pack(data), words)


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("code", TYPES)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_a_header_that_promises_too_much_is_refused_without_the_memory(pack, code, ndim, tmp_path):
    data = pack(header(code, *[2**32 - 1] * ndim) + bytes(100))
    with at_most(1 * MiB):
        refuse(tmp_path / "boast", data, "truncated")


def test_no_data_in_sizes_beyond_count_are_refused(tmp_path):
    refuse(tmp_path / "nothing", header(0x08, 0, *[2**32 - 1] * 3), "sizes")


class at_most:
    """Assert that the block needs at most so many bytes of memory at a time, NumPy's and zlib's included."""

    def __init__(self, limit):
        self.limit = limit

    def __enter__(self):
        tracemalloc.start()

    def __exit__(self, *error):
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < self.limit, f"{peak / MiB:.0f} MiB"


def bomb(start, size):
    """Return a gzip file of about a thousandth of `size`: `start`, and then zeros. Its checksum is never reached."""
    packer = zlib.compressobj(9, wbits=31)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush a block stands for itself, so packing one is packing all of them.
    block = packer.compress(bytes(MiB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (size // MiB)


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    """A gigabyte of zeros in a megabyte."""
    path = tmp_path / "bomb.gz"
    for sizes, words in [((10,), "too long"), ((0,), "too long"), ((2**32 - 1,), "truncated")]:
        data = bomb(header(0x08, *sizes), 1024 * MiB)
        assert len(data) < 2 * MiB
        with at_most(8 * MiB):
            refuse(path, data, words)


@pytest.mark.parametrize("code", [0x08, 0x0E])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_reading_takes_the_memory_that_the_header_promises_once(beyond, code, tmp_path):
    promised = 64 * MiB
    data = header(code, promised // np.dtype(TYPES[code]).itemsize) + bytes(promised + beyond)
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(data))
    del data
    with at_most(promised + 4 * MiB):
        if beyond:
            with pytest.raises(IDXError):
                read_idx(tmp_path / "zeros.gz")
        else:
            assert read_idx(tmp_path / "zeros.gz").nbytes == promised


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"pipe can't be read \(it is no regular file\)"):
        read_idx(tmp_path / "pipe")


def test_what_is_no_file_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        read_idx(tmp_path / "missing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught:
        read_idx(tmp_path / "folder")
    assert not isinstance(caught.value, FileNotFoundError)
