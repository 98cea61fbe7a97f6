"""As many threads as pay: crews on machines that a clock of our own makes quiet or busy."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from shared import blobs
from threadpoolctl import ThreadpoolController, threadpool_limits

from mlpkit import engines
from mlpkit.engines.crew import PATIENCE, Blas, Crew
from mlpkit.nn.models import MLP, mlp
from mlpkit.nn.network import Network
from mlpkit.training.fit import trainer_of
from mlpkit.training.optim import SGD

ALONE = 1e-2  # seconds that a step takes one thread
STALLED = 0.1  # seconds of a step whose threads wait for one that another program has put aside


class Machine:
    """Threads to be chosen from, and a clock that goes on by what a step takes so many of them."""

    def __init__(self, threads=2):
        self.most, self.using, self.time, self.free = threads, threads, 1e6, threads

    def count(self):
        return self.most

    def use(self, n):
        assert 1 <= n <= self.most
        self.using = n

    def clock(self):
        return self.time

    def step(self):
        self.time += ALONE / self.using if self.using <= self.free else STALLED

    def train(self, crew, seconds):
        """Take steps for so long, twenty an epoch, and return how many there were."""
        end, steps = self.time + seconds, 0
        while self.time < end:
            with crew:
                for _ in range(20):
                    self.step()
                    crew.stepped()
            steps += 20
            assert self.using == self.most  # nobody else finds fewer threads than there were
        return steps


def crew_of(machine):
    return Crew(machine, machine.clock)


@pytest.mark.parametrize("busy", [1, 3])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_beside_busy_programs_a_crew_that_fits_works_and_later_all_again(threads, busy):
    machine = Machine(threads)
    crew = crew_of(machine)
    quiet = machine.train(crew, 1.0)
    assert crew.size == threads
    machine.free = max(1, threads - busy)
    machine.train(crew, 3.0)
    fits = threads
    while fits > machine.free:
        fits //= 2
    assert machine.train(crew, 20.0) / 20 > 0.9 * fits / ALONE
    machine.free = threads
    machine.train(crew, threads.bit_length() * 10)
    assert machine.train(crew, 1.0) == pytest.approx(quiet, rel=0.01)


def test_one_that_begins_beside_a_busy_program_finds_out():
    """The first steps are all slow, but not equally."""
    machine = Machine()
    machine.free = 1
    crew, seconds = crew_of(machine), iter([0.5, 0.004, 0.04, 0.04])
    machine.step = lambda: setattr(machine, "time", machine.time + (ALONE if machine.using == 1 else next(seconds)))
    with crew:
        for _ in range(10):
            machine.step()
            crew.stepped()
    assert crew.size == 1


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_one_whose_steps_are_all_equally_slow_finds_out_too(threads):
    machine = Machine(threads)
    machine.free = 1
    crew = crew_of(machine)
    machine.train(crew, 3.0)
    assert machine.train(crew, 20.0) / 20 > 0.9 / ALONE
    machine.free = threads
    machine.train(crew, threads.bit_length() * 10)
    assert crew.size == threads


@pytest.mark.parametrize("gain", [1, 1.1, 2])
def test_long_steps_on_a_quiet_machine_are_tried_once_with_fewer(gain):
    machine = Machine()
    crew = crew_of(machine)
    machine.step = lambda: setattr(machine, "time", machine.time + 5 * PATIENCE / (gain if machine.using == 2 else 1))
    machine.train(crew, 10.0)
    assert crew.size == 2
    steps = machine.train(crew, 50.0)
    assert steps == pytest.approx(50.0 / (5 * PATIENCE / gain), rel=0.05)


@given(st.lists(st.floats(0, PATIENCE / 2), max_size=10))
def test_a_hiccup_now_and_then_changes_nothing(hiccups):
    machine = Machine()
    crew = crew_of(machine)
    for hiccup in hiccups:
        machine.train(crew, 0.5)
        machine.time += hiccup
        machine.train(crew, 0.5)
        assert crew.size == 2


def test_a_first_step_that_compiles_and_a_last_batch_that_is_small_do_not_count():
    machine = Machine()
    crew = crew_of(machine)
    with crew:
        machine.time += 9.0
        crew.stepped()
        for _ in range(200):
            machine.step()
            crew.stepped()
            machine.time += ALONE / 100
            crew.stepped(whole=False)
    assert crew.size == 2


def test_an_interrupted_epoch_gives_all_threads_back():
    machine = Machine()
    crew = crew_of(machine)
    machine.train(crew, 1.0)
    machine.free, used = 1, []
    machine.train(crew, 1.0)

    def interrupted():
        used.append(machine.using)
        raise KeyboardInterrupt

    machine.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        machine.train(crew, 1.0)
    assert (used, machine.using) == ([1], 2)


def test_a_number_that_somebody_chooses_is_the_most():
    machine = Machine(8)
    crew = crew_of(machine)
    machine.train(crew, 1.0)
    machine.most = machine.using = machine.free = 1
    machine.train(crew, 1.0)
    assert crew.most == crew.size == 1


def test_nothing_to_choose_from():
    crew = Crew()
    with crew:
        crew.stepped()
    assert crew.size == 1


# Engines

SHARING = [name for name in engines.names() if engines.library(name) in ("numpy", "numba") and name != "numba_serial"]


def test_the_engines_that_share_out_say_so():
    for name in engines.names():
        if not engines.on_gpu(name):
            assert bool(getattr(engines.load(name), "threads", None)) == (name in SHARING), name


@pytest.mark.parametrize("name", SHARING)
def test_an_engine_uses_what_it_is_told_and_then_what_it_had(name):
    threads = engines.load(name).threads()
    most = threads.count()
    threads.use(1)
    try:
        assert engines.load(name).threads().count() == 1
    finally:
        threads.use(most)
    assert engines.load(name).threads().count() == most


LOOPS = [name for name in SHARING if name in engines.names(MLP.operations) and name.startswith("numba")]


@pytest.mark.parametrize("name", [name for name in LOOPS if "hybrid" not in name])
def test_a_smaller_crew_computes_the_same_bits(name):
    found = []
    for size in sorted({1, numba.config.NUMBA_NUM_THREADS}):
        network = Network(name, mlp(6, 40, 3))
        X, y = blobs(90)
        trainer = trainer_of(network, SGD(network, 0.1), X, y, 30)
        losses = trainer.epoch(np.arange(90))
        trainer.crew.size = size
        losses += trainer.epoch(np.arange(90))
        found.append((losses, network.theta))
    for losses, theta in found:
        assert_array_equal(losses, found[0][0])
        assert_array_equal(theta, found[0][1])


def test_a_blas_is_limited_and_found_as_it_was():
    with threadpool_limits(2, "blas"):
        blas = Blas()
        assert blas.count() in (1, 2)
        with threadpool_limits(1, "blas"):
            assert blas.count() == 1
        most = blas.count()
        blas.use(1)
        found = ThreadpoolController().select(user_api="blas").lib_controllers
        assert all(library.num_threads == 1 for library in found)
        blas.use(most)
        assert blas.count() == most
