"""What the record says: medians, the pieces that a step is made of, and who works when. No GPU is needed."""

import math
from functools import partial

import numpy as np

from experiments.lab import results

from .step import PIXELS


def median_of(record, name="samples_us", **wanted):
    """Return the median of the samples of the run that has all of the wanted values, in microseconds."""
    (run,) = results.runs(record, **wanted)
    return results.median(run, name)


def parts_of(run):
    """Return the microseconds a step of the host's parts of a way to feed: the medians."""
    turns = run.get("parts") or [{}]
    return {part: float(np.median([turn[part] for turn in turns])) for part in turns[0]}


COPIED = {  # way: (memory on the host, how rows are gathered there, slots on the host and on the GPU)
    "pageable": ("pageable", "anew", math.inf, 1),
    "pinned": ("pinned", "in place", 1, 1),
    "overlapped": ("pinned", "in place", 2, 2),
    "overlapped, uint8": ("pinned", "in place", 2, 2),
}


def pieces(record, way, batch_size):
    """Return what a step takes that is fed by copies: microseconds of each piece, measured by itself."""
    memory, how, *_ = COPIED[way]
    (run,) = results.runs(record, kind="feed", way=way, batch_size=batch_size)
    n = batch_size * PIXELS * np.dtype(run["dtype"]).itemsize
    copy = partial(median_of, record, kind="copy", direction="to the GPU", memory=memory, bytes=n)
    return {
        "gather": median_of(record, kind="gather", how=how, dtype=run["dtype"], batch_size=batch_size),
        "calls": median_of(record, kind="call", what="send a batch"),
        "stage": copy("call_us") if memory == "pageable" else 0.0,  # the driver's copy into pinned memory
        "copy": copy() - copy("call_us"),
        "compute": median_of(record, kind="feed", way="not fed", batch_size=batch_size),
    }


def lanes(way, pieces, steps=6):
    """Return who works when, in microseconds, if each piece takes as long as by itself: rows for `plots.lanes`."""
    *_, on_host, on_gpu = COPIED[way]
    rows: dict[str, list] = {"host": [], "copies": [], "GPU": []}
    copied: dict[float, float] = {}  # when, by the step
    computed: dict[float, float] = {}
    now = 0.0
    for step in range(steps):
        now = max(now, copied.get(step - on_host, 0.0))
        for piece in ("gather", "calls", "stage"):
            rows["host"].append((piece, now, now + pieces[piece]))
            now += pieces[piece]
        start = max(now, copied.get(step - 1, 0.0), computed.get(step - on_gpu, 0.0))
        copied[step] = start + pieces["copy"]
        begin = max(copied[step], computed.get(step - 1, 0.0))
        computed[step] = begin + pieces["compute"]
        rows["copies"].append(("copy", start, copied[step]))
        rows["GPU"].append(("compute", begin, computed[step]))
    return rows


@results.reads
def table(record):
    """Return the record as text for the terminal: a line a run, with what was measured and the medians of its times."""
    return "\n".join(map(_line, record["runs"]))


def _line(run):
    facts = {k: v for k, v in run.items() if not k.endswith("_us") and not isinstance(v, list) and k != "kind"}
    times = {k.removesuffix("_us"): np.median(v) for k, v in run.items() if k.endswith("_us")} | parts_of(run)
    what = ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
    return f"{run['kind']}: {what}; us: {', '.join(f'{k} {v:,.1f}' for k, v in times.items())}".removesuffix("; us: ")
