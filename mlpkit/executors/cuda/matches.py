"""The modules of blocks that this GPU can run."""

import cupy as cp
import numpy as np

from mlpkit import kernels

from . import conv_blocks, norm_blocks

CHIP = kernels.chip("conv_11_blocked")  # the only one, as for all channel-blocked kernels


def matches_for(dtype):
    """Return the functions `match` for networks of a type, see `blocks`: none where the blocks' kernels can't run."""
    if np.dtype(dtype) != np.float32 or f"sm_{cp.cuda.Device().compute_capability}a" != CHIP:
        return ()
    return norm_blocks.match, conv_blocks.match
