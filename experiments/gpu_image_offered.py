"""What do peers gain in a network that sees, if they are offered more? Layouts, kernels that are tried, XLA's flags.

PyTorch in a graph gets TF32 with channels last, and kernels that `torch.compile` tries for convolutions; JAX three
products of TF32 for dense layers, and settings of XLA. What is faster than what stands in `gpu_image_peers` belongs
there. A process each, in turns; those that try kernels come last, one by one: others would disturb their choice.
"""

import os
from dataclasses import asdict, dataclass
from functools import cache, partial

from experiments.lab import peers, results
from experiments.lab.bench import Timing
from experiments.lab.peers import GATES
from experiments.lab.results import median_us
from mlpkit import engines, machine
from mlpkit.data import load
from mlpkit.training.recipe import Recipe

from .gpu_image_peers import FASHION

GRAPH = "pytorch_cuda_graph"
USED = "jax_epoch", "jax_epoch_default", "jax_epoch_bf16", *(f"{GRAPH}_{how}" for how in ("tf32", "last_tf32", "bf16"))
FLAGS = (
    "--xla_gpu_force_conv_nhwc=true",
    "--xla_gpu_force_conv_nchw=true",
    "--xla_gpu_experimental_enable_conv_fusion=true",
    "--xla_gpu_enable_command_buffer=+WHILE",
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_gpu_enable_latency_hiding_scheduler=true",
)
TIMING = Timing(warmup=200, steps_a_sample=200, rounds=1)


@dataclass(frozen=True)
class Plan:
    """Whom to measure: a recipe, a peer, and XLA's flags, "" for none. The perceptron's layers are dense, all of them.

    tries: who tries kernels; seconds: how long one of these may take until it is ready.
    """

    offers: tuple[tuple[Recipe, str, str], ...] = (
        *((FASHION, name, "") for name in (*USED, "jax_epoch_tf32x3")),
        *((FASHION, "jax_epoch_default", flags) for flags in FLAGS),
        *((Recipe(), name, "") for name in ("jax_epoch", "jax_epoch_tf32x3")),
    )
    tries: tuple[tuple[Recipe, str, str], ...] = (
        (FASHION, f"{GRAPH}_tuned_tf32", ""),
        (FASHION, f"{GRAPH}_tuned_bf16", ""),
    )
    seconds: float = 60.0
    timing: Timing = TIMING


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure a process of each, and return the record. Raises `engines.EngineUnavailable` without a GPU."""
    engines.load("cupy_naive")  # or why there is none
    versions = {name: machine.version(name) for name in ("torch", "jax", "jaxlib")}
    record = results.new("gpu_image_offered", timing=asdict(plan.timing), libraries=versions, gates=GATES)
    return results.collect(record, _runs(plan, progress), save)


def _runs(plan, progress):
    wanted = cache(partial(peers.first_losses, train=load("mnist").train))
    groups = [(plan.offers, None), *(((offer,), plan.seconds) for offer in plan.tries)]
    for offers, seconds in groups:
        for (recipe, name, flags), found in peers.in_turns(partial(_waiting, plan, seconds), offers):
            progress(f"{name} {flags}")
            losses = found.get("first_losses", [])
            if losses and peers.missed(losses, wanted(recipe), found.get("gate", peers.GATE), GATES):
                found = {"why_not": f"its first losses differ from the baseline's: {losses}"}
            yield {
                "engine": name,
                "flags": flags,
                "recipe": recipe.to_dict(),
                "why_not": None,
                "samples_us": [],
            } | found


def _waiting(plan, seconds, offer):
    recipe, name, flags = offer
    return peers.waiting(name, recipe, plan.timing, os.environ | {"XLA_FLAGS": flags}, seconds)


@results.reads
def table(record):
    """Return the record as text for the terminal: microseconds a step, of each network the fastest first."""
    lines = []
    for name, model in results.models().items():
        runs = [run for run in record["runs"] if run["samples_us"] and run["recipe"]["model"] == model]
        lines += [name] * bool(runs)
        for run in sorted(runs, key=median_us):
            lines.append(f"{median_us(run):8.1f} us  {run['engine']} {run['flags']}".rstrip())
    return "\n".join([*lines, *results.not_run(run for run in record["runs"] if run["why_not"])])
