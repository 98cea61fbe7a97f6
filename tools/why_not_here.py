"""Print why no set of packages exists for the Python that runs this, in one sentence; nothing where there is one.

README.md's table says the same, and tests/repository/test_environment.py asks the index whether it is so.
"""

import os
import platform
import sys

PROCESSORS = {"Linux": ("x86_64", "aarch64"), "Darwin": ("x86_64", "arm64")}
GLIBC, MACOS = (2, 28), (12, 0)  # the oldest that NumPy's and Numba's wheels are for


def why_not() -> str | None:
    system, processor = platform.system(), platform.machine()
    if processor not in PROCESSORS.get(system, ()) or sys.maxsize < 2**32:
        bits = "32" if sys.maxsize < 2**32 else "64"
        return f"NumPy and Numba have no packages for a Python of {bits} bits on {system} with a processor {processor}"
    if system == "Linux":
        name, _, version = _libc().partition(" ")
        if name != "glibc":
            return "Numba has no package for a Linux without glibc, such as Alpine: take another, as Debian's image is"
        if _numbers(version) < GLIBC:
            return f"NumPy has no package for glibc {version}: a Linux of 2019 or newer has 2.28, which it needs"
    elif (10, 16) != _numbers(platform.mac_ver()[0]) < MACOS:  # 10.16: what a newer one tells an old Python
        return f"Numba has no package for macOS {platform.mac_ver()[0]}: it needs macOS 12"
    return None


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl knows no such thing
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


if __name__ == "__main__" and (reason := why_not()):
    sys.exit(f"This workbook can't be set up here: {reason}. Colab runs it in a browser: binder/README.md says how.")
