"""How convolutions multiply on this GPU: the one table of what each variant needs.

The first row whose needs are met serves: Hopper's own instructions need just that chip, `mma.sync` any since Turing, of
which Turing has no bfloat16 and multiplies fp16 in its place, which has more bits.
"""

from dataclasses import dataclass
from typing import Any

from mlpkit.kernels import gpu

from . import blocked, portable

# The modes of `blocked` by precision class: float32 as three products of fp16, TF32's bits as one product of fp16
NAMES = {"float32": "fp16x3", "tf32": "fp16", "bf16": "bf16"}
HOPPER = {name: blocked.MODES[mode] for name, mode in NAMES.items()}
AMPERE = {name: portable.MODES[mode] for name, mode in NAMES.items()}
TURING = AMPERE | {"bf16": AMPERE["tf32"]}


@dataclass(frozen=True)
class Variant:
    """A row: by which instruction products are made, what that needs, and the modes by precision class.

    but: what else is to be said of them.
    """

    by: str
    needs: gpu.Needs
    modes: Any
    but: str = ""


TABLE = (
    Variant("wgmma", gpu.Needs(90, alone=True, shared=blocked.SHARED), HOPPER),
    Variant("mma.sync", gpu.Needs(80, shared=99 << 10), AMPERE),
    Variant("mma.sync", gpu.Needs(75, shared=64 << 10), TURING, "BF16 as fp16"),
)


def served():
    """Return the row of the table that serves on this GPU, or None."""
    return next((row for row in TABLE if row.needs.are_met()), None)


def describe():
    """Return in a line what the engines of networks that see do on this GPU."""
    found = served()
    parts = [f"convolutions by {found.by if found else 'cuBLAS'}", *([found.but] if found and found.but else [])]
    if found is not TABLE[0]:
        parts.append("slower than in the records, which are of Hopper's wgmma")
    if gpu.is_restricted():
        parts.append(f"compiled for {gpu.capability() / 10}, as {gpu.SETTING} says")
    return "; ".join(parts)
