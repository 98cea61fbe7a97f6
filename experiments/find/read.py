"""What a record of detectors says, and what kinds of mistakes there are."""

import numpy as np

from experiments.lab import results
from mlpkit.boxes import iou, precision_and_recall

RIGHT, NEAR, SCORE = 0.5, 0.1, 0.25  # IoU of what counts, of what is near; the least score of a box in use
KINDS = ("right", "another class", "twice", "box off", "background", "missed")


def pooled(found, truth, classes, threshold=RIGHT):
    """Return precision, recall, scores of all classes together: a picture's boxes of a class are a picture."""
    virtual = found._replace(images=found.images * classes + found.labels, labels=0 * found.labels)
    own = np.where(truth[:, None, :, :1] == np.arange(classes)[:, None, None], 0, -1)
    boxes = np.broadcast_to(truth[:, None, :, 1:], (*own.shape[:3], 4))
    of = np.concatenate([own, boxes], axis=3).reshape(-1, truth.shape[1], 5)
    return precision_and_recall(virtual, of, 0, [threshold])[0]


def by_kind(found, truth, score=SCORE):
    """Return how many boxes above a score there are of each of KINDS, a dict, and examples: (picture, box) by kind.

    The best boxes of a picture come first. A box is right where its IoU with an object of its class is at least 0.5,
    and that has no better one, else it is there twice; of another class where it overlaps one of these so; off, where
    it only touches one of its class, by 0.1; else there is background. After Bolya et al. (2020), "TIDE".
    """
    counts: dict = dict.fromkeys(KINDS, 0)
    examples: dict = {kind: [] for kind in KINDS}
    for image, rows in enumerate(truth):
        objects = rows[rows[:, 0] >= 0]
        mine = np.flatnonzero((found.images == image) & (found.scores >= score))
        mine, taken = mine[np.argsort(-found.scores[mine], kind="stable")], np.zeros(len(objects), bool)
        for box, label in zip(found.boxes[mine], found.labels[mine], strict=True):
            kind = _kind(iou([box], objects[:, 1:])[0], objects[:, 0] == label, taken)
            counts[kind] += 1
            examples[kind].append((image, (label, *box)))
        counts["missed"] += int((~taken).sum())
        examples["missed"] += [(image, tuple(each)) for each in objects[~taken]]
    return counts, examples


def _kind(overlaps, same, taken):
    free = np.where(same & ~taken, overlaps, 0)
    if free.size and free.max() >= RIGHT:
        taken[free.argmax()] = True
        return "right"
    reached = [(np.where(same, overlaps, 0), RIGHT, "twice"), (overlaps, RIGHT, "another class")]
    reached += [(np.where(same, overlaps, 0), NEAR, "box off")]
    return next((kind for of, least, kind in reached if of.size and of.max() >= least), "background")


def trained(record, data):
    """Return the runs of trainings on "scenes", or on photographs of "cells"."""
    return [
        run for run in results.runs(record, kind="training") if (run["task"]["data"] == "scenes") == (data == "scenes")
    ]


@results.reads
def table(record):
    """Return the record as a table for the terminal."""
    lines = [f"{'trained on':12}{'seed':>5}{'epochs':>8}{'seconds':>9}{'AP50':>8}{'AP50:95':>9}"]
    for run in results.runs(record, kind="training"):
        data = run["task"]["data"] if run["task"]["data"] == "scenes" else "cells"
        told = f"{data:12}{run['task']['seed']:5}{run['epochs'][0]:8}{run['seconds']['training']:9.0f}"
        lines.append(f"{told}{run['test']['ap50']:8.4f}{run['test']['ap50_95']:9.4f}")
    for run in results.runs(record, kind="speed"):
        ms = {what: 1e3 * float(np.median(samples)) for what, samples in run["seconds"].items()}
        said = ", ".join(f"{what} {each:.2f} ms" for what, each in ms.items())
        lines.append(f"{run['engine']:22} {1e3 * run['batch'] / ms['both']:8,.0f} scenes a second ({said})")
    return "\n".join(lines)
