"""The modules of blocks that this GPU can run."""

import cupy as cp
import numpy as np

from . import conv_blocks, norm_blocks


def matches_for(dtype):
    """Return the functions `match` for networks of a type, see `blocks`: none where the blocks' kernels can't run.

    They use instructions that Hopper alone has.
    """
    if np.dtype(dtype) != np.float32 or cp.cuda.Device().compute_capability != "90":
        return ()
    return norm_blocks.match, conv_blocks.match
