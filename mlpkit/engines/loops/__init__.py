"""What Numba's engines are made of: loops, how they are compiled, and where the compiled code is kept."""

import os

MOST_A_CORE = 64  # threads: where OpenMP can't start as many as it is asked for, it ends the process


def _check_threads(text):
    """Raise ImportError where NUMBA_NUM_THREADS has a `text` that Numba can't follow."""
    most = MOST_A_CORE * (os.cpu_count() or 1)
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ImportError(f"NUMBA_NUM_THREADS must be a number from 1 to {most}, not {text!r}: unset that variable")


_check_threads(os.environ.get("NUMBA_NUM_THREADS", "1"))
