"""What becomes of our networks on older GPUs? One GPU runs what chips of lower compute capability would.

Kernels are compiled for the capability that `MLPKIT_CAPABILITY` names, and get no more shared memory than such a chip
has. Clock, memory and multiprocessors stay the machine's own: so this says what missing instructions cost, and no more.
Beside them is PyTorch, compiled, in a graph, with all that the GPU can.
"""

import os
import textwrap
from dataclasses import asdict, dataclass
from functools import cache, partial

from experiments.lab import peers, results
from experiments.lab.bench import Timing
from experiments.lab.peers import GATES
from experiments.lab.results import median_us
from mlpkit import engines, machine
from mlpkit.data import load
from mlpkit.kernels.gpu import FEWER, SETTING
from mlpkit.training.recipe import Recipe

from .gpu_image_peers import DEEP, FASHION, LENET

ALL = "all"  # of what the GPU can
TIMING = Timing(warmup=100, steps_a_sample=200, rounds=1)
PERCEPTRONS = ("cuda_graph", "cuda_graph_epoch", "cuda_three_kernels", "cuda_cluster", "cuda_persistent")
CLASSES = ("cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16")
PYTORCH = ("pytorch_cuda_graph", "pytorch_cuda_graph_tf32", "pytorch_cuda_graph_bf16")


@dataclass(frozen=True)
class Plan:
    """Which capabilities, and which engines with which recipe. others: beside them, with all that the GPU can."""

    capabilities: tuple[str, ...] = (ALL, "8.9", "8.6", "8.0", "7.5")
    cases: tuple[tuple[Recipe, tuple[str, ...]], ...] = (
        (FASHION, CLASSES),
        (DEEP, CLASSES),
        (LENET, ("cuda_conv_graph", "cuda_conv_fused")),
        (Recipe(), PERCEPTRONS),
    )
    others: tuple[tuple[Recipe, tuple[str, ...]], ...] = ((FASHION, PYTORCH), (DEEP, PYTORCH))
    timing: Timing = TIMING

    @property
    def all(self):
        """Everybody: (recipe, engine or other, capability)."""
        ours = [(recipe, name, each) for recipe, names in self.cases for name in names for each in self.capabilities]
        return ours + [(recipe, name, ALL) for recipe, names in self.others for name in names]


USUAL = Plan()
# Of GPUs that nobody had here: the capability that they run as, TFLOP/s of their tensor cores (fp16, sums of float32,
# no sparsity), GB/s of their memory; from NVIDIA's data sheets and architecture papers. The laptop's clock is its most.
SHEETS = {
    "T4": ("7.5", 65, 320),
    "RTX 4060 laptop": ("8.9", 29, 256),
    "RTX 4090": ("8.9", 165, 1_008),
    "RTX 5090": ("8.9", 209, 1_792),
}
MEASURED_ON = {"NVIDIA H200": (989, 4_800), "NVIDIA H100 80GB HBM3": (989, 3_350)}
OF_WGMMA = 0.6  # that mma.sync reaches, as chapter 16 found


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure a process of each engine under each capability, and return the record.

    Raises `engines.EngineUnavailable` without a GPU.
    """
    engines.load("cupy_naive")
    versions = {name: machine.version(name) for name in ("cupy-cuda12x", "cupy-cuda13x", "torch")}
    record = results.new("capabilities", timing=asdict(plan.timing), libraries=versions, gates=GATES)
    return results.collect(record, _runs(plan, progress), save)


def _runs(plan, progress):
    wanted = cache(partial(peers.first_losses, train=load("mnist").train))
    for (recipe, name, capability), found in peers.in_turns(partial(_waiting, plan.timing), plan.all):
        progress(f"{name}, {_title(recipe.to_dict())}, {capability}")
        yield _run(name, recipe, capability, found, wanted(recipe))


def _waiting(timing, of):
    recipe, name, capability = of
    env = {key: value for key, value in os.environ.items() if key not in (SETTING, FEWER)}
    return peers.waiting(name, recipe, timing, env if capability == ALL else env | {SETTING: capability})


def _run(name, recipe, capability, found, wanted):
    losses = found.get("first_losses", [])
    if losses and peers.missed(losses, wanted, found.get("gate", peers.GATE), GATES):
        found = {"why_not": f"its first losses differ from the baseline's: {losses}"}
    return {"engine": name, "recipe": recipe.to_dict(), "capability": capability, "why_not": None} | found


def _title(recipe):
    model = next(name for name, one in results.models().items() if recipe.get("model", one) == one)
    return f"{model}, batch {recipe['batch_size']}"


def microseconds(record):
    """Return {network: {engine: {capability: microseconds a step, None where it can't run}}}."""
    found: dict = {}
    for run in record["runs"]:
        us = None if run["why_not"] else median_us(run)
        found.setdefault(_title(run["recipe"]), {}).setdefault(run["engine"], {})[run["capability"]] = us
    return found


@results.reads
def table(record):
    """Return the record as a table for the terminal: microseconds a step, a column a capability."""
    columns = list(dict.fromkeys(run["capability"] for run in record["runs"]))
    lines = []
    for title, rows in microseconds(record).items():
        lines.append(f"{title:<26}" + "".join(f"{each:>8}" for each in columns))
        for name, by in rows.items():
            cells = (by.get(each) for each in columns)
            lines.append(f"  {name:<24}" + "".join(f"{us:8.1f}" if us else f"{'-':>8}" for us in cells))
    refused = [
        run | {"why_not": run["why_not"].split("this machine: ")[-1]} for run in record["runs"] if run["why_not"]
    ]
    return "\n".join([*lines, *(textwrap.fill(line, 88, subsequent_indent="  ") for line in results.not_run(refused))])


def predicted(record, network, engine):
    """Return {GPU: (least, most) us a step} for GPUs of SHEETS: predictions, which nobody has measured.

    A step lies between one that is all products and one that is all memory, both scaled from the record's GPU.
    """
    tflops, bandwidth = MEASURED_ON[record["machine"]["gpu"]["name"]]
    us, found = microseconds(record)[network][engine], {}
    for name, (capability, theirs, their_bandwidth) in SHEETS.items():
        ratios = OF_WGMMA * tflops / theirs, bandwidth / their_bandwidth
        found[name] = tuple(us[capability] * each for each in sorted(ratios))
    return found
