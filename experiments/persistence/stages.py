"""What the persistent kernel's blocks do between two stamps of the GPU's timer, and how long that takes."""

import numpy as np

from mlpkit import kernels

STAMPS = {"persistent": 12, "cluster": 16, "limit": 16}  # for the stamps of a step, as in each kernel's file

# What a block's first thread is about to do where `persistent.cu` calls stamp(step, 0), stamp(step, 1), ... (The column
# blocks' other warps, which update W2 and W3, have no stamps.)
STAGES = {
    "column": (
        "first layer",
        "ask for the next images, load pixels",
        "wait for dz1",
        "update W1",
        "write W1's digits",
    ),
    "row": (
        "wait for W2",
        "load W4 and the biases",
        "load W2",
        "wait for a1",
        "second layer",
        "third layer",
        "last layer and softmax",
        "back through the third",
        "back through the second; the loss",
        "update W4",
        "wait for W3",
        "load it",
    ),
}


def stage_ns(stamps):
    """Return the nanoseconds from each stamp to the next one, from a step's last to the next step's first.

    stamps (blocks, steps, stages) int64: the GPU's timer, which may go on by 32 ns at a time. So not single stages are
    returned, but means over all blocks and steps, a list; they add up to a step.
    """
    took = np.concatenate([stamps[:, :-1, 1:], stamps[:, 1:, :1]], axis=2) - stamps[:, :-1]
    return took.mean(axis=(0, 1)).round(1).tolist()


def written(file, trainer, blocks, name="stamps", last=None):
    """Return what blocks wrote down in the steps after the first 100 of a trainer's last epoch: see `stamps.cuh`.

    file: of the trainer's kernel, which was made with the macro STAMPED_STEPS. It is a NumPy array of int64 (blocks,
    steps, last); "stamps": the GPU's time in nanoseconds at each stage.
    """
    import cupy as cp

    memory = kernels.load(file, **trainer.macros).get_function("train").get_global(name)
    return cp.ndarray((blocks, trainer.macros["STAMPED_STEPS"], last or STAMPS[file]), np.int64, memory).get()
