"""What Numba's engines are made of: loops, how they are compiled, and where the compiled code is kept."""

import os
from importlib import import_module

MOST_A_CORE = 64  # threads: where OpenMP can't start as many as it is asked for, it ends the process
LAYERS = "default", "forksafe", "omp", "safe", "tbb", "threadsafe", "workqueue"


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
    if text == "tbb":
        try:
            import_module("numba.np.ufunc.tbbpool")
        except ImportError:
            raise ImportError("NUMBA_THREADING_LAYER asks for tbb, which is not here: unset that variable") from None


_check_threads(os.environ.get("NUMBA_NUM_THREADS", "1"))
_check_layer(os.environ.get("NUMBA_THREADING_LAYER", "default").lower())
