"""Ctrl-C before or after what belongs together, and not in between."""

import signal
import threading
from contextlib import contextmanager


@contextmanager
def uninterrupted():
    """Hold back Ctrl-C until the end of a `with` block, which has to be short. (Only the main thread ever gets one.)"""
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
