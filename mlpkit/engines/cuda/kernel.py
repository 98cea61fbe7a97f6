"""What the GPU engines share: the kernels of `mlpkit.kernels`, for arrays of a type."""

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import overlap

C_TYPES = {
    np.dtype(name): c_name
    for name, c_name in {"f4": "float", "f8": "double", "u1": "unsigned char", "i8": "long long"}.items()
}


def kernel(file, name, dtype, **macros):
    """Return a kernel of the file `<file>.cu`, compiled for arrays of a type."""
    return kernels.load(file, REAL=C_TYPES[np.dtype(dtype)], **macros).get_function(name)


def overlapping(kernel):
    """Return a kernel that begins before the one ahead of it has ended, where the GPU has that: since Hopper."""
    return overlap.Overlapping(kernel) if overlap.is_possible() else kernel
