"""The end of a network, from the first linear layer to the loss and back, in three kernels: see `dense.cu`.

Where the first layer is wide, on Hopper, two of them are those of `dense_wgmma.cu`.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu, overlap

FILE, WIDE_FILE = "dense", "dense_wgmma"
TILE, DEPTH, THREADS, STAGES = 64, 32, 256, 3  # as in dense.cu
MOST_LAYERS, WIDEST = 6, 1024  # units
MOST_LATER = 1 << 16  # weights behind the first layer, which each block reads
MOST_RESIDENT = 16 << 10  # of them in shared memory
SHARED = STAGES * 2 * TILE * (DEPTH + 4) * 4  # bytes, of pairs of tiles
BLOCKS = 132  # of which the first layer's slices make about so many
NARROW, NARROW_INPUTS = 16, 32  # units of a layer whose weights' gradient is no tile, and inputs of a block of it
WIDE_SLICE, WIDE_UNITS, WIDE_INPUTS, WIDE_THREADS = 128, 64, 32, 512  # as in dense_wgmma.cu
LEAST_WIDE = 1024  # inputs, from which on its blocks are enough for all multiprocessors


@dataclass(frozen=True)
class Sizes:
    """Of the layers: inputs of the first one, then the units of each. n: examples. wgmma: whether the GPU is Hopper."""

    n: int
    sizes: tuple[int, ...]
    wgmma: bool = False

    @property
    def count(self):
        return len(self.sizes) - 1

    @property
    def wide(self):
        """Whether the kernels of `dense_wgmma.cu` take the first layer."""
        inputs, units = self.sizes[:2]
        fits = self.n in (64, 128) and units in (64, 128, 256) and inputs % WIDE_INPUTS == 0
        return self.wgmma and fits and inputs >= LEAST_WIDE

    @property
    def slice(self):
        """How many inputs of the first layer a block adds up: a multiple of DEPTH.

        Where one DEPTH each is work for a quarter of the blocks, they take two: the second one comes while the first is
        multiplied, and half of the sums are left.
        """
        if self.wide:
            return WIDE_SLICE
        tiles, depths = _tiles(self.n) * _tiles(self.sizes[1]), -(-self.sizes[0] // DEPTH)
        return max(-(-depths // max(1, BLOCKS // tiles)), 2 if depths * tiles <= BLOCKS // 4 else 1) * DEPTH

    @property
    def slices(self):
        return -(-self.sizes[0] // self.slice)

    def kernel(self, name, precision, overlaps=False):
        """Return one of the three kernels: those of a file are compiled together, once."""
        three = precision == "float32"
        macros = {"SLICES": self.slices, "TOP": self.top} if name == "examples" else {}
        macros |= {"OVERLAPS": 1} if overlaps else {}
        mode = {"MODE": 3 if three else 2} if self.wide else {}
        if self.wide and name != "examples":
            return _kernel(name, file=WIDE_FILE, ROWS=self.n, GROUPS=self.sizes[1] // 8, **mode)
        return _kernel(name, PRODUCTS=3 if three else 1, WGMMA=int(self.wide), **macros, **mode)

    def blocks(self, wants_dx):
        """Return how many blocks the gradients take, the loss's among them."""
        layers = list(pairwise(self.sizes))
        found = 1 + sum(-(-units // THREADS) for units in self.sizes[1:])
        for inputs, units in layers[self.wide :]:
            found += -(-inputs // NARROW_INPUTS) if units <= NARROW else _tiles(inputs) * _tiles(units)
        if self.wide:
            return found + self.sizes[0] // WIDE_INPUTS
        return found + (_tiles(self.n) * _tiles(self.sizes[0]) if wants_dx else 0)

    def wide_shared(self, precision):
        """Return the bytes of shared memory of the wide kernels' blocks: forward, and back."""
        parts, groups, plane = 2 if precision == "float32" else 1, self.sizes[1] // 8, self.n + 1
        forward = WIDE_SLICE // 8 * plane + WIDE_UNITS // 8 * (WIDE_SLICE + 1)
        back = groups * plane + groups * (WIDE_INPUTS + 1) + WIDE_INPUTS // 8 * plane
        scales = 4 * (self.n + 4 * WIDE_INPUTS)
        return 16 * parts * forward + scales, max(SHARED, 16 * parts * back + scales)

    @property
    def shared(self):
        """The bytes of shared memory of a block that has an example."""
        widest = max(self.sizes[1:])
        return 4 * ((2 * self.count + 1) * widest + max(THREADS, widest) + self.resident)

    @property
    def top(self):
        """The units of the last layer, if such a block holds its weights in registers, else 0."""
        inputs, units = self.sizes[-2:]
        return units if self.count > 1 and units <= NARROW and inputs <= THREADS else 0

    @property
    def resident(self):
        """How many weights such a block holds in shared memory: those between the first layer and the top, or none."""
        later = sum(inputs * units for inputs, units in pairwise(self.sizes[1 : -1 if self.top else None]))
        return later if later <= MOST_RESIDENT else 0


def why_not(sizes):
    """Return why these kernels are not for layers of such sizes (inputs, units, ...), a sentence, or None."""
    if len(sizes) - 1 > MOST_LAYERS or max(sizes[1:]) > WIDEST:
        return f"these kernels have at most {MOST_LAYERS} layers of at most {WIDEST} units."
    if sum(inputs * units for inputs, units in pairwise(sizes[1:])) > MOST_LATER:
        return f"each block reads all weights behind the first layer, and there are more than {MOST_LATER}."
    return None


@dataclass
class Step:
    """What one step keeps from kernel to kernel: the kernels' `Network`, and the arrays that it points to.

    parts: of a wide first layer's gradient, fp16 (parts, units / 8, n, 8) as uint16, and the examples' scales (n,).
    """

    network: np.ndarray
    sizes: Sizes
    arrays: list
    parts: tuple = ()


def forward(sizes, layers, x, precision, overlaps=False, early=False):
    """Return the first layer's sums, in slices, and the `Step`. x (n, inputs): float32, contiguous.

    layers: of each a tuple (W, b, dW, db). precision: "float32", or "tf32". overlaps: whether it begins before the
    kernel before it has ended, and the one behind it may; see `kernels.overlap`. early: whether the weights were there
    before the kernel before it began.
    """
    import cupy as cp

    ys = [cp.empty((sizes.n, units), np.float32) for units in sizes.sizes[1:-1]]
    dzs = [cp.empty((sizes.n, units), np.float32) for units in sizes.sizes[1:]]
    network = np.zeros(1, NETWORK)
    network["count"], network["n"] = sizes.count, sizes.n
    for i, (W, b, dW, db) in enumerate(layers):
        pointers = ([x, *ys][i], W, b, ys[i] if i < len(ys) else None, dzs[i], dW, db)
        network["layers"][0, i]["pointers"] = [0 if each is None else each.data.ptr for each in pointers]
        network["layers"][0, i]["sizes"] = W.shape
    parts = cp.empty((sizes.slices, sizes.n, sizes.sizes[1]), np.float32)
    blocks = sizes.slices * (1 if sizes.wide else _tiles(sizes.n)) * _tiles(sizes.sizes[1])
    threads, shared = (WIDE_THREADS, sizes.wide_shared(precision)[0]) if sizes.wide else (THREADS, SHARED)
    arguments = network.view(f"V{NETWORK.itemsize}"), parts, np.int32(early if sizes.wide else sizes.slice)
    sizes.kernel("forward_parts", precision, overlaps)((blocks,), (threads,), arguments, shared_mem=shared)
    return parts, Step(network, sizes, [x, *ys, *dzs])


def examples(step, parts, labels, precision, largest=None):
    """Return the examples' losses (n,), and write what the gradients are made of. labels (n,): int64.

    largest: what `gradients` takes, which becomes 0, or None.
    """
    import cupy as cp

    sizes = step.sizes
    row_losses, widest = cp.empty(sizes.n, np.float32), np.int32(max(sizes.sizes[1:]))
    network = step.network.view(f"V{NETWORK.itemsize}")
    about = labels, row_losses, widest, np.int32(sizes.resident)
    if sizes.wide:
        shape = 2 if precision == "float32" else 1, sizes.sizes[1] // 8, sizes.n, 8
        step.parts = cp.empty(shape, np.uint16), cp.empty(sizes.n, np.float32)
    arguments = network, parts, *about, np.uintp(0) if largest is None else largest, *step.parts
    sizes.kernel("examples", precision)((sizes.n,), (THREADS,), arguments, shared_mem=sizes.shared)
    return row_losses


def gradients(step, row_losses, losses, counter, wants_dx, precision, largest=None):
    """Write the gradients of the layers, and the mean loss into losses[counter]. Return dx, None where nobody asks.

    counter: an int32 on the GPU, which then goes on by one; without it the loss is losses[0]. largest: None, or an
    array of one uint32, for the bits of the largest magnitude in dx.
    """
    import cupy as cp

    sizes = step.sizes
    dx = cp.empty((sizes.n, sizes.sizes[0]), np.float32) if wants_dx else None
    step.network["dx"] = 0 if dx is None else dx.data.ptr
    network = step.network.view(f"V{NETWORK.itemsize}")
    pointers = (np.uintp(0) if each is None else each for each in (counter, largest))
    arguments = network, row_losses, losses, *pointers, *step.parts
    threads, shared = (WIDE_THREADS, sizes.wide_shared(precision)[1]) if sizes.wide else (THREADS, SHARED)
    sizes.kernel("gradients", precision)((sizes.blocks(wants_dx),), (threads,), arguments, shared_mem=shared)
    return dx


LAYER = np.dtype([("pointers", np.uint64, 7), ("sizes", np.int32, 2)])
NETWORK = np.dtype([("layers", LAYER, MOST_LAYERS), ("dx", np.uint64), ("count", np.int32), ("n", np.int32)])


def _tiles(length):
    return -(-length // TILE)


@cache
def _kernel(name, file=FILE, **macros):
    found = gpu.with_shared_memory(kernels.load(file, **macros).get_function(name), 200 << 10)
    return overlap.Overlapping(found) if "OVERLAPS" in macros else overlap.InTurn(found)
