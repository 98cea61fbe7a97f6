"""The clocks of the host, and samples in turns; those of the GPU need one."""

import pytest

from experiments.lab import clock
from mlpkit.kernels import gpu


def test_a_call_takes_the_mean_of_several(monkeypatch):
    now = iter([10.0, 16.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(now))
    given = []
    assert clock.seconds_of(lambda *arguments: given.append(arguments), 1, 2, times=3) == 2.0
    assert given == [(1, 2)] * 3


@pytest.mark.parametrize(("seconds", "once", "wanted"), [(1.0, 0.3, 3), (1.0, 7.0, 1), (1.0, 1e-6, 100), (0.0, 0.0, 1)])
def test_a_sample_has_as_many_steps_as_fit(seconds, once, wanted):
    assert clock.steps_in(seconds, once) == wanted


def test_a_sample_has_at_most_so_many_steps():
    assert clock.steps_in(1.0, 1e-6, most=429) == 429


def test_samples_are_taken_in_turns():
    happened = []

    def sample(name):
        happened.append(name)
        return len(happened)

    calls = {name: lambda name=name: sample(name) for name in "ab"}
    settle = lambda name: happened.append(f"settle {name}")  # noqa: E731
    found = clock.in_turns(calls, 2, settle, lambda name, number: happened.append(f"keep {number}"))
    wanted = [
        "settle a",
        "a",
        "keep 2",
        "settle b",
        "b",
        "keep 5",
        "settle a",
        "a",
        "keep 8",
        "settle b",
        "b",
        "keep 11",
    ]
    assert happened == wanted
    assert found == {"a": [2, 8], "b": [5, 11]}


def test_each_may_have_a_number_of_rounds_of_its_own():
    turns = []
    calls = {name: lambda name=name: turns.append(name) for name in "abc"}
    assert {name: len(samples) for name, samples in clock.in_turns(calls, dict(a=1, b=3, c=0)).items()} == dict(
        a=1, b=3, c=0
    )
    assert turns == ["a", "b", "b", "b"]


def test_who_has_had_enough_drops_out():
    few = iter([1, 2])
    assert clock.in_turns({"few": lambda: next(few), "all": lambda: 0}, 4) == {"few": [1, 2], "all": [0] * 4}
    assert clock.in_turns({}, 4) == {}


@pytest.mark.skipif(gpu.why_not() is not None, reason=str(gpu.why_not()))
def test_the_clocks_of_a_gpu_agree_on_what_it_was_kept_busy_for():
    busy = lambda: clock.keep_busy(2000)  # noqa: E731
    busy()  # compiles
    assert clock.asked_us(busy) < 1000
    assert clock.waited_us(busy) == pytest.approx(2000, rel=0.2)
    assert clock.events_us(busy) == pytest.approx(2000, rel=0.2)
    assert clock.device_us(busy, 2) == pytest.approx(2000, rel=0.2)
    called, done = clock.called_and_done_us(busy, 2)
    assert called < 1000
    assert done == pytest.approx(4000, rel=0.2)
    assert clock.device_us(clock.nothing, 10) < 50
