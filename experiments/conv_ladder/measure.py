"""How the record "conv_ladder" is made: the rungs in turns at each layer, PyTorch and JAX, the GPU's limits."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Any

import numpy as np

from experiments import matmul_ladder
from experiments.lab import clock, processes, results
from experiments.lab.clock import events_us, recorded
from experiments.lab.launched import kernels_of
from experiments.matmul_ladder.measure import limits
from mlpkit import engines
from mlpkit.kernels.conv import PASSES, Shape

from . import asked, compiled, ladder
from .rungs import LAYERS, cudnn, errors_of, why_too_far

PEERS = ("torch", "jax")
SQUARE = 8192  # edge of the matrices whose product shows what tensor cores do
QUIET = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}  # JAX leaves memory to others


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each rung at each layer and pass, in turns, each a graph of calls.

    sample_ms: how long a sample takes. most_calls: of a graph. patience_ms: a rung that takes longer for one call is
    not measured there. tuning_seconds: how long cuDNN's plans are tried in each layout. peers: whom else. peer_seconds:
    how long one of them may take. layers: those of the ladder.
    """

    samples: int = 9
    sample_ms: float = 1.0
    most_calls: int = 40
    patience_ms: float = 60.0
    tuning_seconds: float = 0.5
    peers: tuple[str, ...] = PEERS
    peer_seconds: float = 60.0
    layers: Mapping[str, Shape] = field(default_factory=lambda: dict(LAYERS))


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure everything on this machine's GPU, and return the record.

    Raises `engines.EngineUnavailable` where there is no GPU. A rung whose result is wrong has no time in the record,
    but a sentence that says how wrong it is.
    """
    engines.load("cupy_naive")  # or why there is none
    record = results.new("conv_ladder", plan=asdict(plan), versions=versions())
    parts = (_limits, _passes, _peers, _limits)  # limits: before and after
    return results.collect(record, chain.from_iterable(part(plan, progress) for part in parts), save)


def versions():
    """Return the versions of what computes, by name."""
    import cupy

    found = {"cupy": cupy.__version__, "nvrtc": cupy.cuda.nvrtc.getVersion()}
    for name in ("torch", "jax", "jaxlib"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found if cudnn.why_not() else found | cudnn.version()


def _limits(plan, progress):
    """Yield multiply-adds and a copy at the GPU's pace, and large products on tensor cores."""
    import cupy

    progress("the GPU's limits")
    calls, work, moved = limits()
    a, b = cupy.random.default_rng(0).standard_normal((2, SQUARE, SQUARE), np.float32)
    for precision in ("tf32", "bf16"):
        calls[precision], _ = matmul_ladder.cublas(precision, a, b)
    samples = clock.in_turns({name: partial(events_us, call) for name, call in calls.items()}, plan.samples)
    rates = {"float32": [work / us / 1e3 for us in samples["multiply_adds"]]}
    rates |= {name: [2 * SQUARE**3 / us / 1e3 for us in samples[name]] for name in ("tf32", "bf16")}
    for precision, found in rates.items():
        yield {"kind": "peak", "precision": precision, "samples_gflops": found}
    yield {"kind": "copy", "bytes": moved, "samples_gbps": [moved / us / 1e3 for us in samples["copy"]]}


# Rungs


def _passes(plan, progress):
    if reason := cudnn.why_not():
        progress(reason)
    rungs = ladder.RUNGS | cudnn.rungs(plan.tuning_seconds)
    compiled.ahead(list(plan.layers.values()), rungs, progress)
    for layer, shape in plan.layers.items():
        for which in PASSES:
            progress(f"{layer}, {which}")
            for way, found in rates(shape, which, plan, rungs).items():
                yield {"kind": "pass", "layer": layer, "pass": which, "way": way} | found


