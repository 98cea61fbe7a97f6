"""What the record says: which way is the fastest where, and what a quick decision was worth. No GPU is needed."""

from dataclasses import asdict

from experiments.conv_ladder import ERRORS
from experiments.conv_ladder.choose import ENOUGH
from experiments.lab import results
from mlpkit.kernels.conv import PASSES, Shape
from mlpkit.words import counted

from .measure import LINES, at


def _runs(record, shape, which):
    runs = results.runs(record, kind="pass", shape=asdict(shape))
    return [run for run in runs if run["pass"] == which and run.get("samples_us")]


def median_us(record, way, shape, which):
    """Return a way's microseconds, the median of its samples; None where it was not measured."""
    return next((results.median(run) for run in _runs(record, shape, which) if run["way"] == way), None)


def errors(record, shape, which):
    """Return how far off each way's result was, as a part of its norm, by name."""
    return {run["way"]: run["error"] for run in _runs(record, shape, which)}


def fastest(record, shape, which, precision, ours=True):
    """Return the name of the fastest way that is precise enough, and its microseconds; None, None without any.

    ours: without cuDNN.
    """
    found = {
        run["way"]: results.median(run)
        for run in _runs(record, shape, which)
        if run["precision"] in ENOUGH[precision] and not (ours and run["way"].startswith("cudnn"))
    }
    return min(found.items(), key=lambda item: item[1], default=(None, None))


def line(record, name, which, precision, ours=True):
    """Return the fastest way along a line of `LINES`: {number: (name, microseconds)}."""
    return {number: fastest(record, at(**{name: number}), which, precision, ours) for number in LINES[name]}


def grid(record, which, precision, ours=True):
    """Return the fastest way at each place of the grid: {(channels, image): (name, microseconds)}."""
    places = [(channels, image) for channels in LINES["channels"] for image in LINES["image"]]
    return {place: fastest(record, at(channels=place[0], image=place[1]), which, precision, ours) for place in places}


def decisions(record, precision):
    """Return which rung was decided for: {(shape, pass): name}."""
    runs = results.runs(record, kind="decision", precision=precision)
    return {(Shape(**run["shape"]), run["pass"]): run["rung"] for run in runs}


def regret(record, precision):
    """Return how many times as long as the fastest rung the one takes that was decided for: {(shape, pass): factor}.

    Infinity, where the one that was decided for has no time: where its result was too far off.
    """
    found = {}
    for (shape, which), name in decisions(record, precision).items():
        taken, (_, least) = median_us(record, name, shape, which), fastest(record, shape, which, precision)
        if name and least:
            found[shape, which] = taken / least if taken else float("inf")
    return found


@results.reads
def table(record):
    """Return the record as text for the terminal: the fastest rung of each class at each place, and cuDNN's time."""
    lines = []
    for shape in dict.fromkeys(Shape(**run["shape"]) for run in results.runs(record, kind="pass")):
        lines.append(_words(shape))
        for which in PASSES:
            lines += [_line(record, shape, which, precision) for precision in ERRORS]
    for precision in ERRORS:
        factors = list(regret(record, precision).values())
        right = [factor for factor in factors if factor < float("inf")]
        if right:
            lines.append(f"{precision}: what was decided for takes {max(right):.2f} times the least time, at most")
            lines[-1] += f"; {len(factors) - len(right)} of {len(factors)} are too far off"
    return "\n".join(lines)


def _words(shape):
    channels = f"{shape.channels} to {counted(shape.channels_out, 'channel')}"
    return f"{counted(shape.batch, 'image')} of {shape.height} x {shape.width}, {channels}, windows of {shape.kernel}"


def _line(record, shape, which, precision):
    name, us = fastest(record, shape, which, precision)
    theirs = median_us(record, f"cudnn_{precision}", shape, which)
    line = f"  {which:<16}{precision:<8} " + (f"{name:<16}{us:>10,.1f} us" if name else "no rung")
    return line + (f", cuDNN {theirs:,.1f} us" if theirs else "")
