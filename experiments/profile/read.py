"""What the record "profile" says: the operations of a step with their times and rates, and what the step takes."""

from collections.abc import Callable
from dataclasses import dataclass

from experiments.floor import Roofs as Roofs
from experiments.lab import results
from experiments.lab.results import brief, median_us
from mlpkit.words import counted

MOST = 12  # lines of a table for an engine in a network


@dataclass(frozen=True)
class Row:
    """An operation of a step: what `costs.Part` says of it, and `us`, the median of its microseconds."""

    path: str
    layer: str
    operation: str
    phase: str
    us: float
    flops: int | None
    bytes: int | None

    @property
    def label(self):
        """The layer's place and kind, such as "3.0 Conv"; the operation where no layer calls it."""
        return f"{self.path} {self.layer.partition('(')[0]}" if self.path else self.operation

    @property
    def gflops(self):
        """GFLOP/s of the direct way's arithmetic, None where nobody counted it."""
        return self.flops and self.flops / self.us / 1e3

    @property
    def gbps(self):
        """GB/s of the bytes that it reads and writes at least, None where nobody counted them."""
        return self.bytes and self.bytes / self.us / 1e3

    def floor_us(self, roofs):
        """Return the microseconds that it takes at least, below `roofs`; None where nobody counted."""
        if self.flops is None or self.bytes is None:
            return None
        return roofs.floor_us({"flops": self.flops, "bytes": self.bytes, "source": self.bytes})


def cases(record):
    """Return all (network, engine) of a record that have times, in its order."""
    runs = results.runs(record, kind="step", why_not=None)
    return [(run["network"], run["engine"]) for run in runs if run["samples_us"]]


def rows(record, network, engine):
    """Return a Row for each operation of a step, in the step's order."""
    found = results.runs(record, kind="operation", network=network, engine=engine)
    names = ("path", "layer", "operation", "phase", "flops", "bytes")
    return [Row(us=results.median(run, "samples_us"), **{name: run[name] for name in names}) for run in found]


def step_us(record, network, engine, watched=False):
    """Return the microseconds of a whole step, None where it has no time.

    It is the engine's own step, taken in its own way; watched: the one whose operations `rows` has, with the clock's
    reading.
    """
    found = results.runs(record, kind="watched" if watched else "step", network=network, engine=engine)
    return median_us(found[0]) if found else None


def total(found, key: Callable[[Row], object]):
    """Return {key(row): sum of the microseconds}, the longest first. found: rows."""
    sums: dict = {}
    for row in found:
        sums[key(row)] = sums.get(key(row), 0.0) + row.us
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


@results.reads
def table(record):
    """Return the record as text for the terminal: for each network and engine the longest operations of its step."""
    lines = results.not_run(results.runs(record, kind="step"))
    for network, engine in cases(record):
        found = rows(record, network, engine)
        parts = sum(row.us for row in found)
        step, watched = step_us(record, network, engine), step_us(record, network, engine, watched=True)
        each = f"{watched:,.0f} us an operation at a time, {parts:,.0f} of them in operations"
        lines += [f"{network}, {engine}: {step:,.0f} us a step; {each}"]
        lines += _by_time(found, parts, Roofs(record, record["settings"]["threads"]))
    return "\n".join(lines)


def _by_time(found, parts, roofs):
    """Return a line for each of the longest operations, one for the rest, and one for the sums by operation."""
    longest = sorted(found, key=lambda row: -row.us)
    lines = [_line(row, parts, roofs) for row in longest[:MOST]]
    if rest := longest[MOST:]:
        us = sum(row.us for row in rest)
        lines += [f"  {counted(len(rest), 'more operation'):<38}{brief(us):>10} us{us / parts:>6.0%}"]
    sums = total(found, lambda row: row.operation).items()
    return [*lines, "  in all: " + ", ".join(f"{name} {us / parts:.0%}" for name, us in sums if us >= parts / 100)]


def _line(row, parts, roofs):
    what = f"{row.label}, {row.operation}" if row.path else row.operation
    line = f"  {what:<38}{brief(row.us):>10} us{row.us / parts:>6.0%}"
    if (floor := row.floor_us(roofs)) is None:
        return line
    return f"{line}{row.gflops:>8.1f} GFLOP/s{row.gbps:>7.1f} GB/s, floor {brief(floor)} us"
