"""Tensor maps: what Hopper's copy engine has to know of a matrix before it copies boxes of it to shared memory.

The driver writes one, 128 bytes whose meaning NVIDIA keeps to itself ("CUDA Driver API", Tensor Map Object Management).
A kernel takes it as an argument by value.
"""

import ctypes

import numpy as np

from .driver import call, cuda

BYTES = 128
BF16 = cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
UINT64 = cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT64
NO_SWIZZLE = cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE
SWIZZLE_128B = cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B
_REST = (
    cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
)


def encode(matrix, columns, box):
    """Return the tensor map of a bfloat16 matrix on the GPU, an array of one item that a launch passes by value.

    matrix: (rows, at least `columns`) as uint16, stored by rows, each of them a multiple of 16 bytes long; what is
    beyond `columns` counts as outside. box: rows and columns that are copied at a time, 64 columns at most: its rows of
    128 bytes are swizzled. Raises RuntimeError where the driver refuses.
    """
    sizes, (rows, across) = (columns, len(matrix)), box
    what = f"{matrix.shape}, boxes of {box}"
    return tiled(BF16, matrix.data.ptr, sizes, [matrix.strides[0]], ((across, rows), (1, 1)), SWIZZLE_128B, what)


def tiled(kind, address, sizes, strides, box_and_steps, swizzle, what):
    """Return a tensor map. Dimensions: that of neighbouring elements first. what: it is of, for a refusal."""
    of = kind, len(sizes), address, [*map(cuda.cuuint64_t, sizes)], [*map(cuda.cuuint64_t, strides)]
    boxes = ([*map(cuda.cuuint32_t, each)] for each in box_and_steps)
    none = cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
    try:
        (found,) = call(cuda.cuTensorMapEncodeTiled, *of, *boxes, none, swizzle, *_REST)
    except RuntimeError as error:
        raise RuntimeError(f"the driver makes no tensor map of {what}: {error}") from error
    return np.frombuffer(ctypes.string_at(found.getPtr(), BYTES), "V128")
