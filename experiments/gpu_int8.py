"""What do integers of 8 bits gain on a GPU? Batches that lie there are answered in int8 and in bfloat16, in turns.

Networks are trained a little before. Outputs in int8 have to be those of `nn.quantize`, bit for bit, and bfloat16 as
near to float32 as it can be: who gives others has no times. A batch of more images than there are has copies of them.
"""

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from experiments.gpu_image_inference.measure import trained
from experiments.gpu_image_inference.read import too_far
from experiments.lab import results
from experiments.lab.clock import device_us, in_turns
from mlpkit import engines, machine
from mlpkit.nn.network import Network
from mlpkit.nn.quantize import quantize

ENGINES = {"int8": "cuda_int8", "bf16": "cuda_conv_graph_bf16"}
MANY = 512  # images, from which on a sample takes fewer batches


@dataclass(frozen=True)
class Plan:
    """Models, sizes of batches, and samples of each. steps: of training; examples: that calibrate, of the images."""

    models: tuple[str, ...] = ("fashion_cnn", "lenet5")
    sizes: tuple[int, ...] = (1, 8, 64, 1024, 4096)
    rounds: int = 30
    steps: int = 200
    examples: int = 200
    images: int = 512


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure, and return the record. Raises `engines.EngineUnavailable` without a GPU."""
    engines.load(ENGINES["int8"])  # or why there is none
    record = results.new("gpu_int8", libraries={"cupy-cuda13x": machine.version("cupy-cuda13x")}, **asdict(plan))
    return results.collect(record, (run for model in plan.models for run in _runs(model, plan, progress)), save)


def _runs(model, plan, progress):
    progress(f"{model}: training, and integers on the processor")
    network, X = trained(model, plan.steps)
    theta, x = network.engine.to_numpy(network.theta), X[: plan.images]
    baseline, *networks = (Network(name, network.model) for name in (engines.BASELINE, *ENGINES.values()))
    for each in (baseline, *networks):
        each.set_theta(theta)
    integers = quantize(baseline, x[: plan.examples])
    wanted = {"int8": integers(x), "bf16": baseline.forward(baseline.as_input(x))}
    for n in plan.sizes:
        progress(f"{model}: {n} images")
        options = {"int8": {"calibration": integers}, "bf16": {}}
        predictions = {name: each.compiled(n, **options[name]) for name, each in zip(ENGINES, networks, strict=True)}
        yield {"model": model, "n": n} | compared(predictions, x, wanted, n, plan.rounds)


def compared(predictions, x, wanted, n, rounds):
    """Return what a run says of both precisions' predictions of n images. wanted: the outputs of each, of all of x."""
    batch_of = partial(np.resize, new_shape=(n, *x.shape[1:]))  # copies, where there are not so many
    found = {name: predict(batch_of(x)) for name, predict in predictions.items()}
    right = {name: np.resize(outputs, (n, *outputs.shape[1:])) for name, outputs in wanted.items()}
    changed = int((found["int8"].argmax(1) != found["bf16"].argmax(1)).sum())
    about = {"changed": changed, "us": {}, "why_not": None}
    if not np.array_equal(found["int8"], right["int8"]):
        return about | {"why_not": f"{(found['int8'] != right['int8']).sum():,} outputs in int8 are not nn.quantize's"}
    difference = float(abs(found["bf16"] - right["bf16"]).max() / abs(right["bf16"]).max())
    if reason := too_far({"difference": difference, "precision": "bf16"}):
        return about | {"why_not": reason}
    batches = {name: predict.batch(x.dtype) for name, predict in predictions.items()}
    for batch in batches.values():
        batch.fill(batch_of(x))
    times = 50 if n < MANY else 10
    samples = in_turns({name: partial(device_us, batch.replay, times) for name, batch in batches.items()}, rounds + 1)
    return about | {"us": {name: [round(us, 3) for us in found[1:]] for name, found in samples.items()}}


def us(record, model, n, precision):
    """Return the median microseconds of the GPU for a batch of n images, or None."""
    samples = next((run["us"].get(precision) for run in results.runs(record, model=model, n=n)), None)
    return float(np.median(samples)) if samples else None


def ratio(record, model, n):
    """Return how many times as long bfloat16 takes, the median of the rounds' ratios, or None."""
    found = next((run["us"] for run in results.runs(record, model=model, n=n)), None)
    return float(np.median(np.divide(found["bf16"], found["int8"]))) if found else None


@results.reads
def table(record):
    """Return the record as text: microseconds of the GPU for a batch, and how many times as long bfloat16 takes."""
    lines = [f"{'':14}{'images':>8}{'int8 us':>10}{'bf16 us':>10}{'bf16 / int8':>13}"]
    for run in record["runs"]:
        name = f"{run['model']:14}{run['n']:>8,}"
        if run["why_not"]:
            lines.append(f"{name}  {run['why_not']}")
            continue
        about = run["model"], run["n"]
        times = "".join(f"{us(record, *about, precision):10.2f}" for precision in ENGINES)
        lines.append(f"{name}{times}{ratio(record, *about):13.2f}")
    return "\n".join(lines)
