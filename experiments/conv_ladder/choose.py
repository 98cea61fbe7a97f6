"""Which rung is the fastest here? Time those that can, once, and remember.

What was decided is kept in a small file, for a GPU, the versions of what computes, and a shape: elsewhere, or after an
update, it is timed again. A file that can't be read is told of in a sentence, and replaced.
"""

import json
import os
import warnings
from dataclasses import astuple
from pathlib import Path

import numpy as np

from experiments.lab.clock import quick_us
from mlpkit import __version__
from mlpkit.checks import check_choice
from mlpkit.files import write_atomically
from mlpkit.kernels.conv import PASSES
from mlpkit.paths import check_readable

from . import ladder
from .rungs import ERRORS, cudnn

# What may stand in for what: who asks for TF32 is content with float32.
ENOUGH = {"float32": ("float32",), "tf32": ("float32", "tf32"), "bf16": ("bf16",)}


def default_path():
    """Return where decisions are kept: MLPKIT_CONVOLUTIONS, or a file in the user's cache."""
    if told := os.environ.get("MLPKIT_CONVOLUTIONS"):
        return Path(os.path.expanduser(told))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlpkit" / "convolutions.json"


def able(shape, which, precision, rungs=None):
    """Return the rungs that can do a pass, and are precise enough, by name. rungs: the ladder's own if None."""
    rungs = {name: ladder.RUNGS[name] for name in ladder.OURS} if rungs is None else rungs
    fit = {name: rung for name, rung in rungs.items() if rung.precision in ENOUGH[precision]}
    return {name: rung for name, rung in fit.items() if not rung.why_not(shape, which)}


def times(shape, which, precision, rungs=None):
    """Return the microseconds of a pass by each of the rungs that can, the fastest first.

    One that fails has none, and neither has one whose result is too far off for its class.
    """
    import cupy

    rng = cupy.random.default_rng(0)
    a, b = (rng.standard_normal(each, np.float32) for each in shape.operands(which)[:2])
    right, found = cudnn.exact(shape, which, a, b), dict[str, float]()
    for name, rung in able(shape, which, precision, rungs).items():
        try:
            prepared = rung.prepare(shape, which, a, b)
            cudnn.check(prepared.call, prepared.result, right, rung.precision)
            found[name] = quick_us(prepared.call, min(found.values(), default=float("inf")))
        except Exception:  # a compiler's, the driver's, ...: as of a kernel for other chips
            continue
    return dict(sorted(found.items(), key=lambda item: item[1]))


def fastest(shape, which, precision, path=None, rungs=None):
    """Return the name of the rung that does a pass fastest on this GPU: from the file, or timed and written there.

    path: the file, None for `default_path()`. Raises ValueError for a pass or a precision that there is not, and where
    no rung can.
    """
    check_choice("pass", which, PASSES)
    check_choice("precision", precision, tuple(ERRORS))
    path = default_path() if path is None else Path(path)
    kept, where = read(path), here()
    key = " ".join(map(str, (*astuple(shape), which, precision)))
    name = kept.get(where, {}).get(key)
    if name in able(shape, which, precision, rungs):
        return name
    found = times(shape, which, precision, rungs)
    if not found:
        raise ValueError(f"no rung of the ladder can do {which} of {shape} in {precision}.")
    kept.setdefault(where, {})[key] = next(iter(found))
    write(path, kept)
    return next(iter(found))


def here():
    """Return what a decision depends on beside the shape: the GPU, CUDA's compiler, CuPy, and this package."""
    import cupy

    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    nvrtc = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    return f"{gpu}, NVRTC {nvrtc}, CuPy {cupy.__version__}, mlpkit {__version__}"


def read(path):
    """Return what was decided, {where: {shape: rung}}: nothing where there is no file, or one that can't be read."""
    try:
        check_readable(path)
        kept = json.loads(Path(path).read_text(encoding="utf-8"))
        if all(isinstance(name, str) for rungs in kept.values() for name in rungs.values()):
            return kept
        reason = "a rung is no name"
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())
    warnings.warn(f"{path} is no list of decisions ({reason}): rungs are timed again.", stacklevel=2)
    return {}


def write(path, kept):
    """Write what was decided, whole or not at all; where that can't be, a sentence says so, and nothing is lost."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(kept, indent=1, sort_keys=True).encode())
    except OSError as error:
        warnings.warn(f"the decision is not kept: {error}", stacklevel=2)
