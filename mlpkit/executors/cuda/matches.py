"""Which blocks this GPU can run: see `kernels.conv.variants` for how their convolutions multiply.

Whatever no block takes over is a layer by itself, by the engine's operations, on any GPU.
"""

import numpy as np

from mlpkit.kernels.conv import variants

from . import conv_blocks, norm_blocks

MATCHES = norm_blocks.match, conv_blocks.match


def mode_for(precision):
    """Return the mode of a precision class, one of `blocks.MODES`, on this GPU."""
    found = variants.served()
    return (found.modes if found else variants.HOPPER)[precision]


def matches_for(dtype):
    """Return the functions `match` for networks of a type, see `blocks`: none where the blocks' kernels can't run."""
    return MATCHES if np.dtype(dtype) == np.float32 and variants.served() else ()
