"""What the record "paint" says."""

import numpy as np

from experiments.lab import results
from mlpkit.words import counted


@results.reads
def looks(record):
    """Return the runs of pictures that were trained, by the name under which `show.kept` has them."""
    found = [run for run in record["runs"] if run["kind"] == "look"]
    return {f"{run['trunk']}-{run['style']}-{run['style_weight']:g}": run for run in found}


@results.reads
def painters(record):
    """Return the runs of networks that paint, by trunk and style; behind a style the channels of a larger network."""
    found = [run for run in record["runs"] if run["kind"] == "painter"]
    return {(run["trunk"], f"{run['style']}{run.get('larger', '')}"): run for run in found}


def total(parts):
    return sum(parts.values())


@results.reads
def ratios(run, by="adam"):
    """Return by picture the network's total loss over that of a picture trained by `by`, where there is one."""
    pictures = {name: each for name, each in run["pictures"].items() if by in each}
    return {name: total(each["network"]) / total(each[by]) for name, each in pictures.items()}


@results.reads
def equals(run):
    """Return by picture how many steps Adam had done when its loss, of that training, fell below the network's.

    Between two steps that are kept, the logarithms of both lie on a straight line; the number of all steps where the
    loss never fell so far.
    """
    found = {}
    for name, each in run["pictures"].items():
        if "adam_curve" in each:
            steps = sorted(each["adam_curve"], key=int)
            losses = np.minimum.accumulate([each["adam_curve"][step] for step in steps])
            at = np.interp(-np.log(total(each["network"])), -np.log(losses), np.log(np.array(steps, float)))
            found[name] = float(np.exp(at))
    return found


@results.reads
def fastest(record, who, precision, size=512, threads=1):
    """Return the fewest median microseconds a picture of whoever's runs, and the run; None where there is none."""
    wanted = {"kind": "time", "who": who, "precision": precision, "size": size, "threads": threads}
    runs = ({"threads": 1} | run for run in record["runs"])  # earlier records had one thread, and did not say so
    found = [run for run in runs if wanted.items() <= run.items() and run["samples_us"]]
    return min(((float(np.median(run["samples_us"])), run) for run in found), key=lambda each: each[0], default=None)


@results.reads
def table(record):
    """Return the record as text."""
    lines = []
    for run in record["runs"]:
        if run["kind"] == "own":
            lines.append(f"own trunk: {run['accuracy']:.0%} of pieces told, of {run['photographs']} photographs")
        elif run["kind"] == "look":
            lines.append(
                f"{run['trunk']:7} {run['style']:8} style x {run['style_weight']:<5g} {total(run['parts']):8.3f}"
            )
        elif run["kind"] == "painter":
            found = list(ratios(run).values())
            said = f"{np.mean(found):.2f} times the loss of {len(found)} trained pictures" if found else "none compared"
            lines.append(f"{run['trunk']:7} {run['style']:8} {run['steps']:6,} steps: {said}")
        else:
            how = " ".join(str(run[key]) for key in ("mode", "form", "layout") if key in run)
            how += counted(run["threads"], "thread") if "threads" in run else ""
            us = np.median(run["samples_us"])
            lines.append(f"{run['who']:20} {run['precision']:8} {run['size']} pixels {us:10,.0f} us {how}")
    return "\n".join(lines)
