"""What the record says: from which batch size on an engine wins, and all of it as text. No GPU is needed."""

from collections.abc import Callable

from experiments.lab import results
from experiments.lab.results import median, median_us
from mlpkit.engines import BASELINE
from mlpkit.words import counted


def curve(record, engine):
    """Return the batch sizes at which an engine took steps, and the microseconds of one at each."""
    runs = results.runs(record, kind="batch", engine=engine)
    return [run["batch_size"] for run in runs], [median_us(run) for run in runs]


def first_win(record, engine, baseline=BASELINE):
    """Return the smallest batch size from which on an engine is always faster than the baseline; None without one."""
    (sizes, ours), (_, theirs) = curve(record, engine), curve(record, baseline)
    wins = [us < other for us, other in zip(ours, theirs, strict=True)]
    lost = max((i for i, won in enumerate(wins) if not won), default=-1)
    return sizes[lost + 1] if lost + 1 < len(sizes) else None


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(_LINES[run["kind"]](run) for run in record["runs"])


def _times(*names):
    return lambda run: ", ".join(f"{name.removesuffix('_us')} {median(run, name):,.1f}" for name in names) + " us"


def _product(run):
    return f"{run['name']}, batch {run['n']:,}, {'with' if run['workspace'] else 'without'} a workspace"


_ALL = _times("record_us", "instantiate_us", "launch_us", "device_us")
_ONE_BY_ONE = _times("one_by_one_us")
_CLOCKS = _times("asked_us", "waited_us", "events_us", "device_us")
_LINES: dict[str, Callable[[dict], str]] = {
    "clocks": lambda run: f"{run['rows']:>8,} rows x W1: {_CLOCKS(run)}",
    "call": lambda run: f"{run['name']:<28}{_times('asked_us', 'device_us')(run)}",
    "split": lambda run: f"{_product(run):<45}{counted(run['kernels'], 'kernel')}, {median(run, 'device_us'):,.1f} us",
    "nodes": lambda run: f"graph of {counted(run['nodes'], 'empty kernel')}: {_ALL(run)}; {_ONE_BY_ONE(run)}",
    "graph": lambda run: f"graph of {counted(run['steps'], 'step')}, {run['engine']}: {_ALL(run)}",
    "batch": lambda run: f"{run['engine']:<20}batch {run['batch_size']:>6,}{median_us(run):>12,.1f} us a step",
}
