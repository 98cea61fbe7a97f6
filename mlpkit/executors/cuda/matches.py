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
    """A row: by what products are made, what that needs, and the modes of `blocked` by precision class.

    but: what else is to be said of them.
    """

    by: str
    needs: gpu.Needs
    modes: Any
    but: str = ""


AMPERE = {name: portable.MODES[here] for name, here in (("float32", "fp16x3"), ("tf32", "fp16"), ("bf16", "bf16"))}
TURING = AMPERE | {"bf16": AMPERE["tf32"]}
TABLE = (
    Served("wgmma", gpu.Needs(90, alone=True, shared=blocked.SHARED), MODES),
    Served("mma.sync", gpu.Needs(80, shared=99 << 10), AMPERE),
    Served("mma.sync", gpu.Needs(75, shared=64 << 10), TURING, "BF16 as fp16"),
)


def served():
    """Return the row of the table that serves on this GPU, or None."""
    return next((row for row in TABLE if row.needs.are_met()), None)


def mode_for(precision):
    """Return the mode of a precision class, one of `blocks.MODES`, on this GPU."""
    row = served()
    return (row.modes if row else MODES)[precision]


def matches_for(dtype):
    """Return the functions `match` for networks of a type, see `blocks`: none where the blocks' kernels can't run."""
    return MATCHES if np.dtype(dtype) == np.float32 and served() else ()
