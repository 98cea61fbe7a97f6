"""What Numba's engines are made of: loops, how they are compiled, and where the compiled code is kept."""

import os
from importlib import import_module

MOST_A_CORE = 64  # threads: where OpenMP can't start as many as it is asked for, it ends the process
LAYERS = "default", "forksafe", "omp", "safe", "tbb", "threadsafe", "workqueue"
POOLS = {"omp": ("omp",), "safe": ("tbb",), "tbb": ("tbb",), "threadsafe": ("tbb", "omp")}  # one of these must be there


def _check_threads(text):
    """Raise ImportError where NUMBA_NUM_THREADS has a `text` that Numba can't follow."""
    most = MOST_A_CORE * (os.cpu_count() or 1)
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ImportError(f"NUMBA_NUM_THREADS must be a number from 1 to {most}, not {text!r}: unset that variable")


def _check_layer(text):
    """Raise ImportError where NUMBA_THREADING_LAYER has a `text` that Numba can't follow."""
    if text not in LAYERS:
        raise ImportError(
            f"NUMBA_THREADING_LAYER must be one of {', '.join(LAYERS)}, not {text!r}: unset that variable"
        )
    if text in POOLS and not any(map(_is_there, POOLS[text])):
        needed = " or ".join(POOLS[text])
        raise ImportError(f"NUMBA_THREADING_LAYER={text} takes {needed}, which is not here: unset that variable")


def _is_there(pool):
    try:
        return import_module(f"numba.np.ufunc.{pool}pool")
    except ImportError:
        return None


_check_threads(os.environ.get("NUMBA_NUM_THREADS", "1"))
_check_layer(os.environ.get("NUMBA_THREADING_LAYER", "default").lower())
