"""Where the arrays of a step lie: of when each is needed, places in one piece of memory are made.

The arrays of a step are intervals in time, and rectangles in time and memory, which must not overlap. To find the least
memory is as hard as to pack bins; the largest first, each as low as it fits, is simple, and seldom far from the least.
No GPU is needed here: see `arena` for who watches a step, and who hands out the places.
"""

from dataclasses import dataclass

ALIGNMENT = 256  # bytes, as CuPy's own arrays have it


@dataclass(frozen=True)
class Interval:
    """A piece of memory: its bytes, and the times between which it was needed, counted in requests and releases.

    end: that of its release, not included. offset: its place in the arena, where it has one.
    """

    size: int
    start: int
    end: int
    offset: int | None = None

    def meets(self, other):
        """Return whether both are needed at some moment."""
        return self.start < other.end and other.start < self.end

    @property
    def aligned_size(self):
        """The bytes that it takes: up to where the next piece may begin."""
        return -(-self.size // ALIGNMENT) * ALIGNMENT

    def overlaps(self, other):
        """Return whether the places of both have bytes in common."""
        return self.offset < other.offset + other.aligned_size and other.offset < self.offset + self.aligned_size


@dataclass(frozen=True)
class Plan:
    """The pieces of a step in the order in which they are asked for, each with its place.

    `bytes`: of memory that holds all places.
    """

    intervals: tuple[Interval, ...]

    @property
    def bytes(self):
        return max((each.offset + each.aligned_size for each in self.intervals), default=0)


def plan(intervals):
    """Return the `Plan` of intervals that have no places yet: the largest first, each as low as it fits."""
    placed: dict[int, Interval] = {}
    for i in sorted(range(len(intervals)), key=lambda i: (-intervals[i].aligned_size, intervals[i].start)):
        placed[i] = _lowest(intervals[i], [other for other in placed.values() if other.meets(intervals[i])])
    result = Plan(tuple(placed[i] for i in range(len(intervals))))
    check(result)
    return result


def _lowest(wanted, others):
    """Return an interval with the lowest offset at which it overlaps none of the others."""
    offset = 0
    for other in sorted(others, key=lambda other: other.offset):
        if offset + wanted.aligned_size <= other.offset:
            break
        offset = max(offset, other.offset + other.aligned_size)
    return Interval(wanted.size, wanted.start, wanted.end, offset)


def check(found):
    """Raise AssertionError where two pieces of a plan have bytes in common while both are needed."""
    for i, one in enumerate(found.intervals):
        for other in found.intervals[:i]:
            assert not (one.meets(other) and one.overlaps(other)), f"{one} and {other} lie over each other."
