"""Peers on a processor: each in a process of its own, on so many cores, several times, in turns.

An experiment asks with `in_turns`; its module, run as a process, replies with `reply`.
"""

import json
import os
import sys
import time
from pathlib import Path

from mlpkit.words import counted

from . import processes

THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
WARM = 3  # calls before those that are timed


def in_turns(module, asked, rounds, progress):
    """Yield runs, dicts: what each process of a module replies, or in "why_not", why there is nothing.

    asked: pairs of dicts: what a run says of itself, with "engine" and "cores", and what its process is told besides.
    """
    for number in range(rounds):
        for about, settings in asked:
            who = [counted(value, "core") if name == "cores" else str(value) for name, value in about.items()]
            progress(", ".join([*who, f"round {number + 1}"]))
            env = os.environ | dict.fromkeys(THREADS, str(about["cores"]))
            run = about | {"round": number, "samples_us": [], "why_not": None}
            try:
                yield run | processes.ask(module, json.dumps(about | settings), env=env)
            except processes.Failed as error:
                yield run | {"why_not": str(error)}


def reply(measured):
    """Print, as JSON, what a function of the settings returns, on so many cores: the process's side."""
    settings = json.loads(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _some_cores(settings["cores"]))
    print(json.dumps(measured(settings)))


def samples_us(call, n):
    """Return the microseconds of each of `n` calls, of one that is warm."""
    samples = []
    for _ in range(WARM + n):
        start = time.perf_counter()
        call()
        samples.append(1e6 * (time.perf_counter() - start))
    return samples[WARM:]


def _some_cores(count):
    """Return so many processors of ours, each of another core where there are as many."""
    found: dict = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        found.setdefault(path.read_text().strip() if path.exists() else cpu, cpu)
    chosen = list(found.values())
    return (chosen + [cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in chosen])[:count]
