"""How the record "conv_choice" is made: lines through one layer, a grid of channels and pixels, all rungs at each."""

import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments import conv_ladder
from experiments.conv_ladder import ERRORS, choose, compiled, ladder
from experiments.conv_ladder.measure import versions
from experiments.conv_ladder.rungs import cudnn
from experiments.lab import results
from mlpkit import engines
from mlpkit.kernels.conv import PASSES, Shape

LINES: dict[str, tuple[int, ...]] = {
    "channels": (1, 4, 16, 64, 256),
    "image": (7, 14, 28, 56),
    "kernel": (1, 3, 5, 7),
    "batch": (1, 16, 128),
}
CENTRE = {"channels": 64, "image": 28, "kernel": 3, "batch": 128}


def at(**numbers):
    """Return the shape at some numbers of the lines, at the centre's where none is given: as large after as before.

    Of a single channel 64 are made, as at the beginning of a network; else there are as many after as before. A window
    of 7 has less than the zeros around it that would keep the size, for a rung has two at most.
    """
    channels, image, kernel, batch = (CENTRE | numbers).values()
    after = CENTRE["channels"] if channels == 1 else channels
    return Shape(batch, channels, after, image, image, kernel, padding=min(kernel // 2, 2))


def shapes():
    """Return the shapes of the lines and of the grid, each once."""
    along = [at(**{name: number}) for name, numbers in LINES.items() for number in numbers]
    over = [at(channels=channels, image=image) for channels in LINES["channels"] for image in LINES["image"]]
    return tuple(dict.fromkeys(along + over))


# One of a kind: what is ahead at one of the ladder's layers, or shows what a way of its own costs.
RUNGS = (
    *("direct", "registers", "one_channel", "im2col", "implicit_nhwc", "tf32", "tf32x3", "bf16"),
    *("winograd2", "winograd4", "winograd2_fused", "fft"),
    *("planes_bf16", "planes_tf32", "planes_fp16", "planes_fp16x3"),
    *("cudnn_float32", "cudnn_tf32", "cudnn_bf16"),
)
QUICK = conv_ladder.Plan(samples=3, sample_ms=0.5, most_calls=20, patience_ms=15, peers=())


@dataclass(frozen=True)
class Plan:
    """How much to measure. timing: how a rung is timed, see `conv_ladder`. shapes, rungs: which.

    decided: at how many of the shapes, the first ones, a rung is decided for. tuning_seconds: how long cuDNN's plans
    are tried for a pass, in each layout. most_seconds: after which no other shape is begun.
    """

    timing: conv_ladder.Plan = QUICK
    shapes: tuple[Shape, ...] = field(default_factory=shapes)
    rungs: tuple[str, ...] = RUNGS
    decided: int = sum(map(len, LINES.values())) - len(LINES) + 1
    tuning_seconds: float = 0.6
    most_seconds: float = 540.0


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure everything on this machine's GPU, and return the record.

    Raises `engines.EngineUnavailable` where there is no GPU. A rung whose result is wrong has no time in the record,
    but a sentence that says how wrong it is.
    """
    engines.load("cupy_naive")  # or why there is none
    settings = {"shapes": [asdict(shape) for shape in plan.shapes], "timing": asdict(plan.timing) | {"layers": None}}
    settings |= {"rungs": plan.rungs, "decided": plan.decided, "tuning_seconds": plan.tuning_seconds}
    record = results.new("conv_choice", plan=settings, versions=versions())
    return results.collect(record, _cells(plan, progress), save)


def _cells(plan, progress) -> Iterable[dict]:
    until = time.perf_counter() + plan.most_seconds
    rungs = ladder.RUNGS | cudnn.rungs(plan.tuning_seconds)
    rungs = {name: rung for name, rung in rungs.items() if name in plan.rungs}
    compiled.ahead(plan.shapes, rungs, progress)
    with tempfile.TemporaryDirectory() as folder:
        for number, shape in enumerate(plan.shapes):
            if time.perf_counter() > until:
                progress(f"out of time: {shape} is left out")
                continue
            progress(f"{shape}")
            for which in PASSES:
                where = {"shape": asdict(shape), "pass": which}
                for name, each in conv_ladder.rates(shape, which, plan.timing, rungs).items():
                    each.pop("kernels", None)
                    yield {"kind": "pass", "way": name} | where | each
                if number < plan.decided:
                    yield from _decisions(shape, which, Path(folder) / "decisions.json", rungs)


def _decisions(shape, which, path, rungs):
    ours = {name: rung for name, rung in rungs.items() if name in ladder.OURS}
    for precision in ERRORS:
        found = {"kind": "decision", "precision": precision, "shape": asdict(shape), "pass": which}
        try:
            yield found | {"rung": choose.fastest(shape, which, precision, path, ours), "why_not": None}
        except ValueError as error:
            yield found | {"rung": None, "why_not": str(error)}
