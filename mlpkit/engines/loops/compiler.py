"""Compile functions with Numba, once for all processes: what every Numba engine stands on.

Numba keeps compiled code in files whose names are made from the function's own file, name and line, and throws it away
when that file has changed. That is not enough here: the engines compile the same loops under different options, and a
function has the code of those that it calls compiled into it. So the name that Numba sees also says for which engine,
and from which version of all sources for Numba, the code was made. (Files of older versions stay: `make clean`.)
"""

import hashlib
from pathlib import Path
from types import FunctionType, SimpleNamespace

import numba

from mlpkit.engines import python_loops

from .cache import keep, require_compiler
from .sharing import make_shared

require_compiler()

# All that Numba's `fastmath=True` allows, except to assume that there is no NaN and no infinity: a network that
# diverges must be seen to diverge.
FASTMATH = {"reassoc", "contract", "arcp", "nsz", "afn"}

# An engine for a GPU may change, and one of NumPy: nothing is compiled from them.
_HERE = Path(__file__).parent
_SOURCES = sorted([*_HERE.glob("*.py"), *_HERE.parent.glob("numba_*.py"), _HERE.parent / "python_loops.py"])
VERSION = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:8]


def compiled(engine, **options):
    """Return a decorator that compiles a function with `numba.njit` and these options, and keeps the code on disk.

    Where no folder can be written to, the code is compiled anew in each process.
    """

    def compile_one(function):
        function.__qualname__ = f"{engine.rpartition('.')[2]}.{function.__name__}.{VERSION}"
        dispatcher = numba.njit(function, no_cfunc_wrapper=True, **options)  # nobody calls it from C
        make_shared(dispatcher)
        return keep(dispatcher)

    return compile_one


class Threads:
    """Those that Numba's parallel loops use, for the Python thread that asks. most: that there can be.

    See `executors.team`.
    """

    most = numba.config.NUMBA_NUM_THREADS
    count, use = staticmethod(numba.get_num_threads), staticmethod(numba.set_num_threads)


def compile_loops(engine, loops=python_loops, parallel=False, calls=None, **options):
    """Return the functions of the module `loops`, compiled, as attributes of a namespace.

    engine: the name of the module that wants them. parallel: share the turns of each `prange` out among `threads`.
    calls: a dict of compiled functions, to be called instead of those of the same name. options: of `numba.njit`.
    """
    done = {**vars(loops), "prange": numba.prange, **(calls or {})}
    functions = [f for f in vars(loops).values() if isinstance(f, FunctionType) and f.__module__ == loops.__name__]
    for function in functions:
        if function is done[function.__name__]:
            copy = FunctionType(function.__code__, done, function.__name__)
            copy.__doc__ = function.__doc__
            share = parallel and "prange" in function.__code__.co_names  # Numba warns where there is nothing to share
            done[function.__name__] = compiled(engine, parallel=share, nogil=True, **options)(copy)
    found = {function.__name__: done[function.__name__] for function in functions}
    for dispatcher in [*found.values()] * len(found):  # one may call another that stands below it
        make_shared(dispatcher)
    return SimpleNamespace(**found, **({"threads": Threads} if parallel else {}))
