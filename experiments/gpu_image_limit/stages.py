"""What the blocks of `kernels/cnn/limit.cu` do between two stamps of the GPU's timer, for two convolutions."""

import numpy as np

from ..persistence.stages import stage_ns

# Each stamp, in the order in which a block comes to them, and what its first thread is about to do there
STAGES = {
    0: "ask for the filters, put the image in its place",
    15: "wait for the filters",
    1: "first convolution",
    11: "second convolution",
    2: "wait for the dense weights",
    3: "dense layers and loss",
    4: "back through all dense layers but the first",
    12: "back through the first dense layer",
    5: "back through the second convolution: products",
    13: "back through the second convolution: sums",
    14: "back through the first convolution",
    6: "ask for everybody's rows",
    7: "products over the batch",
    8: "wait for the filters' gradients, send new filters",
    9: "update the dense weights",
    10: "tell it, and begin again",
}
IDLE = {0: "wait for everybody's rows"} | {number: STAGES[number] for number in (7, 8, 9, 10)}  # blocks without images


def of_blocks(stamps, names):
    """Return what a record has of blocks that come to the same stages. names: of these, by the stamps' numbers.

    stamps (blocks, steps, 16) int64, ns. ns: of each stage, the mean over all; they add up to a step. by_block: the
    same of each block. first, when, last: when the first block comes to a stage, the block in the middle, and the last
    one, the mean over the steps; 0 is where the block in the middle begins the step.
    """
    ordered = stamps[:, :, list(names)]
    zero = np.median(ordered[:, :, :1], axis=0)
    since = {"first": ordered.min(axis=0), "when": np.median(ordered, axis=0), "last": ordered.max(axis=0)}
    return {
        "names": list(names.values()),
        "ns": stage_ns(ordered),
        "by_block": [stage_ns(block[None]) for block in ordered],
        **{name: (timestamps - zero).mean(axis=0).round(1).tolist() for name, timestamps in since.items()},
    }
