"""Who works when in a training step? The host asks for kernels, the GPU runs them, and each may wait for the other.

For each engine on the GPU the record "timeline" holds three times of a step: the host's, to ask for it; the GPU's,
where it need not wait for the host; and that of both together. And it holds every kernel of one step, when it was asked
for and when it ran, as CUPTI tells it, NVIDIA's library for such questions. PyTorch's profiler asks CUPTI for us, and
sees all of the process, whoever launches. Without PyTorch the kernels are missing from the record.
"""

import json
import math
import re
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from mlpkit import engines
from mlpkit.data import load
from mlpkit.lab import machine, results
from mlpkit.lab.bench import Stepper
from mlpkit.lab.results import median as median
from mlpkit.training.recipe import Recipe

from . import launches

RECIPE = Recipe(lr=0.01)


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each time. asked, ahead: steps of a sample, few and many; their difference
    leaves out what an engine does once however many steps it takes. Those ahead must fit into the GPU's queue. whole:
    steps of a sample of both together. traced: steps that CUPTI writes down, once half as many and once all.
    """

    samples: int = 9
    asked: tuple[int, int] = (10, 110)
    ahead: tuple[int, int] = (4, 12)
    whole: int = 400
    traced: int = 8


USUAL = Plan()
NAMES = ("cupy_naive", "cupy_fused", "cuda_graph_cublas", "cuda_graph", "cuda_graph_epoch")  # kernel by kernel


def run(train=None, save=results.save, progress=print, plan=USUAL, names=NAMES):
    """Measure the engines called `names`, and return the record. train: (X, y), MNIST's where None is given.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    Raises `engines.EngineUnavailable` where there is no GPU.
    """
    engines.load("cupy_naive")  # or why there is none
    train = train or load().train
    versions = {library: machine.version(library) for library in launches.LIBRARIES}
    record = results.new("timeline", plan=asdict(plan), recipe=RECIPE.to_dict(), libraries=versions)
    data = tuple(map(engines.load("cupy_naive").asarray, train))
    for name in names:
        progress(f"steps of {name}")
        stepper = Stepper(name, RECIPE, data)
        record["runs"].append({"engine": name} | _times(stepper, plan))
        save(record)
    for run in record["runs"]:  # last: a profiler may leave the launches slower than it found them
        progress(f"kernels of {run['engine']}")
        run |= _kernels(Stepper(run["engine"], RECIPE, data), plan)
        save(record)
    return record


def ask(stepper, steps):
    """Ask for so many steps, and don't wait for them."""
    for order in stepper.orders(steps):
        for _ in stepper.run(order):
            pass


def _times(stepper, plan):
    stepper.take(plan.whole)
    samples = [
        (_one_more(launches.asked_us, stepper, plan.asked), _one_more(launches.device_us, stepper, plan.ahead))
        for _ in range(1 + plan.samples)
    ]
    host, device = (list(values) for values in zip(*samples[1:], strict=True))  # in the first, graphs are recorded
    whole = [round(stepper.take(plan.whole)[0] * 1e6, 3) for _ in range(plan.samples)]
    return {"host_us": host, "device_us": device, "step_us": whole}


def _one_more(clock, stepper, counts):
    """Return the microseconds of one more step by a clock of `launches`: of the host, or of the GPU alone."""
    few, many = (clock(partial(ask, stepper, steps)) for steps in counts)
    return round((many - few) / (counts[1] - counts[0]), 3)


# What CUPTI writes down


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


def traced(stepper, steps):
    """Return what CUPTI writes down of so many steps: `kernels`, copies and fills among them, and `calls` of the host.

    A kernel: name, begin, duration (us), blocks, begin of the call that asked for it. A call: name, begin, duration.
    """
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # the first time CUPTI sets itself up
        stepper.take(steps)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            time.sleep(0.002)
            ask(stepper, steps)
            stepper.engine.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return from_trace(json.loads(path.read_text())["traceEvents"])


def from_trace(events):
    """Return `kernels` and `calls`, each in the order of time, from the events of a trace in Chrome's format."""
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    asked = {_correlation(event): event for event in spans if event.get("cat") in ("cuda_runtime", "cuda_driver")}
    kernels = [
        [event["name"][:200], event["ts"], event["dur"], _blocks(event), _asked(event, asked)]
        for event in spans
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    calls = [[event["name"], event["ts"], event["dur"]] for event in asked.values()]
    return {"kernels": sorted(kernels, key=_begin), "calls": sorted(calls, key=_begin)}


def _correlation(event):
    return event["args"].get("correlation")


def _blocks(event):
    """Return how many blocks a kernel has, None for a copy or a fill."""
    return math.prod(event["args"]["grid"]) if "grid" in event["args"] else None


def _asked(event, asked):
    return asked[_correlation(event)]["ts"] if _correlation(event) in asked else None


def _begin(span):
    return span[1]


def one_step(trace, a_step, steps):
    """Return the kernels of a step in the middle of a trace of so many, and the host's calls from its begin to its end.

    The times count from the first kernel's begin. A step is what comes again and again; where none does, because all
    steps are one kernel, that is what is returned.
    """
    kernels, names = trace["kernels"], [name for name, *_ in trace["kernels"]]
    period, repeats = max(1, a_step), a_step * (steps - 1)
    starts = range(len(names) - repeats - period + 1)
    first = next((i for i in starts if names[i : i + repeats] == names[i + period : i + period + repeats]), 0)
    middle = first + a_step * (steps // 2)
    chosen = kernels[middle : middle + a_step] or kernels
    zero, end = chosen[0][1], max(begin + us for _, begin, us, *_ in chosen)
    asked = [at for *_, at in chosen if at is not None]
    calls = [call for call in trace["calls"] if min([zero, *asked]) <= call[1] <= end]
    return (
        [[n, _since(at, zero), round(us, 3), k, _since(a, zero)] for n, at, us, k, a in chosen],
        [[n, _since(at, zero), round(us, 3)] for n, at, us in calls],
    )


def _since(moment, zero):
    return None if moment is None else round(moment - zero, 3)


# What the record says


def busy_us(run):
    """Return for how many microseconds of its step a run's kernels ran, by CUPTI."""
    return sum(us for _, _, us, *_ in run["kernels"])


def span_us(run):
    """Return the microseconds from the first kernel's begin to the last one's end."""
    return max(begin + us for _, begin, us, *_ in run["kernels"])


def short(name):
    """Return what a reader needs of a kernel's name: cuBLAS's names tell the whole history of their templates."""
    product = re.search(r"\w*(?:gemm|gemv|split[kK])\w*", name)
    if product:
        return product[0]
    return re.sub(r"^void | ?[<(].*", "", name).rpartition("::")[2] or name


def counts(run):
    """Return how often each kernel occurs in a run's step, by its short name, the most frequent first."""
    return Counter(short(name) for name, *_ in run["kernels"])


def table(record):
    """Return the record as a table for the terminal."""
    columns = ("host asks", "GPU alone", "together", "kernels", "busy")
    lines = [f"{'us a step':<20}" + "".join(f"{column:>12}" for column in columns)]
    return "\n".join([*lines, *map(_row, record["runs"])])


def _row(run):
    times = [f"{median(run, name):,.1f}" for name in ("host_us", "device_us", "step_us")]
    found = [f"{run['kernels_a_step']:.2f}", f"{busy_us(run):,.1f}"] if run.get("kernels") else ["-", "-"]
    return f"{run['engine']:<20}" + "".join(f"{text:>12}" for text in times + found)
