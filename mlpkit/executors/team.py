"""How many threads take a step: all there are, and fewer while another program needs the cores.

Threads that share a step wait for each other, and a library's spin while they do. Where the system has put one of them
aside for another program, the rest wait for its next turn, which is milliseconds away, several times a step. No choice
among the ways of waiting mends that: a step can't end before its slowest share. One thread has nobody to wait for.

So an engine's threads are a team whose steps are timed. While steps take longer than half as many threads would need,
the time lost adds up, and when it is more than PATIENCE the team is halved. After REST times what was lost it grows
again, on trial. A trial soon has lost enough, and is followed by a longer rest: so on a machine that is still busy
trials cost less than two percent of the time. What half as many need is at first a guess: twice the fastest step. Where
all steps are slow the guess is, too. So one that takes longer than PATIENCE by itself lets half of the team try.

Nothing here depends on the system. (Numba's loops compute the same bits with a team of any size. OpenBLAS's sums round
otherwise.)
"""

import time

PATIENCE = 0.02  # seconds lost: more than a hiccup of a quiet machine
REST = 30  # how many times what was lost a smaller team works before the next trial; after one that failed, twice that
DOUBT = 10 * PATIENCE  # seconds for which a team that has grown is on trial, with half of the patience
TRIAL = 4  # steps, of the larger team, for which the smaller one tries: so half of it can try, too
SLACK = 1.2  # as much longer than half the team may a step take: where they are level, nothing is lost


class ThreadTeam:
    """Chooses how many threads take the steps of a training, within `with`; outside it there are as many as before.

    threads: an object such as `engines.threads.Blas`, None where an engine has none to choose. clock: returns seconds.
    """

    def __init__(self, threads=None, clock=time.perf_counter):
        self.threads, self.clock = threads, clock
        self.most = self.size = 1
        self.best = {}  # seconds of the fastest step of late, by the size of the team
        self.lost = self.until = self.doubted = 0.0

    def __enter__(self):
        most = self.threads.count() if self.threads else 1
        if most != self.most:  # somebody has chosen another number since
            self.most = self.size = most
            self.best, self.lost = {}, 0.0
        elif self.size != most:
            self.threads.use(self.size)
        self.last = self.clock()
        return self

    def __exit__(self, *_):
        if self.size != self.most:
            self.threads.use(self.most)

    def stepped(self, whole=True):
        """Say that a step is over, of a batch that was whole or not; choose the size of the team for the next."""
        now = self.clock()
        seconds, self.last = now - self.last, now
        if self.most == 1 or not whole:
            return
        fewer, known = self.size // 2, {self.size, self.size // 2} & self.best.keys()
        best = self.best[self.size] = min(seconds, self.best.get(self.size, seconds))
        patience = PATIENCE / 2 if now < self.doubted else PATIENCE
        if fewer and known:  # the first step of all may compile
            half_as_many = SLACK * self.best[fewer] if fewer in self.best else best * self.size / fewer
            self.lost = max(0.0, self.lost + seconds - half_as_many)
        if fewer and known and fewer not in self.best and seconds > PATIENCE:
            self.until = now + TRIAL * seconds
            self._become(fewer)
        elif self.lost > patience:
            self.until = now + REST * self.lost * PATIENCE / patience
            self._become(fewer)
        elif self.size < self.most and now > self.until:
            self.doubted = now + DOUBT
            self._become(min(2 * self.size, self.most))

    def _become(self, size):
        self.threads.use(size)
        self.size, self.lost = size, 0.0
        self.best.pop(size, None)
