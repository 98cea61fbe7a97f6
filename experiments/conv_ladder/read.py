"""What the record says: each way's time and rate, its part of cuDNN's and of the chip's. No GPU is needed."""

import numpy as np

from experiments.lab import results
from mlpkit.kernels.conv import PASSES, Shape

OTHERS = ("cudnn", "torch", "jax")  # whose ways begin so


def layers(record):
    """Return the record's layers by name, as shapes."""
    return {name: Shape(**numbers) for name, numbers in record["settings"]["plan"]["layers"].items()}


def run_of(record, way, layer, which):
    """Return a way's run at a pass of a layer, of several layouts the faster one; None where it was not measured."""
    runs = results.runs(record, kind="pass", way=way, layer=layer) if way else []
    return min((run for run in runs if run["pass"] == which and _counts(run)), key=results.median, default=None)


def median_us(record, way, layer, which):
    """Return a way's microseconds at a pass of a layer, the median of its samples; None where it was not measured."""
    run = run_of(record, way, layer, which)
    return results.median(run) if run else None


def _counts(run):
    """Say whether a run has a time to read. Not so where an empty loop was measured to be subtracted.

    JAX was once timed so, by few calls: what was left was noise, and could be less than the chip can do.
    """
    return bool(run.get("samples_us")) and "loop_us" not in run


def precision_of(record, way):
    """Return a way's class, a key of `ERRORS`; None where it was never measured."""
    return next((run["precision"] for run in results.runs(record, kind="pass", way=way) if "precision" in run), None)


def variants(record, ours=True):
    """Return the names of the ways that were measured: the ladder's rungs, or cuDNN, PyTorch and JAX."""
    names = dict.fromkeys(run["way"] for run in results.runs(record, kind="pass") if _counts(run))
    return [name for name in names if name.startswith(OTHERS) != ours]


def share(record, way, layer, which):
    """Return a way's rate as a part of cuDNN's in the same class, 1 where they are level; None without either."""
    ours, theirs = (median_us(record, name, layer, which) for name in (way, f"cudnn_{precision_of(record, way)}"))
    return theirs / ours if ours and theirs else None


def gflops(record, way, layer, which):
    """Return a way's GFLOP/s at a pass of a layer, None where it was not measured: those of the direct sums."""
    us = median_us(record, way, layer, which)
    return layers(record)[layer].flops / us / 1e3 if us else None


def peak(record, precision):
    """Return the highest GFLOP/s in a class: of multiply-adds in float32, else of a large product by cuBLAS."""
    return max(
        sample for run in results.runs(record, kind="peak", precision=precision) for sample in run["samples_gflops"]
    )


def part_of_peak(record, way, layer, which):
    """Return a way's rate as a part of the chip's in its class; None where it was not measured.

    A transform does fewer operations than the direct sums, so it can have more than 1.
    """
    rate = gflops(record, way, layer, which)
    return rate / peak(record, precision_of(record, way)) if rate else None


def best(record, layer, which, precision, ours=True):
    """Return the name of the fastest of the ladder's rungs in a class at a pass of a layer, None without any.

    ours: True for the rungs, False for the others. Better than asked will do: float32 counts as TF32, too.
    """
    allowed = {"float32": ("float32",), "tf32": ("float32", "tf32"), "bf16": ("bf16",)}[precision]
    names = [name for name in variants(record, ours) if precision_of(record, name) in allowed]
    times = {name: us for name in names if (us := median_us(record, name, layer, which))}
    return min(times, key=times.__getitem__, default=None)


def lead(record, layer, which, precision):
    """Return how many times as fast as cuDNN the ladder's best rung is, None without either."""
    name = best(record, layer, which, precision)
    ours, theirs = (median_us(record, way, layer, which) for way in (name, f"cudnn_{precision}"))
    return theirs / ours if ours and theirs else None


@results.reads
def table(record):
    """Return the record as text for the terminal: the limits, each way at each pass of each layer, and why some not."""
    lines = [", ".join(map(_limit, results.runs(record, kind="peak")[:3]))]
    lines += [f"{np.median(run['samples_gbps']):,.0f} GB/s" for run in results.runs(record, kind="copy")[:1]]
    lines += [f"{run['way']}: {run['why_not']}" for run in results.runs(record, kind="peer") if run["why_not"]]
    for layer in dict.fromkeys(run["layer"] for run in results.runs(record, kind="pass")):
        for which in PASSES:
            lines.append(f"{layer}, {which.replace('_', ' ')}")
            lines += [_line(record, way, layer, which) for way in _names(record, layer, which)]
    return "\n".join(lines)


def _names(record, layer, which):
    runs = [run for run in results.runs(record, kind="pass", layer=layer) if run["pass"] == which]
    return list(dict.fromkeys(run["way"] for run in runs))


def _limit(run):
    return f"{run['precision']} {np.median(run['samples_gflops']) / 1e3:,.1f} TFLOP/s"


def _line(record, way, layer, which):
    run = run_of(record, way, layer, which)
    if run is None:
        runs = [run for run in results.runs(record, way=way, layer=layer) if run["pass"] == which]
        return f"  {way:<20} {runs[0]['why_not'] if 'loop_us' not in runs[0] else 'timed by loops: not read.'}"
    line = f"  {way:<20}{results.median(run):>10,.1f} us{gflops(record, way, layer, which) / 1e3:>8.1f} TFLOP/s"
    line += f"{part_of_peak(record, way, layer, which):>6.0%} of the peak"
    part = share(record, way, layer, which)
    line += f"{part:>7.0%} of cuDNN" if part else " " * 16
    line += f"   error {run['error']:.0e}" + (f", {run['workspace'] / 2**20:,.1f} MiB" if run.get("workspace") else "")
    return line + (f", {run['layout']}" if "layout" in run else "") + _plan(run.get("choice"))


def _plan(choice):
    if not choice:
        return ""
    return (
        f", {choice['layout']}, {choice['plan']}, {choice['tried']} plans tried, the first {choice['first_us']:,.1f} us"
    )


def kernels(record, way, layer, which):
    """Return the kernels that a way launches at a pass of a layer, a dict each; none where it was not measured."""
    run = run_of(record, way, layer, which)
    return run.get("kernels", []) if run else []
