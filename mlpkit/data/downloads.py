"""Get a data set's files from its authors: the right ones, whole and in time, or none.

Whatever comes over the wire is counted and timed where it is read: headers and redirects too, and what is no end.
"""

import hashlib
import io
import ssl
import time
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib import request

from mlpkit.files import check_writable, set_aside, write_atomically
from mlpkit.words import short

from .idx import IDXError
from .originals import in_folder, read_original

SILENCE, LONGEST = 20.0, 900.0  # seconds that a server may say nothing, and that a file may take
AROUND = 2**20  # bytes that may come with a file: headers, redirects
HANDLERS = "ProxyHandler", "HTTPRedirectHandler", "HTTPErrorProcessor", "HTTPDefaultErrorHandler", "UnknownHandler"


def download(originals, sources, progress):
    """Get those of an `Originals`' files that are not on this machine; return the paths of all. See `data.download`.

    sources: addresses, each of a folder that has the files as .gz, in the order in which they are asked.
    """
    folder = next(originals.folders())
    with suppress(FileNotFoundError, IDXError):
        return [path for path, file in originals.locate() if len(read_original(path, file))]  # anywhere, and all whole
    paths = [in_folder(folder, file.name) or folder / f"{file.name}.gz" for file in originals.files]
    for index, file in enumerate(originals.files):
        with suppress(FileNotFoundError, IDXError):
            read_original(paths[index], file)
            continue
        paths[index] = folder / f"{file.name}.gz"
        check_writable(paths[index])
        packed = _from_a_source(originals, file, sources, progress)
        set_aside(paths[index])
        write_atomically(paths[index], packed)
    return paths


def _from_a_source(originals, file, sources, progress):
    """Return the bytes of a .gz file from the first source that gives the right ones. Raises OSError if none does."""
    reasons = []
    for source in sources:
        try:
            return _bytes_of(f"{source}{file.name}.gz", file, progress)
        except (OSError, ValueError, HTTPException) as error:  # ValueError: it sends us to an address that is none
            reasons.append(f"{source}: {short(error) or type(error).__name__}".rstrip("."))
    raise OSError(
        f"{file.name}.gz could not be downloaded ({'; '.join(reasons)}): put the {len(originals.files)} .gz files of "
        f"{originals.title} in a folder, and set MLPKIT_DATA to that folder."
    )


def _bytes_of(url, file, progress):
    """Return what is at an address. Raises OSError unless it is the file, in time, and as soon as it is too long."""
    found, wire = bytearray(), partial(_Wire, time.monotonic() + LONGEST, [file.bytes_gz + AROUND])
    opener = request.OpenerDirector()  # through a proxy, where the environment names one; no ftp, and no local files
    for handler in (_Handler(wire), *(getattr(request, name)() for name in HANDLERS)):
        opener.add_handler(handler)
    with opener.open(url, timeout=SILENCE) as answer:
        while piece := answer.read1(2**16):
            found += piece
            progress(len(piece))
            if len(found) > file.bytes_gz:
                raise OSError(f"it sends more than the {file.bytes_gz:,} bytes of this file")
    if hashlib.sha256(found).hexdigest() != file.sha256_gz:
        raise OSError(f"it sends another file: {len(found):,} bytes, whose SHA-256 is not the original's")
    return bytes(found)


class _Handler(request.AbstractHTTPHandler):
    """Opens addresses, and reads what comes by way of a `_Wire`."""

    http_request = https_request = request.AbstractHTTPHandler.do_request_

    def __init__(self, wire):
        super().__init__()
        self.wire = wire

    def http_open(self, asked):
        return self.do_open(partial(self.connection, HTTPConnection), asked)

    def https_open(self, asked):
        from requests import certs

        context = ssl.create_default_context()  # a school has certificates of its own, and some Pythons have none:
        context.load_verify_locations(certs.where())  # type: ignore[attr-defined]
        return self.do_open(partial(self.connection, HTTPSConnection), asked, context=context)

    def connection(self, kind, *arguments, **options):
        found = kind(*arguments, **options)
        found.response_class = self.response
        return found

    def response(self, *arguments, **options):
        found = HTTPResponse(*arguments, **options)
        found.fp = io.BufferedReader(self.wire(found.fp))
        return found


class _Wire(io.RawIOBase):
    """Reads from a file until a time, at most so many bytes: a list of one number, which all wires of a file share."""

    def __init__(self, end, left, file):
        self.end, self.left, self.file = end, left, file

    def readable(self):
        return True

    def readinto(self, buffer):
        if time.monotonic() > self.end:
            raise OSError(f"it takes more than {LONGEST / 60:.0f} minutes")
        count = self.file.readinto1(buffer)
        self.left[0] -= count
        if self.left[0] < 0:
            raise OSError("it sends more than this file")
        return count

    def close(self):
        self.file.close()
        super().close()
