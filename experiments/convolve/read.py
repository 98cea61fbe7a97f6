"""What the record "convolve" says: how fast, of direct arithmetic, each way is in a case, and which is the fastest."""

from dataclasses import asdict, fields

from experiments.lab import results
from experiments.lab.results import brief, median_us
from mlpkit.words import counted

from .cases import OPERATIONS, Case


def peak(record, threads):
    """Return GFLOP/s of multiply-adds in registers: the better median of those before and after."""
    return max(results.median(run, "samples_gflops") for run in results.runs(record, kind="peak", threads=threads))


def us(record, engine, operation, case, threads, layer=None):
    """Return the microseconds of an operation, None where it has no time. layer: its name; None for a grid's case."""
    wanted = asdict(case) | {"engine": engine, "operation": operation, "threads": threads, "layer": layer}
    found = results.runs(record, why_not=None, **wanted)
    return median_us(found[0]) if found else None


def gflops(run):
    """Return the rate of a run's operation, counting the direct way's arithmetic, whatever it does in place of it."""
    return _case(run).flops / median_us(run) / 1e3


def _case(run):
    return Case(**{field.name: run[field.name] for field in fields(Case)})


def winner(record, operation, case, threads):
    """Return the engine with the shortest time in a case of the grid, and its microseconds; None where none has one."""
    found = results.runs(record, kind="grid", operation=operation, threads=threads, why_not=None, **asdict(case))
    times = [(median_us(run), run["engine"]) for run in found if run["samples_us"]]
    return min(times)[::-1] if times else None


@results.reads
def table(record):
    """Return the record as text for the terminal: a block a layer and number of threads, a row an engine."""
    lines, layers = [], results.runs(record, kind="layer")
    for layer, threads in dict.fromkeys((run["layer"], run["threads"]) for run in layers):
        runs = results.runs(record, kind="layer", layer=layer, threads=threads)
        top = peak(record, threads)
        what = "us, and part of the peak by direct arithmetic"
        lines += [f"{layer}, {counted(threads, 'thread')}, peak {top:,.0f} GFLOP/s; {what}"]
        lines += [f"{'':<18}" + "".join(f"{name.removeprefix('conv_'):>24}" for name in OPERATIONS) + f"{'error':>10}"]
        for engine in dict.fromkeys(run["engine"] for run in runs):
            own = [run for run in runs if run["engine"] == engine]
            cells = [f"{brief(median_us(r))} ({gflops(r) / top:.0%})" if r["samples_us"] else "-" for r in own]
            error = max((run["error"] or 0 for run in own), default=0)
            lines += [f"{engine:<18}" + "".join(f"{cell:>24}" for cell in cells) + f"{error:>10.0e}"]
    wins: dict = {}
    grid = results.runs(record, kind="grid", operation="conv", why_not=None)
    for case, threads in dict.fromkeys((_case(run), run["threads"]) for run in grid):  # each has a run an engine
        best = winner(record, "conv", case, threads)
        wins.setdefault(best and best[0], set()).add(case)
    lines += [
        f"fastest forward in {counted(len(cases), 'case')} of the grid: {name}" for name, cases in sorted(wins.items())
    ]
    return "\n".join(lines)
