"""The struct `Ranks` of `ranks.cuh`, as NumPy writes it: the GPUs that add up gradients while their kernels run."""

import numpy as np


def struct(ranks):
    """Return an array of one such struct, all zeros, for so many GPUs: see its fields there."""
    fields = ("boxes", np.uint64, ranks), ("slots", np.int64), ("rank", np.int32), ("before", np.uint32)
    return np.zeros(1, np.dtype([*fields, ("weight", np.float32)], align=True))


def argument(structs):
    """Return such an array as a launch takes it by value."""
    return structs.view(f"V{structs.nbytes}")
