"""What the persistent kernel's blocks do between two stamps of the GPU's timer, and how long that takes."""

import numpy as np

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
