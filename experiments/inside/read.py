"""What the record "inside" says. No GPU is needed."""

from experiments.lab import results
from experiments.lab.results import median_us
from mlpkit.words import counted

SINGULAR = {"columns": "column", "ways": "way", "classes": "class"}


def says(record, tool, first="", last=""):
    """Return what a tool printed, from the first line that contains `first` to the next that contains `last`.

    Raises ValueError, in a sentence, where there are no such lines; with the reason, where the tool did not run.
    """
    (run,) = results.runs(record, kind="tool", name=tool)
    lines = [line.rstrip() for line in run["text"].splitlines()]
    begin = next((i for i, line in enumerate(lines) if first in line), len(lines))
    end = next((i for i, line in enumerate(lines[begin:], begin + 1) if last in line), None) if last else len(lines)
    if run["why_not"] or end is None or begin == len(lines):
        why_not = run["why_not"] or f"there are no lines from {first!r} to {last!r}"
        raise ValueError(f"the record has nothing of {tool!r} to show: {why_not}.")
    return "\n".join(lines[begin:end])


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    return "\n".join(_line(run) for run in record["runs"])


def _line(run):
    if run["kind"] == "tool":
        return f"{run['name']:<14}{run['why_not'] or run['command']}"
    if run["kind"] == "orders":
        return f"{run['name']:<14}{counted(len(run['sums']), 'different sum')} in {counted(run['runs'], 'run')}"
    what, *_ = (name for name in SINGULAR if name in run)
    noun = SINGULAR[what] if run[what] == 1 else what
    return f"{run['name']:<14}{run[what]:>6,} {noun:<8}{median_us(run):>10,.2f} us"
