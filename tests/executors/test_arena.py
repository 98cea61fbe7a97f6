"""Memory that is planned: what is there at one time never lies over each other, and a step that is another is seen.

CuPy's arrays are made here with no GPU: nobody looks into their memory.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cupy")

import cupy as cp

from experiments.gpu_image_memory.measure import most_at_once, sum_of_sizes
from mlpkit.executors.cuda import arena, lifetimes
from mlpkit.executors.cuda.arena import Arena, Recorder
from mlpkit.executors.cuda.lifetimes import Interval, check, plan


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Let memory be numbers: addresses that nobody reads."""

    class Pool:
        def __init__(self):
            self.next, self.kept = 1 << 20, 0

        def malloc(self, size):
            self.next, self.kept = self.next + size, self.kept + size
            return SimpleNamespace(ptr=self.next)

        def free_all_blocks(self):
            self.kept = 0

    def memory(size):
        return cp.cuda.UnownedMemory(1 << 30, size, None, 0)

    fakes = SimpleNamespace(
        MemoryPool=Pool,
        Memory=memory,
        Device=lambda: SimpleNamespace(id=0),
        UnownedMemory=cp.cuda.UnownedMemory,
        MemoryPointer=cp.cuda.MemoryPointer,
        using_allocator=cp.cuda.using_allocator,
    )
    monkeypatch.setattr(arena, "cp", SimpleNamespace(cuda=fakes))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_step_that_was_watched_leaves_nothing_in_the_pool(error):
    """CuPy's pool, when nobody has it any more, would keep it for ever."""
    recorder = Recorder()
    with pytest.raises(error) if error else nullcontext(), recorder.watching():
        step()
        assert recorder.pool.kept
        if error:
            raise error
    assert not recorder.pool.kept


def test_memory_that_only_the_pool_keeps_is_asked_back(monkeypatch):
    class Full(Exception):
        pass

    freed, fakes = [], arena.cp.cuda
    fakes.memory, fakes.runtime = SimpleNamespace(OutOfMemoryError=Full), SimpleNamespace(CUDARuntimeError=Full)

    def full(ask):
        def once(*arguments):
            if not freed:
                raise Full
            return ask(*arguments)

        return once

    monkeypatch.setattr(fakes.MemoryPool, "malloc", full(fakes.MemoryPool.malloc))
    fakes.Memory = full(fakes.Memory)
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append("all"))
    arena.cp.get_default_memory_pool = lambda: pool
    recorder = Recorder()
    with recorder.watching():
        step()
    found = recorder.plan()
    assert freed == ["all"]
    freed.clear()
    Arena(found)
    assert freed == ["all"]
    freed.clear()
    pool.free_all_blocks = list  # nothing was kept
    with pytest.raises(Full):
        Arena(found)


INTERVALS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 40), st.integers(1, 20)), max_size=40)


@given(INTERVALS)
def test_no_two_pieces_that_are_there_at_once_have_bytes_in_common(pieces):
    found = plan([Interval(size, start, start + length) for size, start, length in pieces])
    check(found)
    for each, (size, start, length) in zip(found.intervals, pieces, strict=True):
        assert (each.size, each.start, each.end) == (size, start, start + length)
        assert each.offset % lifetimes.ALIGNMENT == 0
        assert each.offset + each.size <= found.bytes
    assert most_at_once(found) <= found.bytes <= sum_of_sizes(found)


def test_what_is_wrong_is_seen():
    one, two = Interval(300, 0, 4, offset=0), Interval(300, 3, 5, offset=256)
    with pytest.raises(AssertionError, match="over each other"):
        check(lifetimes.Plan((one, two)))
    check(lifetimes.Plan((one, Interval(300, 4, 5, offset=256))))


def step(layers=3):
    """Go there and back: each array of the way there is needed until the way back comes to it."""
    kept = [cp.empty(1000, "f4") for _ in range(layers)]
    gradient = cp.empty(1000, "f4")
    addresses = [gradient.data.ptr]
    while kept:
        gradient = cp.empty(1000, "f4")
        kept.pop()
        addresses.append(gradient.data.ptr)
    return addresses


def recorded(work):
    recorder = Recorder()
    with recorder.watching():
        work()
    return recorder.plan()


def test_a_step_finds_its_arrays_where_they_were():
    found = recorded(step)
    assert len(found.intervals) == 7
    assert sum_of_sizes(found) == 7 * 4096
    assert found.bytes == most_at_once(found) == 5 * 4096
    memory = Arena(found)
    addresses = []
    for _ in range(2):
        with memory.step():
            addresses.append(step())
    assert addresses[0] == addresses[1]
    assert len(set(addresses[0])) > 1


def take(memory, *lengths, kept=None):
    """Ask for arrays in a step."""
    with memory.step():
        for length in lengths:
            array = cp.empty(length, "f4")
            if kept is not None:
                kept.append(array)


def test_arenas_of_steps_that_take_turns_share_their_memory():
    large = Arena(recorded(step))
    small = Arena(recorded(lambda: step(1)), large.memory)
    assert small.memory is large.memory
    assert Arena(recorded(lambda: step(9)), large.memory).memory is not large.memory


def test_a_step_that_asks_for_something_else_is_refused():
    memory = Arena(recorded(step))
    with pytest.raises(RuntimeError, match="asks for 4004 bytes as its array number 3, and 4000 are planned"):
        take(memory, 1000, 1000, 1000, 1001)
    with pytest.raises(RuntimeError, match="made 2 arrays, and 7 were planned"):
        take(memory, 1000, 1000)
    with memory.step():  # and the next one is as good as ever
        step()


def test_an_array_that_is_kept_too_long_is_seen():
    memory, kept = Arena(recorded(step)), []
    with memory.step():
        step()
    with pytest.raises(RuntimeError, match="still in use"):
        take(memory, *[1000] * 7, kept=kept)


def test_what_a_step_leaves_behind_is_refused():
    kept = []
    with pytest.raises(RuntimeError, match="leaves 1 of its arrays behind, the first of 40 bytes"):
        recorded(lambda: kept.append(cp.empty(10, "f4")))
