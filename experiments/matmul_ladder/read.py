"""What the record says: each variant's rate at a size, its part of cuBLAS's, and the two limits. No GPU is needed."""

import numpy as np

from experiments.lab import results

from .others import OTHERS
from .rungs import RUNGS, flops

PRECISIONS = {name: variant.precision for name, variant in (RUNGS | OTHERS).items()}


def median_us(record, variant, m, n, k):
    """Return a variant's microseconds at a size, the median of the samples; None where it was not measured."""
    found = results.runs(record, kind="product", way=variant, m=m, n=n, k=k)
    return results.median(found[0]) if found else None


def gflops(record, variant, m, n, k):
    """Return a variant's GFLOP/s at a size, None where it was not measured."""
    us = median_us(record, variant, m, n, k)
    return flops(m, n, k) / us / 1e3 if us else None


def share(record, variant, m, n, k):
    """Return a variant's rate as a part of cuBLAS's in the same precision at the same size, None without either."""
    ours, theirs = (gflops(record, name, m, n, k) for name in (variant, f"cublas_{PRECISIONS[variant]}"))
    return ours / theirs if ours and theirs else None


def roofs(record):
    """Return the highest GFLOP/s of multiply-adds and the highest GB/s of a copy that the record has."""
    return tuple(
        max(sample for run in results.runs(record, kind=kind) for sample in run[samples])
        for kind, samples in (("peak", "samples_gflops"), ("copy", "samples_gbps"))
    )


@results.reads
def table(record):
    """Return the record as text for the terminal: both limits, what each kernel takes, each rung at each size."""
    peak, copy = roofs(record)
    lines = [f"multiply-adds {peak / 1e3:.1f} TFLOP/s, copy {copy:,.0f} GB/s"]
    lines += [_resources_line(run) for run in results.runs(record, kind="resources")]
    shapes = dict.fromkeys((run["m"], run["n"], run["k"]) for run in results.runs(record, kind="product"))
    for m, n, k in shapes:
        lines.append(f"{m} x {k} times {k} x {n}")
        lines += [_variant_line(record, run) for run in results.runs(record, kind="product", m=m, n=n, k=k)]
    for run in results.runs(record, kind="loop"):
        lines.append(f"loop of {run['way']:<16}{run['cost']:>6.1f} instructions a multiply-add")
    for run in results.runs(record, kind="fused"):
        lines.append(f"layer {run['m']} x {run['k']} x {run['n']}: {run['way']:<24}{results.median(run):>8,.1f} us")
    for run in results.runs(record, kind="transpose"):
        lines.append(f"transpose {run['way']:<20}{np.median(run['samples_gbps']):>8,.0f} GB/s")
    return "\n".join(lines)


def _resources_line(run):
    return (
        f"  {run['rung']:<16}{run['registers']:>5} registers, {run['spilled_bytes']} B spilled, "
        f"{run['shared_bytes']:>7,} B shared, blocks of {run['threads']}, "
        f"{run['blocks']} on a multiprocessor, {run['occupancy']:.0%} of its threads"
    )


def _variant_line(record, run):
    shape = run["m"], run["n"], run["k"]
    line = f"  {run['way']:<16}{median_us(record, run['way'], *shape):>12,.1f} us"
    line += f"{gflops(record, run['way'], *shape) / 1e3:>9.2f} TFLOP/s"
    part = share(record, run["way"], *shape) if run["way"] in PRECISIONS else None
    return line + (f"{part:>8.1%} of cuBLAS" if part else "") + f"   error {run['error']:.0e}"
