"""As many threads as pay: teams on machines that a clock of our own makes quiet or busy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController, threadpool_limits

from mlpkit import engines
from mlpkit.engines.threads import Blas
from mlpkit.executors.team import PATIENCE, ThreadTeam
from mlpkit.nn.models import MLP

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

    def train(self, team, seconds):
        """Take steps for so long, twenty an epoch, and return how many there were."""
        end, steps = self.time + seconds, 0
        while self.time < end:
            with team:
                for _ in range(20):
                    self.step()
                    team.stepped()
            steps += 20
            assert self.using == self.most  # nobody else finds fewer threads than there were
        return steps


def team_of(machine):
    return ThreadTeam(machine, machine.clock)


@pytest.mark.parametrize("busy", [1, 3])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_beside_busy_programs_a_team_that_fits_works_and_later_all_again(threads, busy):
    machine = Machine(threads)
    team = team_of(machine)
    quiet = machine.train(team, 1.0)
    assert team.size == threads
    machine.free = max(1, threads - busy)
    machine.train(team, 3.0)
    fits = threads
    while fits > machine.free:
        fits //= 2
    assert machine.train(team, 20.0) / 20 > 0.9 * fits / ALONE
    machine.free = threads
    machine.train(team, threads.bit_length() * 10)
    assert machine.train(team, 1.0) == pytest.approx(quiet, rel=0.01)


def test_trials_on_a_machine_that_stays_busy_cost_two_percent_at_most():
    machine = Machine()
    machine.free, team = 1, team_of(machine)
    machine.train(team, 10.0)
    assert machine.train(team, 100.0) / 100 > 0.98 / ALONE


def test_one_that_begins_beside_a_busy_program_finds_out():
    """The first steps are all slow, but not equally."""
    machine = Machine()
    machine.free = 1
    team, seconds = team_of(machine), iter([0.5, 0.004, 0.04, 0.04])
    machine.step = lambda: setattr(machine, "time", machine.time + (ALONE if machine.using == 1 else next(seconds)))
    with team:
        for _ in range(10):
            machine.step()
            team.stepped()
    assert team.size == 1


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_one_whose_steps_are_all_equally_slow_finds_out_too(threads):
    machine = Machine(threads)
    machine.free = 1
    team = team_of(machine)
    machine.train(team, 3.0)
    assert machine.train(team, 20.0) / 20 > 0.9 / ALONE
    machine.free = threads
    machine.train(team, threads.bit_length() * 10)
    assert team.size == threads


@pytest.mark.parametrize("gain", [1, 1.1, 2])
def test_long_steps_on_a_quiet_machine_are_tried_once_with_fewer(gain):
    machine = Machine()
    team = team_of(machine)
    machine.step = lambda: setattr(machine, "time", machine.time + 5 * PATIENCE / (gain if machine.using == 2 else 1))
    machine.train(team, 10.0)
    assert team.size == 2
    steps = machine.train(team, 50.0)
    assert steps == pytest.approx(50.0 / (5 * PATIENCE / gain), rel=0.05)


@given(st.lists(st.floats(0, PATIENCE / 2), max_size=10))
def test_a_hiccup_now_and_then_changes_nothing(hiccups):
    machine = Machine()
    team = team_of(machine)
    for hiccup in hiccups:
        machine.train(team, 0.5)
        machine.time += hiccup
        machine.train(team, 0.5)
        assert team.size == 2


def test_a_first_step_that_compiles_and_a_last_batch_that_is_small_do_not_count():
    machine = Machine()
    team = team_of(machine)
    with team:
        machine.time += 9.0
        team.stepped()
        for _ in range(200):
            machine.step()
            team.stepped()
            machine.time += ALONE / 100
            team.stepped(whole=False)
    assert team.size == 2


def test_an_interrupted_epoch_gives_all_threads_back():
    machine = Machine()
    team = team_of(machine)
    machine.train(team, 1.0)
    machine.free, used = 1, []
    machine.train(team, 1.0)

    def interrupted():
        used.append(machine.using)
        raise KeyboardInterrupt

    machine.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        machine.train(team, 1.0)
    assert (used, machine.using) == ([1], 2)


def test_a_number_that_somebody_chooses_is_the_most():
    machine = Machine(8)
    team = team_of(machine)
    machine.train(team, 1.0)
    machine.most = machine.using = machine.free = 1
    machine.train(team, 1.0)
    assert team.most == team.size == 1


def test_nothing_to_choose_from():
    team = ThreadTeam()
    with team:
        team.stepped()
    assert team.size == 1


# Engines

SHARING = [name for name in engines.names() if engines.library(name) in ("numpy", "numba") and name != "numba_serial"]


def test_the_engines_that_share_out_say_so():
    for name in engines.names():
        if not engines.on_gpu(name):
            assert bool(getattr(engines.load(name), "threads", None)) == (name in SHARING), name


TOLD = """
import sys
from mlpkit import engines
from mlpkit.machine import cores

for name in sys.argv[1:]:
    threads = engines.load(name).threads()
    most = threads.count()
    assert most >= min(2, cores())
    for told in (1, most):
        threads.use(told)
        assert engines.load(name).threads().count() == told
    print(name)
"""


def with_threads(script, names):
    """Have a script print the names of the engines in a process that has threads: the tests' own may have one."""
    folder = Path(__file__).parents[1]
    env = dict.fromkeys(("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "3")
    env |= {"PYTHONPATH": os.pathsep.join(map(str, [folder, folder.parent]))}
    done = subprocess.run([sys.executable, "-c", script, *names], env=os.environ | env, capture_output=True, text=True)
    assert (done.stdout.split(), done.returncode) == (names, 0), done.stderr


def test_an_engine_uses_what_it_is_told_and_then_what_it_had():
    with_threads(TOLD, SHARING)


LOOPS = [name for name in SHARING if name in engines.names(MLP.operations) and name.startswith("numba")]
LOOPS = [name for name in LOOPS if "hybrid" not in name]
TRAINED = """
import sys
import numpy as np
from numpy.testing import assert_array_equal
from shared import blobs
from mlpkit.nn.models import mlp
from mlpkit.nn.network import Network
from mlpkit.executors import trainer_of
from mlpkit.optim import SGD

def trained(name, size):
    network = Network(name, mlp(6, 40, 3))
    X, y = blobs(90)
    trainer = trainer_of(network, SGD(network, 0.1), X, y, 30)
    losses = [trainer.epoch(np.arange(90))]
    assert trainer.team.most == 3
    trainer.team.size = size
    losses += [trainer.epoch(np.arange(90))]
    return *losses, network.theta

for name in sys.argv[1:]:
    for found, wanted in zip(trained(name, 1) + trained(name, 2), 2 * trained(name, 3), strict=True):
        assert_array_equal(found, wanted)
    print(name)
"""


def test_a_smaller_team_computes_the_same_bits():
    with_threads(TRAINED, LOOPS)


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
