"""Numba's files of compiled code are there to save time, and so must stop nothing.

Numba itself ends with an error where such a file is damaged, or of another process, or where the disk is full.
"""

from contextlib import suppress

import numba
from numba.core.caching import FunctionCache
from numba.core.sigutils import normalize_signature


def require_compiler():
    """Raise ImportError where Numba would not compile: plain Python's times would stand under its name."""
    if numba.config.DISABLE_JIT:
        raise ImportError("NUMBA_DISABLE_JIT turns Numba's compiler off: unset that variable")


def keep(dispatcher):
    """Have the code of a compiled function kept on disk, if there is a folder for it, and return the function."""
    # RuntimeError: no folder that can be written to. UnicodeError: a path that is not UTF-8.
    with suppress(RuntimeError, UnicodeError):
        dispatcher._cache = Cache(dispatcher.py_func)
    return dispatcher


class Cache(FunctionCache):  # type: ignore[misc]  # Numba has no types
    """The code of one function."""

    def load_overload(self, sig, target_context):
        try:
            found = super().load_overload(sig, target_context)
        except Exception:  # a file that was cut short, as when the power fails: make it anew
            with suppress(OSError):
                self.flush()
            return None
        # Two processes that save at once may choose one file for two signatures. Then it holds only one's code.
        return found if found is None or found.signature.args == normalize_signature(sig)[0] else None

    def save_overload(self, *arguments):
        try:
            super().save_overload(*arguments)
        except OSError:  # a full disk: the code is there, and the next process compiles again
            pass
        except RuntimeError as error:  # Ctrl-C as LLVM handed its code to a callback, where Python only prints it
            if "no compiled object" not in str(error):
                raise
            raise KeyboardInterrupt from error
