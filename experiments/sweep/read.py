"""What the record "sweep" says: a number for each case, out of its samples and the baseline's."""

from itertools import pairwise, product

from experiments.lab import results
from experiments.lab.results import median_us
from mlpkit.engines import BASELINE
from mlpkit.nn.models import MLP
from mlpkit.words import counted

SERIAL = ("numba_serial",)  # use one thread, however many there are


def sizes(width):
    """Return the layers of the network whose three hidden layers have `width` units each."""
    inputs, *_, classes = MLP.sizes()
    return inputs, width, width, width, classes


def flops(width, batch_size):
    """Return the floating-point operations of a step's matrix products, all but the first layer's unneeded `dx`."""
    products = [2 * batch_size * k * m for k, m in pairwise(sizes(width))]
    return 3 * sum(products) - products[0]


METRICS = {  # of a run, and the baseline's in the same case
    "us a step": lambda run, baseline: median_us(run),
    "us an example": lambda run, baseline: median_us(run) / run["batch_size"],
    "speed against NumPy": lambda run, baseline: median_us(baseline) / median_us(run),
    "GFLOP/s": lambda run, baseline: flops(run["width"], run["batch_size"]) / median_us(run) / 1e3,
}


def value(record, metric, engine, width, batch_size, threads=1):
    """Return a number out of `METRICS` for one case, None where it has no time.

    threads: those that the engine may use, and the baseline it is compared with; a serial engine uses one of them.
    """
    run = _find(record, engine, width, batch_size, 1 if engine in SERIAL else threads)
    baseline = _find(record, BASELINE, width, batch_size, threads)
    return METRICS[metric](run, baseline) if run and baseline else None


def curve(record, metric, engine, width, threads=1):
    """Return the batch sizes at which an engine has a time, and the metric at each."""
    batch_sizes = sorted({run["batch_size"] for run in results.runs(record, engine=engine, width=width)})
    values = [(n, value(record, metric, engine, width, n, threads)) for n in batch_sizes]
    found = [pair for pair in values if pair[1] is not None]
    return [n for n, _ in found], [v for _, v in found]


def _find(record, engine, width, batch_size, threads):
    wanted = dict(engine=engine, width=width, batch_size=batch_size, threads=threads)
    return next((run for run in results.runs(record, **wanted) if run["samples_us"] and not run["why_not"]), None)


@results.reads
def table(record):
    """Return the record as text for the terminal: a row an engine, a column a batch size, its speed against NumPy's."""
    widths, threads, batch_sizes = (_values(record, name) for name in ("width", "threads", "batch_size"))
    lines = []
    for width, count in product(widths, threads):
        lines += [f"speed against NumPy, width {width}, {counted(count, 'thread')}; batch sizes:"]
        lines += [f"{'':<16}" + "".join(f"{n:>9,}" for n in batch_sizes)]
        for engine in dict.fromkeys(run["engine"] for run in record["runs"]):
            speeds = [value(record, "speed against NumPy", engine, width, n, count) for n in batch_sizes]
            lines += [f"{engine:<16}" + "".join(f"{'-' if s is None else f'{s:.3g}':>9}" for s in speeds)]
    return "\n".join(lines)


def _values(record, name):
    return sorted({run[name] for run in record["runs"]})
