"""What do two and four GPUs gain? Whole training steps on one GPU and on several, by every way to add up gradients.

Weak scaling: each GPU has as many images as one had alone. Strong scaling: 1,024 for all together. A gradient is added
up by NCCL, in the graph of the step; or over NVLink by the workbook's own kernels, in the graph or inside the kernel
that stays for an epoch. Beside them all-reduces alone by both, and PyTorch's compiled step with its own.
"""

from statistics import median

from experiments import two_gpus
from experiments.lab import results
from experiments.two_gpus.measure import CASES, PEERS, parts_of
from mlpkit import engines
from mlpkit.kernels import gpu

COUNTS = (2, 4, 8)  # GPUs, as many as there are
TOGETHER = 1024  # images of a batch, for strong scaling
STRONG = {
    "fashion_cnn": ("cuda_conv_graph", "cuda_conv_graph_bf16"),
    "residual": ("cuda_conv_graph",),
    "lenet5": ("cuda_conv_fused",),
}


def measure(save=results.save_part, progress=print, counts=None):
    """Return the record. counts: numbers of GPUs; None for those of `COUNTS` that there are.

    Raises `engines.EngineUnavailable` where there are fewer than two GPUs.
    """
    found = 0 if gpu.why_not() else gpu.count()
    counts = counts or [count for count in COUNTS if count <= found]
    if not counts or max(counts) > found:
        raise engines.EngineUnavailable(f"scaling needs two GPUs or more, and this machine has {found}.")
    record = results.new("scaling", ranks=max(counts), counts=list(counts))
    return results.collect(record, (run for count in counts for run in parts_of(plan(count), count, progress)), save)


def plan(count):
    """Return the parts that are measured with so many GPUs."""
    return [
        ("all_reduce",),
        ("inside",),
        *(("ours", *case) for case in CASES),
        *(("ours", network, names, TOGETHER // count) for network, names in STRONG.items()),
        *(("pytorch", network, PEERS, 128) for network in ("fashion_cnn", "residual", "lenet5")),
    ]


def gain(record, count, network, engine, how, batch=128, alone="alone"):
    """Return how many times as many images a second so many GPUs train on as one, or None: see `two_gpus.gain`.

    batch: images of each GPU. alone: "alone", for weak scaling: one GPU with as many; or "whole": with all of them.
    """
    which = {"part": "ours", "network": network, "engine": engine, "batch": batch, "ranks": count}
    found = two_gpus.gain(record, how, alone, **which)
    return found and found / (count if alone == "whole" else 1)


@results.reads
def table(record):
    """Return the gains as text: a row for each network, engine, number of GPUs and images a GPU."""
    lines = [
        f"{'network':12} {'engine':21} {'GPUs':>4} {'each':>5} {'one':>8} {'NCCL':>7} {'NVLink':>7}  times as many"
    ]
    runs = [run for run in record["runs"] if run["part"] == "ours"]
    for which in dict.fromkeys((run["network"], run["engine"], run["ranks"], run["batch"]) for run in runs):
        network, engine, count, batch = which
        us = {run["how"]: median(run["us"]) for run in runs if "us" in run and _key(run) == which}
        gains = [gain(record, count, network, engine, how, batch) for how in ("nccl", "nvlink")]
        told = "".join(f"{found:8.2f}" if found else f"{'':8}" for found in gains)
        lines.append(f"{network:12} {engine:21} {count:4} {batch:5} {us['alone']:6.1f}us{told}")
    return "\n".join(lines)


def _key(run):
    return run["network"], run["engine"], run["ranks"], run["batch"]
