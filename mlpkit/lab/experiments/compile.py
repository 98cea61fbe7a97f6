"""How long does a reader wait for the compiler? The first step of each engine, in processes of their own.

A process that finds no compiled code must make it before its first step; it leaves the code on disk, and the next
process only reads it. The records "compile", of Numba's engines, and "gpu_compile", of the GPU's, hold the times of
both, and of a later step for comparison.
"""

import json
import os
import sys
import tempfile
import time

import numpy as np

from mlpkit import engines
from mlpkit.lab import processes, results
from mlpkit.lab.bench import Stepper
from mlpkit.training.recipe import Recipe

NAMES = engines.NUMBA
CACHES = ("empty", "filled")
CACHE_VARIABLES = ("NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")  # Numba's, CuPy's, the driver's
WAIT = ("import", "prepare", "first")  # what a reader waits for, one after the other


def run(save=results.save, progress=print, names=NAMES, processes=2, experiment="compile"):
    """Time the first step of each engine with an empty cache and with a filled one, and return the record.

    processes: how many to start with each of these caches, for each engine. save: is called with the record whenever
    something was added. progress: is called with what is being done, a text. experiment: the record's name. Raises
    EngineUnavailable where an engine can't run.
    """
    for name in names:
        engines.load(name)
    record = results.new(experiment, recipe=Recipe().to_dict(), processes=processes)
    for name in names:
        record["runs"] += [{"engine": name, "cache": cache, "samples_s": []} for cache in CACHES]
    for turn in range(processes):
        for name in names:
            progress(f"{name}, turn {turn + 1} of {processes}")
            with tempfile.TemporaryDirectory() as folder:
                for case in results.runs(record, engine=name):
                    case["samples_s"].append(in_new_process(name, folder))
            save(record)
    return record


def in_new_process(name, cache):
    """Return the seconds that `first_steps` finds for the engine `name`, with `cache` for the compilers' folder.

    Raises `processes.Failed`.
    """
    return processes.ask(__name__, name, env=os.environ | {variable: str(cache) for variable in CACHE_VARIABLES})


def first_steps(name):
    """Return the seconds of importing the engine (with its libraries), of preparing, of the first step, of a later one.

    To prepare is to make the network and the optimizer and to put the data where the engine wants them. A GPU's driver
    starts with the import. Of the images only their number matters here: they are made up.
    """
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(1000, 784)).astype(np.float32)
    train = pixels / np.float32(255), rng.integers(10, size=1000)
    start = time.perf_counter()
    engines.load(name)
    imported = time.perf_counter() - start
    stepper = Stepper(name, Recipe(), train)
    stepper.engine.synchronize()
    prepared = time.perf_counter() - start - imported
    first, *later = (stepper.take(1)[0] for _ in range(4))
    return {"import": imported, "prepare": prepared, "first": first, "later": min(later)}


def median_s(record, engine, cache, what="first"):
    """Return the median over the processes, in seconds. what: "import", "prepare", "first" or "later"."""
    (case,) = results.runs(record, engine=engine, cache=cache)
    return float(np.median([sample[what] for sample in case["samples_s"]]))


def wait_s(record, engine, cache):
    """Return the seconds until the first step is done: the median over the processes, Python's own start not counted.

    A record of an older version has no time of preparing.
    """
    (case,) = results.runs(record, engine=engine, cache=cache)
    return float(np.median([sum(sample.get(what, 0.0) for what in WAIT) for sample in case["samples_s"]]))


def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'seconds of the first step':<28}{'cache empty':>12}{'filled':>10}{'later step':>12}"]
    for case in results.runs(record, cache=CACHES[0]):
        name = case["engine"]
        if case["samples_s"]:
            times = [median_s(record, name, cache) for cache in CACHES]
            later = median_s(record, name, CACHES[1], "later")
            lines += [f"{name:<28}{times[0]:>12.2f}{times[1]:>10.3f}{later:>12.5f}"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(first_steps(sys.argv[1])))
