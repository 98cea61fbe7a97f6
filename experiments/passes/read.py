"""What the record "passes" says: the best of a call's samples, and when each part of a quiet step begins and ends."""

from typing import Any

import numpy as np

from experiments.lab.results import median, median_us, reads
from mlpkit.engines import BASELINE
from mlpkit.words import counted

ENGINES = (BASELINE, "numba_hybrid", "numba_step")


def profile(run):
    """Return the microseconds of each part of a quiet step, by name, and of the rest; equal names are added up."""
    spans, whole = quiet_step(run)
    totals: dict[str, float] = {}
    for name, begin, end in spans:
        totals[name] = totals.get(name, 0) + end - begin
    return totals | {"rest": whole - sum(totals.values())}


def quiet_step(run):
    """Return ([(part, begin, end) ...], whole) in microseconds: the mean of the quickest fifth of a run's steps."""
    spans = np.array(run["spans_us"])
    *timestamps, whole = spans[np.argsort(spans[:, -1])[: -(-len(spans) // 5)]].mean(axis=0).tolist()
    return list(zip(run["parts"], timestamps[::2], timestamps[1::2], strict=True)), whole


def best_us(run):
    """Return the least of a run's samples, in microseconds: what the machine can do where nobody disturbs it."""
    return min(run["samples_us"])


@reads
def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(_LINES[run["kind"]](run) for run in record["runs"])


def _line(*names):
    return lambda run: f"{run['kind']}: {', '.join(str(run[name]) for name in names):<52}{best_us(run):>12,.1f} us"


def _parts_line(run):
    recipe = run["recipe"]
    parts = ", ".join(f"{name} {us:.1f}" for name, us in profile(run).items())
    return f"{run['engine']}, {recipe['optimizer']}, batch {recipe['batch_size']}: {parts} us"


def _pages_line(run):
    found = run["why_not"] or f"{median_us(run):,.0f} us and {run['faults']:.0f} faults an update"
    return f"pages, {'after a large array' if run['large'] else 'fresh process'}: {found}"


_LINES: dict[str, Any] = {
    "ladder": _line("rung", "offset"),
    "root": lambda run: f"root and division: {median(run, 'samples_ns'):.3f} ns a number",
    "update": _line("name", "n", "way"),
    "layer": _line("name", "batch_size", "way"),
    "products": _line("way", "batch_size"),
    "parts": _parts_line,
    "busy": lambda run: (
        f"beside {counted(run['others'], 'busy program')}, {run['engine']}: {median_us(run):,.0f} us a step"
    ),
    "pages": _pages_line,
}
