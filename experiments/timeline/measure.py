"""How the record "timeline" is made: a step by three clocks for each engine, then its kernels by CUPTI."""

from dataclasses import asdict, dataclass
from functools import partial

from experiments.lab import results
from experiments.lab.bench import Stepper
from experiments.lab.clock import asked_us, device_us
from mlpkit import data, engines, machine
from mlpkit.training.recipe import Recipe

from ..launches.measure import LIBRARIES
from .trace import one_step, traced

RECIPE = Recipe(lr=0.01)
NAMES = ("cupy_naive", "cupy_fused", "cuda_graph_cublas", "cuda_graph", "cuda_graph_epoch")  # kernel by kernel


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. asked, ahead: steps of a sample, few and many; their difference
    leaves out what an engine does once however many steps it takes. Those ahead must fit into the GPU's queue. whole:
    steps of a sample of both together. traced: steps that CUPTI writes down, once half as many and once all. names: of
    the engines.
    """

    samples: int = 9
    asked: tuple[int, int] = (10, 110)
    ahead: tuple[int, int] = (4, 12)
    whole: int = 400
    traced: int = 8
    names: tuple[str, ...] = NAMES


USUAL = Plan()


def measure(
    save=results.save_part, progress=print, plan=USUAL, train=None, recipe=RECIPE, experiment="timeline"
):  # fmt: skip
    """Measure the engines that the plan names with a recipe, and return the record of that name.

    train: (X, y), MNIST's where None is given. Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engine = engines.load("cupy_naive")  # or why there is none
    versions = {library: machine.version(library) for library in LIBRARIES}
    record = results.new(experiment, plan=asdict(plan), recipe=recipe.to_dict(), libraries=versions)
    arrays = tuple(map(engine.asarray, train or data.load(scaled=True).train))
    results.collect(record, (_times(name, recipe, arrays, plan, progress) for name in plan.names), save)
    for run in record["runs"]:  # last: a profiler may leave the launches slower than it found them
        progress(f"kernels of {run['engine']}")
        run |= _kernels(Stepper(run["engine"], recipe, arrays), plan)
        save(record)
    return record


def _times(name, recipe, arrays, plan, progress):
    progress(f"steps of {name}")
    stepper = Stepper(name, recipe, arrays)
    stepper.take(plan.whole)
    samples = [
        (_one_more(asked_us, stepper, plan.asked), _one_more(device_us, stepper, plan.ahead))
        for _ in range(1 + plan.samples)
    ]
    host, device = (list(values) for values in zip(*samples[1:], strict=True))  # in the first, graphs are recorded
    whole = [round(stepper.take(plan.whole)[0] * 1e6, 3) for _ in range(plan.samples)]
    return {"engine": name, "host_us": host, "device_us": device, "step_us": whole}


def _one_more(clock, stepper, counts):
    """Return the microseconds of one more step by a clock of `lab.clock`: of the host, or of the GPU alone."""
    few, many = (clock(partial(stepper.ask, steps)) for steps in counts)
    return round((many - few) / (counts[1] - counts[0]), 3)


def _kernels(stepper, plan):
    """Return the kernels of one step, and how many a step has; or why not."""
    try:
        few, many = (traced(stepper, steps) for steps in (plan.traced // 2, plan.traced))
    except ImportError as error:
        return {"why_not": f"the kernels are not known: {error}", "kernels": []}
    if not many["kernels"]:
        return {"why_not": "CUPTI wrote down no kernels", "kernels": []}
    more = len(many["kernels"]) - len(few["kernels"])
    a_step = more / (plan.traced - plan.traced // 2)
    kernels, calls = one_step(many, round(a_step), plan.traced)
    return {"why_not": None, "kernels_a_step": a_step, "kernels": kernels, "calls": calls}
