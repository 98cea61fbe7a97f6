"""What does a queue that makes batches gain? Requests in process, no HTTP: latency by rate, longest batch and wait."""

import gc
import math
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass

import numpy as np

from experiments.lab import results
from experiments.lab.queueing import arrivals
from mlpkit import machine
from mlpkit.kernels import gpu
from mlpkit.nn.models import MODELS
from mlpkit.nn.network import Network
from mlpkit.serving.batching import Batcher, Full

SHARES = (*range(100), 99.5, 99.9, 99.99, 100)  # percent, of which a run keeps the latencies
HOPELESS_US = 200_000
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Plan:
    """Who predicts, and which queues and rates are tried. queues: (longest batch, milliseconds of waiting)."""

    engine: str
    model: str = "lenet5"
    queues: tuple[tuple[int, float], ...] = ((1, 0), (8, 0), (64, 0), (64, 2), (64, 10))
    rates: tuple[int, ...] = (250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000)
    seconds: float = 2.0
    rounds: int = 2
    samples: int = 100  # of each size's predictions


CPU = Plan("numba_conv")
GPU = (
    *(Plan("cuda_conv_graph", model, ((1, 0), (64, 0), (256, 0), (256, 1)),
           (1000, 2000, 5000, 10000, 20000, 30000, 40000), 1.5) for model in ("lenet5", "fashion_cnn")),
    Plan("cuda_conv", "lenet5", ((1, 0), (256, 0)), (1000, 5000, 10000, 20000, 30000), 1.5),
)  # fmt: skip


def measure(save=results.save_part, progress=print, plan=None):
    """Measure on this machine's GPU, where there is one, else on its CPU, and return the record."""
    on_gpu = gpu.why_not() is None
    plans = plan or (*GPU, CPU) if on_gpu else plan or (CPU,)
    record = results.new("batching", plans=[asdict(each) for each in plans], numpy=machine.version("numpy"))
    return results.collect(record, (run for each in plans for run in _runs(each, progress)), save)


def _runs(plan, progress):
    network = Network(plan.engine, MODELS[plan.model])
    X = np.random.default_rng(0).integers(0, 256, (512, *network.model.input), dtype=np.uint8)
    common = {"engine": plan.engine, "model": plan.model}
    for n in SIZES:
        progress(f"{plan.engine}, {plan.model}: a prediction of {n}")
        yield {"kind": "curve", **common, "rows": n, "samples_us": _samples(network.compiled(n), X[:n], plan.samples)}
    compiled = {longest: network.compiled(longest) for longest, _ in plan.queues}
    for _ in range(plan.rounds):
        lost = set()  # queues that can't keep up any more: a higher rate only takes longer
        for rate in plan.rates:
            for longest, wait_ms in (each for each in plan.queues if each not in lost):
                progress(f"{plan.engine}, {plan.model}: {rate} a second, batches of {longest}, wait {wait_ms} ms")
                found = open_loop(compiled[longest], X, rate, plan.seconds, longest, wait_ms / 1e3)
                if found["refused"] or found["quantiles_us"][50] > HOPELESS_US:
                    lost.add((longest, wait_ms))
                yield {"kind": "queue", **common, "rate": rate, "longest": longest, "wait_ms": wait_ms, **found}


def _samples(predict, x, rounds):
    samples = []
    for _ in range(rounds + 10):
        start = time.perf_counter()
        predict(x)
        samples.append(round(1e6 * (time.perf_counter() - start), 1))
    return samples[10:]


def open_loop(predict, X, rate, seconds, longest, wait=0.0, capacity=4096):
    """Return what becomes of requests of one image that come by chance, `rate` a second, whoever else still waits.

    A latency counts from the moment at which a request was to come. quantiles_us: those of SHARES. batch: mean rows.
    """
    due = arrivals(rate, int(rate * seconds))
    rows: list[int] = []
    latencies: deque[float] = deque()
    refused, finished = 0, threading.Semaphore(0)
    batcher = Batcher([predict], longest, wait, capacity, watch=lambda batch, took: rows.append(len(batch)))
    gc.collect()
    gc.disable()  # as a service would that has loaded all that it needs
    begin = time.perf_counter()

    def record(start):
        def done(_):
            latencies.append(time.perf_counter() - start)
            finished.release()

        return done

    for i, after in enumerate(due):
        start = begin + after
        while (left := start - time.perf_counter()) > 0:
            time.sleep(left if left > 2e-4 else 0)  # to the queue's thread goes what is left of the core
        try:
            batcher.submit(X[i % len(X)][None]).add_done_callback(record(start))
        except Full:
            refused += 1
    for _ in range(len(due) - refused):
        finished.acquire()
    took = time.perf_counter() - begin
    gc.enable()
    batcher.close()
    quantiles = np.percentile(np.array(latencies) * 1e6, SHARES).round(1).tolist() if latencies else []
    return {"got": round(len(latencies) / took, 1), "refused": refused, "batch": float(np.mean(rows or [0])),
            "quantiles_us": quantiles}  # fmt: skip


def curve(record, engine, model):
    """Return an array of the rows of a batch, and one of the seconds of the shortest: other programs only add."""
    found = results.runs(record, kind="curve", engine=engine, model=model)
    return np.array([run["rows"] for run in found]), np.array([min(run["samples_us"]) / 1e6 for run in found])


def latency(record, share, **wanted):
    """Return dicts by rate of the latency in ms of so many percent, the median of the rounds; refusals make it NaN."""
    found: dict = {}
    for run in results.runs(record, kind="queue", **wanted):
        us = run["quantiles_us"][SHARES.index(share)] if not run["refused"] else np.nan
        found.setdefault(run["rate"], []).append(us / 1e3)
    return {rate: float(np.median(values)) for rate, values in found.items()}


def most(record, limit_ms, share=99, **wanted):
    """Return the highest rate up to which so many percent of the requests took at most `limit_ms`, 0 for none."""
    best = 0
    for rate, ms in sorted(latency(record, share, **wanted).items()):
        if not ms <= limit_ms:
            break
        best = rate
    return best


@results.reads
def table(record):
    """Return the record as text for the terminal: a row a queue and rate."""
    lines = [f"{'engine':<18}{'model':<13}{'longest':>8}{'wait':>6}{'rate':>8}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}"]
    keys = ("engine", "model", "longest", "wait_ms")
    for key in dict.fromkeys(tuple(run[k] for k in keys) for run in results.runs(record, kind="queue")):
        wanted = dict(zip(keys, key, strict=True))
        columns = [latency(record, share, **wanted) for share in (50, 99, 99.9)]
        for rate in columns[0]:
            found = [column[rate] for column in columns]  # NaN where nobody was answered
            times = "".join(f"{'-':>9}" if math.isnan(ms) else f"{ms:9.2f}" for ms in found)
            lines.append(f"{key[0]:<18}{key[1]:<13}{key[2]:>8}{key[3]:>6g}{rate:>8,}{times}")
    return "\n".join(lines)
