"""What does a convolution take whose arrays lie in memory, not in the cache? And what does cuDNN gain with fp16?

The ladder calls each pass again and again with the same arrays, which the second cache keeps. Here each is timed so,
and with sets of arrays in turn that together are three times as large as that cache: who comes back to a set finds it
gone. In TF32's class cuDNN may have fp16, as `planes_fp16` has, with the conversions from and to float32 on the clock.
And a forward pass is timed with the bias and the ReLU that follow it, in one kernel, by cuDNN's fused graphs and ours.
"""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from experiments import conv_ladder
from experiments.conv_ladder import LAYERS, compiled, ladder
from experiments.conv_ladder.measure import versions
from experiments.conv_ladder.rungs import Prepared, cudnn, errors_of, why_too_far
from experiments.conv_ladder.rungs.blocked import blocked_as_images
from experiments.lab import clock, results
from experiments.lab.clock import events_us, recorded
from mlpkit import engines
from mlpkit.kernels import gpu
from mlpkit.kernels.cnn import between
from mlpkit.kernels.conv import PASSES, blocked

SETS = 3  # times the second cache: how large all sets of arrays are together


@dataclass(frozen=True)
class Plan:
    """Layers of the ladder, and which ways; cuDNN's beside them. followed: at which layer, and in which classes.

    tuning_seconds: how long cuDNN's plans are tried for a pass, in each layout. samples: of each, in turns.
    """

    layers: tuple[str, ...] = ("64 to 128, 13 x 13", "256 to 256, 28 x 28")
    ways: tuple[str, ...] = ("planes_fp16x3", "planes_fp16", "planes_tf32", "tf32", "planes_bf16")
    followed: tuple[str, tuple[str, ...]] = ("64 to 128, 13 x 13", ("tf32", "bf16"))
    tuning_seconds: float = 0.2
    samples: int = 7


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure, and return the record. Raises `engines.EngineUnavailable` where there is no GPU."""
    engines.load("cupy_naive")  # or why there is none
    record = results.new("conv_offered", plan=asdict(plan), versions=versions())
    return results.collect(record, _runs(plan, progress), save)


def _runs(plan, progress):
    ours = {name: ladder.RUNGS[name] for name in plan.ways}
    compiled.ahead([LAYERS[name] for name in plan.layers], ours, progress)
    rungs = ours | cudnn.rungs(plan.tuning_seconds) | {"cudnn_fp16": cudnn.rung_fp16(plan.tuning_seconds)}
    for layer in plan.layers:
        shape = LAYERS[layer]
        for which in PASSES:
            progress(f"{layer}, {which}")
            *operands, wanted = conv_ladder.problem(shape, which)
            makes = {
                name: (partial(rung.prepare, shape, which), rung.precision)
                for name, rung in rungs.items()
                if not rung.why_not(shape, which)
            }
            for way, found in _timed(makes, operands, wanted, plan.samples).items():
                yield {"kind": "pass", "layer": layer, "pass": which, "way": way} | found
    progress("with what follows")
    yield from _followed(plan)


def _followed(plan):
    """Yield the times of a forward pass with bias and ReLU behind it, by ours and by cuDNN's fused graphs."""
    import cupy

    layer, classes = plan.followed
    shape = LAYERS[layer]
    a, b, wanted = conv_ladder.problem(shape, "forward")
    bias = cupy.random.default_rng(1).standard_normal((1, shape.channels_out, 1, 1), np.float32)
    makes = {}
    for name in classes:
        makes[f"planes_{name}"] = partial(followed, blocked.MODES[name], shape), name
        makes[f"cudnn_{name}"] = partial(cudnn.prepare, name, plan.tuning_seconds, shape, "forward"), name
    found = _timed(makes, (a, b, bias), cupy.maximum(wanted + bias, 0), plan.samples)
    for way, each in found.items():
        yield {"kind": "followed", "layer": layer, "pass": "forward", "way": way} | each


def followed(mode, shape, a, b, bias):
    """Return `Prepared` for a forward pass whose own kernel adds the bias (1, channels, 1, 1), and takes the ReLU."""
    conv = blocked.cropped(shape, followed=True)
    about = between.Pooled(shape.batch, shape.channels_out, shape.out_height, shape.out_width, relu=True)
    (one,) = blocked.launches(mode, conv, "forward")
    images = blocked.Stored(blocked.images_as_blocked(a, mode))
    filters = blocked.Stored(blocked.filters_in_order(b, mode, one.tiling).ravel())
    bias, made = bias.ravel(), []

    def call():
        made.append(between.convolve(mode, conv, about, images, filters, "nc8hw8", bias))  # kept: a graph writes there

    return Prepared(call, lambda: blocked_as_images(made[-1][0], shape.channels_out), 0, (images, filters, bias, made))


def _timed(makes, operands, wanted, samples):
    """Return for each way its samples with arrays that are in the cache ("samples_us") and that are not ("cold_us").

    makes: {name: (prepare, class)}; operands: what prepare takes; wanted: the result in float64.
    """
    import cupy

    least = 2 * (wanted.size + sum(each.size for each in operands))  # bytes, in the class that has the fewest
    count = max(2, -(-SETS * gpu.describe()["l2_bytes"] // least))
    found = {name: _ready(make, precision, operands, wanted, count) for name, (make, precision) in makes.items()}
    calls = {
        (name, kind): partial(events_us, graph.launch)
        for name, each in found.items()
        for kind, graph in each.pop("graphs", {}).items()
    }
    for (name, kind), us in clock.in_turns(calls, samples + 1).items():
        found[name][kind] = [each / count for each in us[1:]]
    for each in found.values():
        each.pop("keeps", None)
    calls.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    return found


def _ready(prepare, precision, operands, wanted, count) -> dict[str, Any]:
    """Return a way's error, and its graphs: of calls with one set of arrays, and with one set after another."""
    try:
        sets = [prepare(*(each.copy() for each in operands)) for _ in range(count)]
        for each in sets:
            each.call()
        errors = [errors_of(each.result(), wanted) for each in (sets[0], sets[-1])]
    except Exception as error:  # a compiler's, the driver's, ...
        return {"why_not": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    if reason := next((reason for each in errors if (reason := why_too_far(each, precision))), None):
        return {"why_not": reason}
    in_turns = cycle([each.call for each in sets])
    graphs = {"samples_us": recorded(sets[0].call, count), "cold_us": recorded(lambda: next(in_turns)(), count)}
    return {
        "why_not": None,
        "precision": precision,
        "error": errors[0][0],
        "sets": count,
        "keeps": sets,
        "graphs": graphs,
    }


@results.reads
def table(record):
    """Return the record as text for the terminal: microseconds of each way, warm and cold."""
    lines = []
    for run in record["runs"]:
        what = f"{run['layer']:20}{run['pass']:16}{run['way']:15}" + "with bias and ReLU " * (run["kind"] == "followed")
        if run["why_not"]:
            lines.append(f"{what}{run['why_not']}")
        else:
            warm, cold = results.median(run), results.median(run, "cold_us")
            lines.append(f"{what}{warm:8.1f} us, {cold:8.1f} with cold arrays, error {run['error']:.0e}")
    return "\n".join(lines)
