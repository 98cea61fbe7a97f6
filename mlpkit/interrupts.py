"""Ctrl-C, SIGTERM or SIGHUP ends a measurement, whoever swallows the exception; from then on nothing is kept.

`fit` returns what there is, a callback from C ignores it, an import in C makes an ImportError of it, and Numba a
SystemError: a part of a training would be recorded as a whole one, or the exception as the reason why an engine has no
time.
"""

import signal
import sys
from contextlib import contextmanager
from threading import current_thread, main_thread

AGAIN = 0.3  # seconds; what ends in time, such as another process, has them for it
NAMES = "SIGINT", "SIGTERM", "SIGHUP", "SIGALRM"  # Windows has not all of them
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


@contextmanager
def heeded(again=AGAIN):
    """Raise KeyboardInterrupt at Ctrl-C, SIGTERM or SIGHUP, and again until what is done in this context has ended.

    again: the seconds between two of them; 0 for once. Yields a function to call before anything is kept: it raises
    KeyboardInterrupt once one of them came. A shell has its background jobs ignore Ctrl-C; then so does this.
    """
    came = False

    def stop(*_):
        nonlocal came
        came = True
        _ring(again)
        check()

    def check():
        if came:
            raise KeyboardInterrupt

    def show(unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):  # which comes again
            shown(unraisable)

    shown, sys.unraisablehook = sys.unraisablehook, show
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in heard]
    try:
        yield check
    except Exception:
        check()
        raise
    finally:
        _ring(0)
        for number, handler in zip(heard, before, strict=True):
            signal.signal(number, handler)
        sys.unraisablehook = shown


@contextmanager
def put_off(starts=False):
    """Have Ctrl-C wait for the end of this context, which has to be short.

    starts: whether threads or processes are started in it. They hear none: a terminal sends it to all.
    """
    came: list[int] = []
    hears = current_thread() is main_thread() and callable(signal.getsignal(signal.SIGINT))
    masks = starts and hasattr(signal, "pthread_sigmask")  # which are inherited; Windows has none
    if masks:
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # Python's own, which else would open the ears of the thread that begins it
    handler = hears and signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if hears:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _ring(seconds):
    """Have the alarm ring after so many seconds, never if 0."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
