"""What the record says: what an all-reduce costs, and images a second against one GPU, where it has them."""

from statistics import median
from typing import NamedTuple

import numpy as np

from experiments.lab import results

PARTS = (2**11, 2**18), (2**19, 2**30)  # sizes in floats: between these two NCCL changes its way


class Price(NamedTuple):
    """What a message costs: `start` us before its first byte, then its bytes at `rate` GB/s."""

    start: float
    rate: float

    def us(self, floats):
        """Return the microseconds of so many floats, a number or an array of them."""
        return self.start + 4e-3 * floats / self.rate


def runs_of(record, part, **which):
    """Return the runs of a part that have these values."""
    return results.runs(record, part=part, **which)


def all_reduce(record, kind="graph", how="nccl"):
    """Return the sizes that were measured, in floats, and their medians in us: two arrays, by rising size.

    kind: "graph", of many in a CUDA graph, or "calls", asked for one by one.
    """
    runs = sorted(runs_of(record, "all_reduce", how=how), key=lambda run: run["floats"])
    return np.array([run["floats"] for run in runs]), np.array([median(run["us"][kind]) for run in runs])


def price(floats, us):
    """Return the `Price` whose line through (floats,), (us,) has the least squares of relative errors."""
    floats, us = np.asarray(floats, float), np.asarray(us, float)
    columns = np.stack([np.ones_like(us), 4e-3 * floats], axis=1) / us[:, None]
    (start, slope), *_ = np.linalg.lstsq(columns, np.ones_like(us), rcond=None)
    return Price(float(start), float(1 / slope))


def nccl_us(record, floats):
    """Return the us of NCCL's all-reduce in a graph by two lines, a number or an array: see `PARTS`."""
    sizes, us = all_reduce(record)
    short, long = (price(sizes[part], us[part]) for part in ((sizes >= low) & (sizes <= high) for low, high in PARTS))
    return np.where(np.asarray(floats) <= PARTS[0][1], short.us(floats), long.us(floats))


def gain(record, how, alone="alone", **which):
    """Return how many times as many images a second all GPUs train on as one; None where the record has no such steps.

    which: values of the runs, such as part="ours", network="residual", engine="cuda_conv_graph".
    """
    one, many = (results.runs(record, how=each, **which) for each in (alone, how))
    if not (one and many and "us" in one[0] and "us" in many[0]):
        return None
    return many[0].get("ranks", record["settings"]["ranks"]) * median(one[0]["us"]) / median(many[0]["us"])


@results.reads
def table(record):
    """Return the runs as text: all-reduces by size, then steps by network."""
    lines = [f"{'floats':>12} {'in a graph':>12} {'by calls':>12}  us, medians, NCCL"]
    for floats, inside, called in zip(*all_reduce(record), all_reduce(record, "calls")[1], strict=True):
        lines.append(f"{floats:>12,} {inside:>12.2f} {called:>12.2f}")
    for run in [run for run in record["runs"] if run["part"] != "all_reduce"]:
        who = run.get("engine") or f"PyTorch, {run['precision']}"
        us = f"{median(run['us']):8.1f} us" if "us" in run else f"refused: {run['refused']}"
        lines.append(f"{run['network']:12} {who:22} {run['how']:12} {us}")
    return "\n".join(lines)
