"""A schedule takes one step or many; an optimizer asks for many at once, and counts them in one place."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import SMALL

from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME, SGD
from mlpkit.optim.schedules import Constant, Cosine, Exponential, StepDecay, WarmUp

rates = st.floats(1e-6, 10)
fractions = st.floats(1e-3, 1)
counts = st.integers(1, 500)
plain = st.one_of(
    st.builds(Constant, rates),
    st.builds(StepDecay, rates, counts, fractions),
    st.builds(Exponential, rates, counts, fractions),
    st.builds(Cosine, rates, counts, st.floats(0, 1)),
)
warm = st.builds(WarmUp, plain, counts)
schedules = st.one_of(plain, warm, st.builds(WarmUp, warm, counts))


@given(schedule=schedules, steps=st.lists(st.integers(0, 2000), max_size=50))
def test_one_step_and_many_have_the_same_rates(schedule, steps):
    many = np.asarray(schedule(np.array(steps, int)))
    assert many.shape == (len(steps),)
    assert many.dtype == np.float64
    one = [schedule(step) for step in steps]
    assert all(isinstance(rate, float) for rate in one)
    assert_allclose(many, one, rtol=1e-14, atol=1e-16)


def optimizer(schedule, kind=SGD):
    return kind(Network(model=SMALL), schedule)


@given(schedule=schedules, counts=st.lists(st.integers(0, 30), max_size=6))
def test_an_optimizer_gives_out_the_rates_of_its_next_steps_and_counts_them(schedule, counts):
    takes, found = optimizer(schedule), []
    for count in counts:
        assert takes.lr == schedule(takes.steps)
        rates = takes.advance(count)
        assert (rates.shape, rates.dtype) == ((count,), np.float64)
        found += rates.tolist()
        assert takes.steps == len(found)
    assert_allclose(found, [schedule(step) for step in range(sum(counts))], rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("kind", BY_NAME.values(), ids=BY_NAME)
def test_a_step_counts_one(kind):
    takes = optimizer(Cosine(0.1, 20), kind)
    takes.step()
    assert takes.steps == 1
    assert_allclose(takes.advance(3), [Cosine(0.1, 20)(step) for step in (1, 2, 3)], rtol=1e-14)
    takes.apply(0.1, 5)  # counts nothing: who applies has advanced
    assert takes.steps == 4


@dataclass(frozen=True)
class Halves:
    """A schedule that asks about one step only."""

    def __call__(self, step):
        return 0.1 if step < 3 else 0.05


@pytest.mark.parametrize(
    "schedule",
    [
        Halves(),
        lambda step: [0.1, 0.1, 0.1, 0.05, 0.05, 0.05][step],
        lambda step: {3: 0.05, 4: 0.05, 5: 0.05}.get(step, 0.1),
        lambda step: max(0.05, 0.1 - 0.05 * max(0, step - 2)),
        lambda step: 0.1 if int(step) < 3 else 0.05,
    ],
    ids=["if", "list", "dict", "max", "int"],
)
@pytest.mark.parametrize("counts", [(6,), (1, 1, 1, 1, 1, 1), (2, 4)], ids=str)
def test_a_schedule_of_one_step_works_for_many(schedule, counts):
    takes = optimizer(schedule)
    assert_array_equal(np.concatenate([takes.advance(count) for count in counts]), [0.1] * 3 + [0.05] * 3)


def test_a_schedule_that_ignores_the_step_works_for_many():
    takes = optimizer(lambda step: 0.3)
    assert_array_equal(takes.advance(4), [0.3] * 4)
    assert_array_equal(takes.advance(1), [0.3])


def test_a_schedule_with_an_error_of_its_own_is_not_hidden():
    def fails(step):
        raise KeyError("no such rate")

    with pytest.raises(KeyError, match="no such rate"):
        optimizer(fails).advance(3)
    with pytest.raises(ZeroDivisionError):
        optimizer(lambda step: 1 / 0).advance(3)


@pytest.mark.parametrize("schedule", [StepDecay, Exponential, Cosine])
def test_more_steps_than_numpy_counts_are_refused(schedule):
    with pytest.raises(ValueError, match="must be at most 4611686018427387904"):
        schedule(0.1, 2**70)
