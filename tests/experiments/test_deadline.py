"""A rate that ends with the time, whoever else uses the machine."""

import numpy as np
import pytest

from experiments.lab.deadline import Deadline


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def trained(deadline, clock, seconds_of, epoch=10):
    """Return the rates of all steps, when each epoch takes `seconds_of(number)`."""
    rates, number = [], 0
    while not deadline.over:
        rates += deadline(np.arange(len(rates), len(rates) + epoch)).tolist()
        clock.now += seconds_of(number)
        number += 1
        deadline.look(len(rates))
    return np.array(rates)


@pytest.mark.parametrize("slower", [1, 4])
def test_the_rate_falls_to_nothing_when_time_is_over_also_where_others_come(slower):
    clock = Clock()
    rates = trained(Deadline(0.5, 100, clock=clock), clock, lambda number: slower if number > 20 else 1)
    assert 90 <= clock.now <= 100
    assert (rates[:10] == 0.5).all()
    assert (np.diff(rates) <= 0).all()
    assert 0 < rates[-1] < 0.02


def test_a_warm_up_rises_and_one_step_is_asked_for_as_well():
    deadline = Deadline(0.5, 100, warmup=4)
    np.testing.assert_allclose(deadline(np.arange(5)), [0.1, 0.2, 0.3, 0.4, 0.5])
    assert float(deadline(2)) == pytest.approx(0.3)


def test_a_time_that_is_over_at_once_still_has_an_end():
    clock = Clock()
    rates = trained(Deadline(0.5, 1, clock=clock), clock, lambda number: 5)
    assert len(rates) == 20
    assert rates[-1] < 0.05
