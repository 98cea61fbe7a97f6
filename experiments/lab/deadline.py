"""A learning rate that ends with the time: half a cosine over as many steps as there will be, as far as can be seen.

How many steps fit into some minutes depends on who else uses the machine, and that changes meanwhile. So after each
epoch the steps to come are counted anew, and what is left of the cosine is spread over them.
"""

import time

import numpy as np


class Deadline:
    """A schedule that falls from `lr` to 0 within so many seconds of now; the first `warmup` steps rise to it.

    look(steps): is to be called after each epoch, with how many steps there were. over: whether the time is. What was
    there decides, so two runs are not alike to the bit: a record says how many steps there were. clock: of seconds.
    """

    def __init__(self, lr, seconds, warmup=0, clock=time.perf_counter):
        self.lr, self.warmup, self.clock = lr, warmup, clock
        self.seen, self.steps, self.done, self.share = clock(), 0, 0.0, 0.0  # share: of the cosine, that a step is
        self.end = self.seen + seconds
        self.epochs_left, self.over = 2, False

    def __call__(self, step):
        step = np.asarray(step)
        rising = np.minimum((step + 1) / (self.warmup + 1), 1.0)
        return (self.lr * rising * (1 + np.cos(np.pi * self._at(step))) / 2)[()]

    def look(self, steps):
        """Count the epochs that still fit in, at the speed of the last one. The first is not there to judge by."""
        now, epoch = self.clock(), steps - self.steps
        self.done = float(self._at(steps))
        took, self.seen, self.steps = now - self.seen, now, steps
        self.over = self.done > 1 - 1e-9
        self.epochs_left = 0 if self.over else max(1, int((self.end - now) / max(took, 1e-9)))
        self.share = (1 - self.done) / max(1, self.epochs_left * epoch)

    def _at(self, step):
        return np.clip(self.done + (step - self.steps) * self.share, 0.0, 1.0)
