"""What the record "inside" says. No GPU is needed."""

from mlpkit.lab import results
from mlpkit.lab.results import median_us


def says(record, tool, first="", last=""):
    """Return what a tool printed, from the first line that contains `first` to the next that contains `last`."""
    (run,) = results.runs(record, kind="tool", name=tool)
    lines = run["text"].splitlines()
    begin = next(i for i, line in enumerate(lines) if first in line)
    end = next(i for i, line in enumerate(lines) if i >= begin and last in line) if last else len(lines) - 1
    return "\n".join(line.rstrip() for line in lines[begin : end + 1])


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(_line(run) for run in record["runs"])


def _line(run):
    if run["kind"] == "tool":
        return f"{run['name']:<14}{run['why_not'] or run['command']}"
    if run["kind"] == "orders":
        return f"{run['name']:<14}{len(run['sums'])} different sums in {run['runs']} runs"
    what = next(name for name in ("columns", "ways", "classes") if name in run)
    return f"{run['name']:<14}{run[what]:>6,} {what:<8}{median_us(run):>10,.2f} us"
