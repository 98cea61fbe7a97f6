"""Ctrl-C ends a measurement, whoever swallows the exception that it raises, and nothing is kept from then on.

`fit` returns what there is, a callback from C ignores it, an import in C makes an ImportError of it, and Numba a
SystemError: a part of a training would be recorded as a whole one, or the exception as the reason why an engine has no
time.
"""

import signal
import sys
from contextlib import contextmanager

AGAIN = 0.3  # seconds; what ends in time, such as another process, has them for it
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGALRM") if hasattr(signal, name)]  # Windows has no alarm


@contextmanager
def heeded():
    """Raise KeyboardInterrupt at Ctrl-C, and again every AGAIN seconds, until what is done in this context has ended.

    Yields a function to call before anything is kept: it raises KeyboardInterrupt once Ctrl-C came.
    """
    came = False

    def stop(*_):
        nonlocal came
        came = True
        _ring(AGAIN)
        check()

    def check():
        if came:
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has its background jobs ignore Ctrl-C
        yield check
        return

    def show(unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):  # which comes again
            shown(unraisable)

    shown, sys.unraisablehook = sys.unraisablehook, show
    before = [signal.signal(number, stop) for number in SIGNALS]
    try:
        yield check
    except Exception:
        check()
        raise
    finally:
        _ring(0)
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
        sys.unraisablehook = shown


def _ring(seconds):
    """Have the alarm ring after so many seconds, never if 0."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
