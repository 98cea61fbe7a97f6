"""What the record "goal" says: seconds to a goal, measured or estimated."""

import math

from experiments.lab import results


def estimate_s(case):
    """Return how many seconds the steps of a training take, by the median of the few that were timed."""
    return case["steps"] * results.median(case) / 1e6


def is_estimate(case):
    """Say whether the run's seconds are an estimate: there was no time for a training."""
    return not case["seconds"]


def seconds(case):
    """Return the median of the trainings' seconds, or the estimate; NaN for an engine that can't run."""
    if case["why_not"]:
        return math.nan
    return estimate_s(case) if is_estimate(case) else results.median(case, "seconds")


@results.reads
def table(record):
    """Return the record as a table for the terminal: ~ marks an estimate."""
    lines = [f"{'engine':<24}{'goal':>6}{'seconds':>12}{'worst test accuracy':>22}{'runs':>6}"]
    for case in record["runs"]:
        lines.append(f"{case['engine']:<24}{case['goal']:>4} %" + (_not_run(case) or _row(case)))
    return "\n".join(lines)


def _not_run(case):
    return case["why_not"] and f"  not run: {case['why_not']}"


def _row(case):
    mark = "~" if is_estimate(case) else ""
    worst = f"{min(case['test_accuracy']):.2%}" if case["test_accuracy"] else "-"
    return f"{f'{mark}{seconds(case):,.3g}':>12}{worst:>22}{len(case['seconds']):>6}"
