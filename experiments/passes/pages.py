"""The page faults of temporaries: NumPy's Adam in a process of its own, with and without a large array freed before."""

import json
import platform
import sys
from functools import partial

import numpy as np

from experiments.lab import processes
from experiments.lab.clock import seconds_of
from mlpkit.engines import numpy_baseline
from mlpkit.nn.models import MLP

from .updates import UPDATES


def pages(plan, progress):
    """Yield what NumPy's Adam takes in processes of its own, in turns: fresh ones, and after a large array."""
    for turn in range(plan.processes):
        for large in (False, True):
            progress(f"page faults, process {turn + 1} of {plan.processes}")
            yield {"kind": "pages", "large": large} | in_new_process(large)


def in_new_process(large=False):
    """Return what NumPy's Adam takes in a process of its own: `samples_us`, and page `faults` an update.

    large: let that process first free an array of 16 MB. glibc's allocator takes arrays above a threshold from the
    system and gives them back when they are freed; such an array raises the threshold. Where the allocator is another,
    there is a reason in `why_not` instead. Raises `processes.Failed`.
    """
    if platform.libc_ver()[0] != "glibc":
        return {"why_not": "this system's allocator is not glibc's", "samples_us": [], "faults": None}
    return processes.ask(__name__, *(["large"] if large else [])) | {"why_not": None}


def updates_and_faults(large, samples=30, warmup=5):
    """Return microseconds of each of NumPy's Adam updates, and the page faults of one, in this process."""
    import resource  # not on Windows

    if large:
        np.ones(4_000_000, np.float32)  # is freed at once
    arrays = [np.full(MLP.layout.size, 0.01, np.float32) for _ in range(4)]  # frees nothing, unlike `vectors`
    call = partial(numpy_baseline.adam_update, *arrays, **UPDATES["adam"][1])
    seconds_of(call, times=warmup)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = [round(seconds_of(call) * 1e6, 2) for _ in range(samples)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"samples_us": times, "faults": faults / samples}


if __name__ == "__main__":
    print(json.dumps(updates_and_faults(large="large" in sys.argv[1:])))
