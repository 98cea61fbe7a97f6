"""What the record "floor" says: the two roofs, the floor of an operation below them, BLAS's sets of kernels."""

import numpy as np

from experiments.lab import results
from experiments.lab.results import median_us
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

KIB = 2**10


class Roofs:
    """The two limits that a record found for `threads` threads.

    The best of its samples: other programs, interrupts and a cool clock can only make a rate too low.
    """

    def __init__(self, record, threads=1):
        runs = [run for run in record["runs"] if run.get("threads") == threads]
        self.peak = max(sample for run in runs if run["kind"] == "peak" for sample in run["samples_gflops"])
        best: dict[int, float] = {}
        for run in results.runs({"runs": runs}, kind="bandwidth"):
            best[run["bytes"]] = max(best.get(run["bytes"], 0), *run["samples_gbps"])
        self.sizes, self.rates = np.array(sorted(best)), np.array([best[size] for size in sorted(best)])

    def bandwidth(self, nbytes):
        """Return GB/s for data of `nbytes`: of the faster kernel, and between two sizes on the line between them."""
        return float(np.interp(np.log(nbytes), np.log(self.sizes), self.rates))

    def floor_us(self, operation):
        """Return the microseconds that an operation, given as a run of the record, takes at least."""
        arithmetic = operation["flops"] / self.peak / 1e3
        return max(arithmetic, operation["bytes"] / self.bandwidth(operation["source"]) / 1e3)


def kernel_rows(record):
    """Return a run for each set of kernels and number of threads, which has the samples of all its processes."""
    rows: dict[tuple, dict] = {}
    for run in results.runs(record, kind="kernels"):
        row = rows.setdefault((run["asked"], run.get("threads")), run | {"samples_gflops": [], "samples_us": []})
        row["samples_gflops"] += run.get("samples_gflops", [])
        row["samples_us"] += run.get("samples_us", [])
    return list(rows.values())


def parts(record, step):
    """Return the runs of the operations that a run of whole steps is made of."""
    return results.runs(record, kind="operation", **{key: step[key] for key in ("optimizer", "batch_size", "threads")})


@results.reads
def table(record):
    """Return the record as text for the terminal: both rates, what steps take and their floors, a profile, and BLAS."""
    lines = []
    for threads in sorted({run["threads"] for run in results.runs(record, kind="step")}):
        roofs = Roofs(record, threads)
        rates = ", ".join(f"{nbytes // KIB:,} KiB {roofs.bandwidth(nbytes):.0f}" for nbytes in roofs.sizes)
        lines += [f"{counted(threads, 'thread')}: peak {roofs.peak:.0f} GFLOP/s", f"GB/s: {rates}"]
        lines += [_step_line(record, roofs, run) for run in results.runs(record, kind="step", threads=threads)]
    usual = {"batch_size": Recipe().batch_size, "optimizer": "sgd", "threads": 1}
    lines += [_operation_line(run) for run in results.runs(record, kind="operation", **usual)]
    lines += [_kernels_line(run) for run in kernel_rows(record)]
    lines += [_busy_line(run) for run in results.runs(record, kind="busy")]
    return "\n".join(lines)


def _step_line(record, roofs, step):
    found = parts(record, step)
    measured, floor = sum(map(median_us, found)), sum(map(roofs.floor_us, found))
    return (
        f"  {step['optimizer']}, batch {step['batch_size']:>4}: {median_us(step):>9,.0f} us a step, "
        f"operations {measured:>9,.0f} us, floor {floor:>9,.0f} us"
    )


def _operation_line(run):
    work, moved = run["flops"] / 1e6, run["bytes"] / 1e6
    return f"{run['name']:<28}{work:>8.2f} MFLOP{moved:>8.3f} MB{median_us(run):>8.1f} us"


def _kernels_line(run):
    asked = f"kernels {run['asked'] or 'as detected'}: "
    if run["why_not"]:
        return asked + run["why_not"]
    rate = results.median(run, "samples_gflops")
    found = f"{asked}{run['found']}, {counted(run['threads'], 'thread')}"
    return f"{found}, {rate:.0f} GFLOP/s, {median_us(run):,.0f} us a step"


def _busy_line(run):
    low, high = min(run["samples_us"]), max(run["samples_us"])
    beside = f"beside {counted(run['others'], 'busy program')}, {counted(run['threads'], 'thread')}: "
    return f"{beside:<39}{median_us(run):>10,.0f} us a step, from {low:,.0f} to {high:,.0f}"