def rates(shape, which, plan=USUAL, rungs=None):
    """Return what each rung does at a pass: a dict with its samples in microseconds, or with a sentence why not.

    rungs: by name, all of the ladder's where it is None.
    """
    import cupy

    rungs = ladder.RUNGS if rungs is None else rungs
    a, b, wanted = problem(shape, which)
    found = {name: _ready(rung, shape, which, a, b, wanted, plan) for name, rung in rungs.items()}
    calls = {name: partial(events_us, each.pop("graph").launch) for name, each in found.items() if "graph" in each}
    samples = clock.in_turns(calls, plan.samples)
    for name, each in samples.items():
        found[name]["samples_us"] = [us / found[name]["calls"] for us in each]
        found[name].pop("keeps")
    calls.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    return found


def problem(shape, which, seed=0):
    """Return two operands of a pass, float32 CuPy arrays of both signs, and the result in float64."""
    import cupy

    naive: Any = engines.load("cupy_naive")
    rng = cupy.random.default_rng(seed)
    a, b = (rng.standard_normal(each, np.float32) for each in shape.operands(which)[:2])
    x, y = a.astype(np.float64), b.astype(np.float64)
    if which == "forward":
        return a, b, naive.conv(x, y, None, shape.stride, shape.padding)
    if which == "input_gradient":
        return a, b, naive.conv_backward_input(x, y, shape.x, shape.stride, shape.padding)
    dw = cupy.empty(shape.w)
    naive.conv_backward_weights(x, y, dw, None, shape.stride, shape.padding)
    return a, b, dw


def _ready(rung, shape, which, a, b, wanted, plan):
    """Return a rung's error, workspace, kernels and graph, or why it is not measured."""
    if reason := rung.why_not(shape, which):
        return {"why_not": reason}
    try:
        prepared = rung.prepare(shape, which, a, b)
        prepared.call()
        once = events_us(prepared.call)
    except Exception as error:  # a compiler's, the driver's, ...
        return {"why_not": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    errors = errors_of(prepared.result(), wanted)
    found = {"precision": rung.precision, "error": errors[0], "row_error": errors[1], "workspace": prepared.workspace}
    if reason := why_too_far(errors, rung.precision):
        return found | {"why_not": reason}
    if once > plan.patience_ms * 1e3:
        return found | {"why_not": f"it takes {once / 1e3:.0f} ms."}
    times = int(max(1, min(plan.most_calls, plan.sample_ms * 1e3 / once)))
    graph = recorded(prepared.call, times)
    graph.launch()
    found |= {"calls": times, "kernels": _kernels(prepared.call), "graph": graph, "keeps": prepared}
    return found | _choice(prepared)


def _kernels(call):
    try:
        return kernels_of(recorded(call))
    except (AttributeError, OSError, RuntimeError):  # an older driver
        return []


def _choice(prepared):
    """Return which of cuDNN's plans it is, where it is one."""
    choices = [each for each in prepared.keeps if isinstance(each, cudnn.Choice)]
    return {"choice": asdict(choices[0])} if choices else {}


# Others


def _peers(plan, progress):
    with tempfile.TemporaryDirectory() as folder:
        if plan.peers:
            progress("arrays for the peers")
            for shape in plan.layers.values():
                for which in PASSES:
                    asked.keep(folder, shape, which, *(array.get() for array in problem(shape, which)))
        for peer in plan.peers:
            progress(f"{peer}, in a process of its own")
            yield from _peer(peer, plan, folder)


def _peer(peer, plan, folder):
    layers = json.dumps({name: astuple(shape) for name, shape in plan.layers.items()})
    options = {"layers": layers, "samples": plan.samples, "sample-ms": plan.sample_ms, "seconds": plan.peer_seconds}
    arguments = [f"--{name}={value}" for name, value in (options | {"folder": folder}).items()]
    try:
        answer = processes.ask(f"{__package__}.{peer}_peer", *arguments, env=os.environ | QUIET)
    except (processes.Failed, ValueError) as error:
        yield {"kind": "peer", "way": peer, "why_not": str(error)}
        return
    yield {"kind": "peer", "way": peer, "versions": answer["versions"], "why_not": None}
    for run in answer["runs"]:
        yield {"kind": "pass"} | run | {"way": f"{run['way']}_{run['precision']}"}
