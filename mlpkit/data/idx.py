"""The IDX file format, in which MNIST is distributed: a short header, then the elements.

    two zero bytes | type code | number of dimensions | one 4-byte size a dimension | the elements, row by row

Everything is big-endian. A file may be gzipped; that is seen from its first two bytes, not from its name. The format
is described at the foot of http://yann.lecun.com/exdb/mnist/.
"""

import gzip
import zlib
from math import prod

import numpy as np

from mlpkit.paths import check_readable, expanded

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
DEFLATE_LIMIT = 1032  # no deflate stream unpacks to more than this many times its size
PIECE = 2**20  # bytes that are unpacked at a time


class IDXError(ValueError):
    """A file is not a whole, correct IDX file; the message names the file and what is wrong."""


def read_idx(path, most=None):
    """Return the array in the IDX file `path`, gzipped or not, in this machine's byte order.

    most: bytes that the array may have, where it is known what the file should be.

    Raises IDXError where the file is truncated, too long, corrupted or no IDX file, OSError where it is missing or
    can't be read. Takes the memory of the array once, and none for a promise that the file is too small to keep.
    """
    path = expanded(path)
    check_readable(path)
    limit = path.stat().st_size * DEFLATE_LIMIT
    try:
        with _opened(path) as file:
            return _parse(file, limit if most is None else min(limit, most))
    except IDXError as error:
        raise IDXError(f"{path}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise IDXError(f"{path}: the gzip data are damaged or cut short ({error}).") from error


def parts(array):
    """Return the header of an IDX file, and the array (1 to 4 dimensions) as the file has it, not copied if it is so.

    Raises IDXError for a type or a shape that IDX has no code for.
    """
    array = np.asarray(array)
    big_endian = array.dtype.newbyteorder(">")
    codes = {np.dtype(name): code for code, name in TYPES.items()}
    if big_endian not in codes:
        raise IDXError(f"IDX has no type for {array.dtype}: convert to uint8, int8, int16, int32, float32 or float64.")
    if not 1 <= array.ndim <= 4:
        raise IDXError(f"an IDX file here has 1 to 4 dimensions, not {array.ndim}.")
    header = bytes([0, 0, codes[big_endian], array.ndim])
    header += np.array(array.shape, ">u4").tobytes()
    return header, np.ascontiguousarray(array, big_endian)


def _opened(path):
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    return gzip.open(path) if packed else open(path, "rb")


def _parse(file, limit):
    dtype, shape = _parse_header(file)
    size = prod(shape) * dtype.itemsize
    if size > limit:
        raise IDXError(f"truncated: the header promises {size} bytes of data, more than the {limit} that there can be.")
    try:
        data = np.empty(size, np.uint8)  # the system gives memory as it is written to
        array = data.view(dtype).reshape(shape)
    except MemoryError:
        raise IDXError(f"the header promises {size} bytes of data, more than there is memory.") from None
    except ValueError as error:  # no data at all, but sizes beyond what NumPy can count
        raise IDXError(f"the header gives the sizes {shape}, more than an array can have.") from error
    filled, view = 0, data.data
    while filled < size and (n := file.readinto(view[filled : filled + PIECE])):
        filled += n
    if filled < size:
        raise IDXError(f"truncated: the header promises {size} bytes of data, there are {filled}.")
    if file.read(1):
        raise IDXError(f"too long: data go on after the {size} bytes that the header promises.")
    return array if dtype.isnative else array.byteswap(inplace=True).view(dtype.newbyteorder())


def _parse_header(file):
    magic = file.read(4)
    if len(magic) < 4:
        raise IDXError(f"truncated: an IDX header has at least 4 bytes, there are {len(magic)}.")
    if magic.startswith(GZIP_MAGIC):  # the first layer is off already
        raise IDXError("not an IDX file: it is gzipped twice; unpack it once with gunzip.")
    zeros, code, ndim = magic[:2], magic[2], magic[3]
    if zeros != b"\0\0" or code not in TYPES:
        raise IDXError(f"not an IDX file: it begins with the bytes {magic.hex(' ')}.")
    if not 1 <= ndim <= 4:
        raise IDXError(f"the header gives {ndim} dimensions; 1 to 4 can be read.")
    sizes = file.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise IDXError(f"truncated: the sizes of {ndim} dimensions need {4 * ndim} bytes.")
    return np.dtype(TYPES[code]), tuple(np.frombuffer(sizes, ">u4").tolist())
