"""What the record says. Neither Optuna nor Dask is needed."""

import numpy as np

from experiments.lab import results, trainings

VALUE = -3  # of a trial's list: its accuracy, then its epochs, and seconds


def studies(record, sampler, epochs=None, pruner="none"):
    """Return the studies by a sampler, in the order of their numbers: the short ones, or those of so many epochs."""
    epochs = epochs or record["settings"]["plan"]["epochs"]
    found = results.runs(record, kind="study", sampler=sampler, pruner=pruner, epochs=epochs)
    return sorted(found, key=lambda run: run["number"])


def best_so_far(record, sampler):
    """Return the best validation accuracy after each trial, (studies, trials)."""
    found = [[trial[VALUE] for trial in run["trials"]] for run in studies(record, sampler)]
    return np.maximum.accumulate(np.array(found), axis=1)


def picked(record, sampler):
    """Return the accuracy with which each study's winner won, (studies,)."""
    return np.array([run["best"] for run in studies(record, sampler)])


def fresh(record, sampler, part=0):
    """Return what each study's winner has from fresh seeds, (studies, seeds). part: 0 for validation, 1 for test."""
    return np.array([run["fresh"] for run in studies(record, sampler)])[..., part]


def speedup(record, warm=False):
    """Return how many times as fast two workers are as one, pair by pair, (pairs,).

    warm: a trial's seconds from when all workers have ended their first, in which each also starts and reads its data.
    """
    seconds = [[run["seconds"] for run in results.runs(record, kind="workers", workers=n)] for n in (1, 2)]
    if warm:
        seconds = [[_steady(run) for run in results.runs(record, kind="workers", workers=n)] for n in (1, 2)]
    one, two = np.array(seconds)
    return one / two


def _steady(run):
    first = max(run["each"][: run["workers"]])
    return (run["seconds"] - first) / (len(run["each"]) - run["workers"])


@results.reads
def table(record):
    """Return the record as text for the terminal."""
    lines = [f"{'sampler':<10}{'studies':>8}{'won with':>18}{'from fresh seeds':>19}{'on test':>18}"]
    samplers = dict.fromkeys(run["sampler"] for run in results.runs(record, kind="study"))
    for name in samplers:
        if len(studies(record, name)):
            means = [fresh(record, name, part).mean(axis=1) for part in (0, 1)]
            shown = [results.mean_and_spread(each) for each in (picked(record, name), *means)]
            lines.append(f"{name:<10}{len(means[0]):>8}{shown[0]:>18}{shown[1]:>19}{shown[2]:>18}")
    if {"tpe", "random"} <= samplers.keys() and len(picked(record, "tpe")) == len(picked(record, "random")) > 1:
        apart = trainings.difference(*(fresh(record, name).mean(axis=1) for name in ("tpe", "random")))
        lines.append(f"TPE less random, from fresh seeds: {apart.mean:.2%} (limit {apart.limit:.2%})")
    if len(results.runs(record, kind="workers")) > 1:
        both = (np.median(speedup(record, warm)) for warm in (False, True))
        lines.append("two workers: {:.2f} times as fast as one, {:.2f} once they have begun".format(*both))
    for run in results.runs(record, kind="file"):
        asked = 1e3 * np.median(run["ask"])
        lines.append(f"{run['sampler']:<10}{run['trials']:>8,} trials in the file: {asked:8.1f} ms to ask")
    for run in results.runs(record, kind="kills"):
        lines.append(
            f"{len(run['killed'])} processes killed: {run['states']}, {run['begun']} begun, {run['twice']} twice"
        )
    for run in results.runs(record, kind="sweep"):
        best = int(np.argmax(run["accuracy"]))
        lines.append(f"fifteen rates in a launch: the best is {run['rates'][best]:.4g}, {run['accuracy'][best]:.2%}")
    return "\n".join(lines)
