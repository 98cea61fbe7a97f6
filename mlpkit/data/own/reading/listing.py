"""What is in a folder of pictures, and a sentence on those that can't be used."""

import os
import unicodedata
from pathlib import Path

from mlpkit.words import short

PICTURES = (".png", ".jpg", ".jpeg")
NAMED = 3  # files at most that a sentence names
OF_SYSTEMS = {"thumbs.db", "desktop.ini", "__macosx"}  # as names that begin with a dot


def look_inside(folder, strays):
    """Return the folders in a folder by name, and its pictures, sorted, without hidden ones. Others become strays."""
    try:
        found = sorted(folder.iterdir())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no folder {folder}.") from None
    except OSError as error:
        raise type(error)(f"{folder} can't be read as a folder ({error.strerror}): choose another one.") from error
    seen = [path for path in found if not path.name.startswith(".") and path.name.lower() not in OF_SYSTEMS]
    folders: dict[str, Path] = {}
    for path in filter(Path.is_dir, seen):
        name = unicodedata.normalize("NFC", path.name)
        if name in folders:
            raise ValueError(f"two folders in {folder} are called {name!r}, in other bytes: make one of them.")
        folders[name] = path
    files = [path for path in seen if not path.is_dir()]
    strays += [path for path in files if path.suffix.lower() not in PICTURES]
    return folders, [path for path in files if path.suffix.lower() in PICTURES]


def read_each(do, paths):
    """Yield each path with what `do` returns of it. Raises ValueError at the end, with the names of those that fail."""
    wrong = []
    for path in paths:
        try:
            yield path, do(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path} ").rstrip(".")
            reason = "nothing is there" if isinstance(error, FileNotFoundError) else reason
            wrong.append(f"{path} ({reason})")
    if wrong:
        raise ValueError(f"{named(wrong)} can't be used: mend or remove {'it' if len(wrong) == 1 else 'them'}.")


def check_memory(size, what, advice):
    """Raise ValueError for bytes beyond half of this machine's, which would give them, and then end a process.

    Half: others have some, and what is drawn of the examples is a copy of them.
    """
    if hasattr(os, "sysconf") and 2 * size > (most := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        told = f"{what} take {size / 2**30:.0f} GiB, and this machine has {most / 2**30:.0f}, half of which may be used"
        raise ValueError(f"{told}: {advice}.")


def named(paths):
    paths = list(paths)
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(map(short, paths[:NAMED])) + more
