"""Compile what the rungs launch, in several processes at once: CuPy keeps the machine code in files.

Run as a module it takes one of so many parts of the passes and rungs, prepares each, and prints how many it was.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

from experiments.lab import processes
from mlpkit.kernels.conv import PASSES, Shape

from . import ladder
from .rungs import cudnn

PROCESSES = 14


def ahead(shapes, rungs, progress=print):
    """Compile the kernels of rungs, given by name, for passes of shapes. What fails is for `measure` to find out."""
    names = [name for name in rungs if name not in cudnn.RUNGS]
    parts = min(PROCESSES, os.cpu_count() or 1, len(shapes) * len(PASSES) * len(names))
    progress(f"compiling in {parts} processes")
    what = json.dumps([[astuple(shape) for shape in shapes], names])

    def ask(part):
        try:
            return processes.ask(__name__, what, str(part), str(parts))
        except processes.Failed as error:
            progress(f"{error}")
            return 0

    with ThreadPoolExecutor(max(parts, 1)) as pool:
        return sum(pool.map(ask, range(parts)))


def main(what, part, parts):
    """Prepare every so many-th of the rungs at every pass, from the part-th on; each compiles its kernels then."""
    import cupy
    import numpy as np

    shapes, names = json.loads(what)
    everything = [(Shape(*numbers), which, name) for numbers in shapes for which in PASSES for name in names]
    done = 0
    for shape, which, name in everything[int(part) :: int(parts)]:
        rung = ladder.RUNGS[name]
        if rung.why_not(shape, which):
            continue
        a, b = (cupy.zeros(each, np.float32) for each in shape.operands(which)[:2])
        try:
            rung.prepare(shape, which, a, b)
            done += 1
        except Exception as error:  # a compiler's, the driver's, ...
            print(f"{name}, {which} of {shape}: {error}", file=sys.stderr)
        del a, b
        cupy.get_default_memory_pool().free_all_blocks()
    print(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
