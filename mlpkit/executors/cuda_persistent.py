"""one persistent CUDA kernel: its blocks stay for an epoch, keep what they own, and hand each other numbers.

See `kernels/mlp/persistent.cu` for how. The kernel is built for networks like the workbook's: float32, three hidden
layers of at most 128 units, at most 16 classes, batches of at most 256. Smaller layers are padded: see `cuda/padded`.
All blocks are on the GPU at once, each on a multiprocessor of its own, and nothing else may hold these meanwhile. It is
made for 128 of them (96 for batches of at most 32). Where there are fewer, or with less shared memory, a block takes
more examples, holds fewer images at a time, or takes the parts of several blocks in turn: see `Configuration`. The
launch is cooperative: CUDA refuses one where blocks don't fit; and a block that waits in vain says so, for the host to
raise.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from mlpkit.kernels import gpu

from .cuda.padded import Padded, as_bytes, check_dtype, macros_for, padded_sizes, why_not_padded
from .cuda.waiting import WaitingTrainer
from .cupy_fused import Evaluation as Evaluation
from .cupy_fused import Prediction as Prediction

NAME = "cuda_persistent"
BATCHES, COLUMN_BLOCKS = (32, 64, 128, 256), 64  # as in persistent.cu
ROW_BLOCKS = (64, 32, 16, 8)  # at most; the best first
RESIDENT = ((1, 2), (1, 1), (2, 2), (2, 1))  # column blocks that share a batch's images, and how many such batches fit
ROUNDS = (1, 2, 4, 8)  # parts that a block takes in turn
REST = 8_944  # bytes of a column block's shared memory beside images, digits and sums: at most
AWAITED = (  # as in patience.cuh
    "images", "a1", "a2", "a3", "dz1", "dz2", "dz3", "dz4", "W2", "W3", "W4", "dW1", "the other GPUs",
)  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """How batches are held of at most `rows` examples: see the macros of `persistent.cu`.

    row_blocks: each takes rows / row_blocks examples from a1 to the loss. shared_by: column blocks that share the
    images of a batch. buffers: batches that these have room for, one, or another that comes early. column_rounds and
    row_rounds: parts of such a block that one takes in turn, where there are fewer multiprocessors than parts.
    """

    rows: int
    row_blocks: int
    shared_by: int
    buffers: int
    column_rounds: int = 1
    row_rounds: int = 1

    def macros(self):
        """Return the kernel's macros for it, beside the number of rows: none for what it does of its own accord."""
        usual = {"MOST_ROW_BLOCKS": min(64, self.rows), "SHARED_BY": 1 if self.rows <= 128 else 2, "BUFFERS": 2}
        own = {"MOST_ROW_BLOCKS": self.row_blocks, "SHARED_BY": self.shared_by, "BUFFERS": self.buffers}
        own |= {"COLUMN_ROUNDS": self.column_rounds, "ROW_ROUNDS": self.row_rounds}
        return {name: value for name, value in own.items() if value != usual.get(name, 1)}

    def needs(self, inputs):
        """Return the multiprocessors that it takes, and the bytes of shared memory that a column block needs on each.

        inputs: bytes of an image. (No row block needs more than 99 KiB, which every GPU has that the engine is for.)
        """
        images = self.rows // self.shared_by
        splits = 8 * self.shared_by * inputs + 8 * self.rows  # of W1's columns, and of dz1
        sums = 1024 * self.shared_by * (8 - images // 32)  # from warp to warp: eight have 32 rows each, or share them
        biases = 24 * self.shared_by * (self.column_rounds - 1)
        needed = self.buffers * images * inputs + splits + sums + biases + REST
        blocks = COLUMN_BLOCKS // self.column_rounds + self.row_blocks // self.row_rounds
        return blocks, -(-needed // 128) * 128


def configurations(rows):
    """Return the configurations for batches of so many rows, the best one first."""
    row_blocks = [blocks for blocks in ROW_BLOCKS if rows // 4 <= blocks <= rows]
    resident = [(shared_by, buffers) for shared_by, buffers in RESIDENT if 32 <= rows // shared_by <= 128]
    rounds = sorted(product(ROUNDS, ROUNDS), key=sum)  # as long as a step takes, more or less
    found = [
        Configuration(rows, blocks, *images, *each) for each, images, blocks in product(rounds, resident, row_blocks)
    ]
    return [each for each in found if each.row_blocks // each.row_rounds >= ROW_BLOCKS[-1] // 2]


def configuration(rows, inputs):
    """Return the best `Configuration` that this GPU has room for, or None. inputs: bytes of an image on the GPU."""
    found, shared_bytes = _there()
    for each in configurations(rows):
        blocks, least = each.needs(inputs)
        if blocks <= found and least <= shared_bytes:
            return each
    return None


def why_not(model, optimizer, batch_size):
    """Return None, or what the kernel is not made for, or what it needs of a GPU, in one sentence."""
    return why_not_padded(model, optimizer, batch_size, BATCHES[-1], NAME, sends=True) or _too_small(model, batch_size)


def _there():
    """Return this GPU's multiprocessors, and the bytes of shared memory that a block may have."""
    return gpu.multiprocessors(), gpu.shared_memory()


def _too_small(model, batch_size):
    inputs, (found, shared_bytes) = padded_sizes(model.sizes())[0], _there()
    most = max((rows for rows in BATCHES if configuration(rows, inputs)), default=0)
    if batch_size <= most:
        return None
    if most:
        return (
            f"{NAME} takes batches of at most {most}, not {batch_size}, on this GPU's {found} multiprocessors with "
            f"{shared_bytes >> 10} KiB of shared memory each: take smaller ones, or the engine cuda_graph."
        )
    blocks, least = map(min, zip(*(each.needs(inputs) for each in configurations(BATCHES[0])), strict=True))
    return (
        f"{NAME} needs at least {blocks} multiprocessors with {-(-least >> 10)} KiB of shared memory each, "
        f"and this GPU has {found} with {shared_bytes >> 10} KiB: take the engine cuda_graph."
    )


class Trainer(WaitingTrainer):
    """Trains a network with one launch an epoch.

    X: uint8 pixels, or float32 that are pixels / 255. macros: of the kernel, beside its own. Raises ValueError for
    images or a dtype that the kernel is not made for.
    """

    engine, file, awaited = NAME, "persistent", AWAITED

    def __init__(self, network, optimizer, X, y, batch_size, **macros):
        check_dtype(network, NAME)
        usual = macros_for(BATCHES, network, optimizer, batch_size)
        usual |= configuration(usual["BATCH"], usual["INPUTS"]).macros()
        self.vectors = [Padded(vector, network) for vector in (network.theta, *optimizer.state.values())]
        pixels, arrays = as_bytes(X, usual["INPUTS"], NAME), [vector.array for vector in self.vectors]
        super().__init__(usual | macros, optimizer, pixels, y, batch_size, arrays)

    def launch(self, first, *sizes):
        for vector in self.vectors:
            vector.put()
        super().launch(first, *sizes, np.int32(self.batch_size))
        for vector in self.vectors:
            vector.take()
