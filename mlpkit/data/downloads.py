"""Get a data set's files from its authors: the right ones, whole and in time, or none."""

import hashlib
import time
from contextlib import suppress

from mlpkit.files import check_writable, set_aside, write_atomically

from .idx import IDXError
from .originals import in_folder, read_original

SILENCE, LONGEST = 20.0, 900.0  # seconds that a server may say nothing, and that a file may take


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
        except OSError as error:
            reasons.append(f"{source}: {error}".rstrip("."))
    raise OSError(
        f"{file.name}.gz could not be downloaded ({'; '.join(reasons)}): put the {len(originals.files)} .gz files of "
        f"{originals.title} in a folder, and set MLPKIT_DATA to that folder."
    )


def _bytes_of(url, file, progress):
    """Return what is at an address. Raises OSError unless it is the file, in time, and as soon as it is too long."""
    import requests

    found, end = bytearray(), time.monotonic() + LONGEST
    with requests.get(url, stream=True, timeout=SILENCE, headers={"Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        while piece := _next_piece(answer.raw):
            found += piece
            progress(len(piece))
            if len(found) > file.bytes_gz:
                raise OSError(f"it sends more than the {file.bytes_gz:,} bytes of this file")
            if time.monotonic() > end:
                raise OSError(f"it takes more than {LONGEST / 60:.0f} minutes")
    if hashlib.sha256(found).hexdigest() != file.sha256_gz:
        raise OSError(f"it sends another file: {len(found):,} bytes, whose SHA-256 is not the original's")
    return bytes(found)


def _next_piece(answer):
    """Return what has come of an answer, without waiting for more."""
    from urllib3.exceptions import HTTPError

    try:
        return answer.read1(2**16)
    except HTTPError as error:
        raise OSError(str(error)) from error
