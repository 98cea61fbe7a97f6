"""What the record "matmul" says: the best rate of a stage, its share of the peak, and what threads cost."""

from dataclasses import asdict

import numpy as np

from experiments.lab import results
from mlpkit.words import counted

from .shapes import FIRST

LABELS = {  # of the stages
    "ijk": "three loops, i j k",
    "ijk_reordered": "i j k, permission to reorder",
    "four_sums": "i j k, four sums",
    "ikj": "i k j",
    "outer_1x8": "1 row x 8 k",
    "outer_4x8": "4 rows x 8 k",
    "tiles": "tiles in registers",
    "blas": "NumPy's BLAS",
}


def peak(record, threads=1):
    """Return the highest GFLOP/s that were seen in registers alone, on so many cores."""
    return max(max(run["samples_gflops"]) for run in results.runs(record, kind="peak", threads=threads))


def gflops(record, stage, product=FIRST, threads=1):
    """Return a stage's GFLOP/s, None where it was not run: the best sample, as other programs can only take from it."""
    found = results.runs(record, kind="stage", stage=stage, threads=threads, **asdict(product))
    return max(found[0]["samples_gflops"], default=None) if found else None


def threads_of(record):
    """Return the numbers of threads that a record has, the smallest first."""
    return sorted({run["threads"] for run in results.runs(record, kind="peak")})


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    lines = []
    for threads in threads_of(record):
        top = peak(record, threads)
        lines.append(f"peak of {counted(threads, 'core')}: {top:.1f} GFLOP/s")
        for run in results.runs(record, kind="stage", group="step", name=FIRST.name, threads=threads):
            rate = max(run["samples_gflops"])
            lines.append(f"  {LABELS[run['stage']]:<30}{rate:8.1f} GFLOP/s  {rate / top:5.1%}")
    for run in results.runs(record, kind="interpreted"):
        lines.append(f"  {run['stage']:<30}{1000 * max(run['samples_gflops']):8.2f} MFLOP/s")
    lines += [_region_line(run) for run in results.runs(record, kind="region")]
    lines += [_turns_line(run) for run in results.runs(record, kind="turns")]
    return "\n".join(lines)


def _region_line(run):
    what = f"{run['layer']}, {counted(run['threads'], 'thread')}, beside {run['others']} busy: "
    if run["why_not"]:
        return what + run["why_not"]
    return what + f"{np.median(run['samples_us']):,.1f} us a region, {np.mean(run['samples_us']):,.1f} on average"


def _turns_line(run):
    what = f"waiting {run['wait_policy'] or 'as usual'}, beside {run['others']} busy: "
    times = {name: np.median(samples) for name, samples in run.items() if name.endswith("_us")}
    return what + (run["why_not"] or ", ".join(f"{name[:-3]} {us:,.0f} us" for name, us in times.items()))
