"""What threads cost: a parallel region with nothing in it, and a product while another library's threads wait.

Numba and BLAS choose their threads once, so each setting has a process of its own, in which this module is run.
"""

import json
import os
import sys
import time

import numba
import numpy as np
from numba import prange

from experiments.lab import processes
from experiments.lab.clock import seconds_of
from mlpkit import machine
from mlpkit.engines.loops import gemm
from mlpkit.words import counted

from .shapes import FIRST
from .stages import blas, both

LAYERS = ("omp", "workqueue", "tbb")  # Numba's threading layers


def touch(out):
    """Write a number into each element: a parallel loop with nothing in it."""
    for i in prange(len(out)):
        out[i] = i


touch_one, touch_all = both(touch)


def regions(plan, progress):
    """Yield the cost of a parallel region for each threading layer and number of threads, alone and beside others."""
    cores = machine.cores()
    settings = [(threads, others) for threads in sorted({1, cores, 2 * cores}) for others in (0, 1)]
    for layer in LAYERS:
        for threads, others in settings:
            progress(f"a parallel region: {layer}, {counted(threads, 'thread')}, beside {others} busy")
            with processes.busy_programs(others):
                found = in_process("region", plan.region_seconds, layer, threads)
            yield {"kind": "region", "layer": layer, "threads": threads, "others": others} | found
            if found["why_not"]:
                break  # nor will it work with other numbers of threads


def turns(plan, progress):
    """Yield times of a product by Numba's threads, by BLAS's, and by both in turns, with threads that wait two ways."""
    cores = machine.cores()
    for policy in (None, "passive"):
        for others in (0, 1):
            progress(
                f"Numba and BLAS in turns, waiting {policy or 'as usual'}, beside {counted(others, 'busy program')}"
            )
            with processes.busy_programs(others):
                found = in_process("turns", plan.region_seconds, "omp", cores, policy)
            yield {"kind": "turns", "wait_policy": policy, "others": others, "threads": cores} | found


def in_process(task, seconds, layer, threads, policy=None):
    """Return what `region` or `in_turns` measures in a process with this threading layer, or `why_not` it can't."""
    chosen = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    ours = (*chosen, "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")
    env = {name: value for name, value in os.environ.items() if name not in ours} | chosen
    env |= {"OMP_WAIT_POLICY": policy} if policy else {}
    try:
        return {"why_not": None} | processes.ask(__name__, task, str(seconds), env=env)
    except processes.Failed as error:
        return {"why_not": str(error)}


def region(seconds):
    """Return microseconds of an empty parallel loop in this process, and of the same loop compiled for one core."""
    out = np.zeros(numba.config.NUMBA_NUM_THREADS)
    return {"samples_us": _sample(seconds, touch_all, out), "call_us": _sample(seconds / 10, touch_one, out)}


def in_turns(seconds):
    """Return microseconds of X W1 by Numba's threads and by BLAS's, each again and again, then in turns."""
    arrays = FIRST.arrays()
    found = {"numba": _sample(seconds, gemm.matmul, *arrays), "blas": _sample(seconds, blas, *arrays)}
    found |= {"numba_in_turns": [], "blas_in_turns": []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        found["numba_in_turns"].append(seconds_of(gemm.matmul, *arrays) * 1e6)
        found["blas_in_turns"].append(seconds_of(blas, *arrays) * 1e6)
    return {f"{name}_us": [round(us, 2) for us in samples[:400]] for name, samples in found.items()}


def _sample(seconds, call, *arguments, times=10, most=200):
    """Return microseconds a call: samples of `times` calls each, as many as fit, at least one and at most `most`."""
    for _ in range(3):
        call(*arguments)
    end = time.perf_counter() + seconds
    samples: list[float] = []
    while not samples or (time.perf_counter() < end and len(samples) < most):
        samples.append(round(seconds_of(call, *arguments, times=times) * 1e6, 3))
    return samples


if __name__ == "__main__":
    print(json.dumps({"region": region, "turns": in_turns}[sys.argv[1]](float(sys.argv[2]))))
