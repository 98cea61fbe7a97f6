"""What `on_host` does, of outputs that lie on a GPU: only what is asked for comes to the host."""

import cupy as cp
import numpy as np

from mlpkit.checks import check_finite

# many: how many positions there are, and how many numbers that are not finite
_above = cp.ElementwiseKernel(
    "raw T outputs, int64 width, int64 start, int64 logits, int64 length, T least",
    "raw int64 found, raw int32 many",
    """
    const long long inside = i % length, at = i / length * width + start + inside;
    const T value = outputs[at];
    if (!isfinite(value)) atomicAdd(&many[1], 1);
    else if (inside < logits && value > least) found[atomicAdd(&many[0], 1)] = at;
    """,
    "above",
)


def above(outputs, grids, classes, least):
    """Return what `on_host.above` returns, NumPy's, and raise what it raises."""
    outputs, many = cp.ascontiguousarray(outputs), cp.zeros(2, np.int32)
    n, width = outputs.shape
    found = cp.empty(n * classes * int(grids[:, 1].sum()), np.int64)
    for start, cells, *_ in grids.tolist():
        length = (classes + 4) * cells
        _above(outputs, width, start, classes * cells, length, least, found, many, size=n * length)
    count, odd = many.get().tolist()
    if odd:
        check_finite("outputs", outputs)
    return np.sort(found[:count].get())  # threads come as they come


def values(outputs, positions):
    """Return what stands at positions in outputs, in the shape of positions: NumPy's."""
    return outputs.reshape(-1).take(cp.asarray(positions)).get()
