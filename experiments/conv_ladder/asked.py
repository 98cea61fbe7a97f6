"""What a peer's process is asked on its command line, and how it answers. Arrays come in files: all see the same."""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from mlpkit.kernels.conv import PASSES, Shape

LAYOUTS = ("nhwc", "nchw")
PRECISIONS = ("float32", "tf32", "bf16")


@dataclass(frozen=True)
class Case:
    """A pass of a layer, in a class of precision and a layout."""

    layer: str
    shape: Shape
    which: str
    precision: str
    layout: str
    folder: str

    def arrays(self):
        """Return the operands and the right result, float32 arrays stored by rows."""
        return _load(self.folder, self.shape, self.which)

    def error(self, found):
        """Return how far off a result is, an array stored by rows, as a part of the right one's norm."""
        right = self.arrays()[2]
        return float(np.linalg.norm((found - right).ravel()) / np.linalg.norm(right.ravel()))

    def run(self, way, **found):
        """Return the run of this case for the record."""
        return {
            "way": way,
            "layer": self.layer,
            "pass": self.which,
            "precision": self.precision,
            "layout": self.layout,
        } | found


def keep(folder, shape, which, *arrays):
    """Write the operands of a pass, and the right result, for `Case.arrays` to find."""
    np.savez(_path(folder, shape, which), *(array.astype(np.float32) for array in arrays))


def _path(folder, shape, which):
    return Path(folder) / f"{abs(hash(shape))}-{which}.npz"  # of integers: the same in each process


@lru_cache(maxsize=2)
def _load(folder, shape, which):
    with np.load(_path(folder, shape, which)) as kept:
        return [kept[name] for name in kept.files]


def read(arguments=None):
    """Return the options and the cases: the layout that is mostly the faster one first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=json.loads, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--sample-ms", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    cases = [
        Case(layer, Shape(*numbers), which, precision, layout, options.folder)
        for layout in LAYOUTS
        for layer, numbers in options.layers.items()
        for which in PASSES
        for precision in PRECISIONS
    ]
    return options, cases


def timely(cases, seconds):
    """Yield cases until so many seconds are over; those that are left out are named on stderr."""
    until = time.perf_counter() + seconds
    for case in cases:
        if time.perf_counter() < until:
            yield case
        else:
            print(f"out of time: {case}", file=sys.stderr)


def answer(versions, runs):
    """Print what was measured."""
    print(json.dumps({"versions": versions, "runs": runs}))
