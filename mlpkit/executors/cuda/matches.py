"""Which blocks this GPU can run, and how they multiply: the one table of what each of them needs.

The first row whose needs are met serves: Hopper's own instructions need just that chip, `mma.sync` any since Turing, of
which Turing has no bfloat16 and multiplies fp16 in its place, which has more bits. Whatever no block of a row takes
over is a layer by itself, by the engine's operations, on any GPU.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlpkit.kernels import gpu
from mlpkit.kernels.conv import blocked, portable

from . import conv_blocks, norm_blocks
from .blocks import MODES

MATCHES = norm_blocks.match, conv_blocks.match


@dataclass(frozen=True)
class Served:
    """A row: by what products are made, and what that needs of a GPU.

    least: compute capability, times ten; alone: whether no other one will do. shared: bytes of shared memory that a
    block must be able to have. modes: of `blocked`, by precision class. as_: what else is to be said of them.
    """

    by: str
    least: int
    alone: bool
    shared: int
    modes: Any
    as_: str = ""

    def fits(self, capability, restricted, shared):
        """Return whether a GPU has what this needs. restricted: whether it only stands for one of that capability."""
        exactly = capability == self.least and not restricted
        return (exactly if self.alone else capability >= self.least) and shared >= self.shared


AMPERE = {name: portable.MODES[here] for name, here in (("float32", "fp16x3"), ("tf32", "fp16"), ("bf16", "bf16"))}
TURING = AMPERE | {"bf16": AMPERE["tf32"]}
TABLE = (
    Served("wgmma", 90, True, blocked.SHARED, MODES),
    Served("mma.sync", 80, False, 99 << 10, AMPERE),
    Served("mma.sync", 75, False, 64 << 10, TURING, "fp16 in place of BF16"),
)


def served():
    """Return the row of the table that serves on this GPU, or None."""
    here = gpu.capability(), gpu.is_restricted(), gpu.shared_memory()
    return next((row for row in TABLE if row.fits(*here)), None)


def mode_for(precision):
    """Return the mode of a precision class, one of `blocks.MODES`, on this GPU."""
    row = served()
    return (row.modes if row else MODES)[precision]


def matches_for(dtype):
    """Return the functions `match` for networks of a type, see `blocks`: none where the blocks' kernels can't run."""
    return MATCHES if np.dtype(dtype) == np.float32 and served() else ()
