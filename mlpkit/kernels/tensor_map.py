"""Tensor maps: what Hopper's copy engine has to know of a matrix before it copies boxes of it to shared memory.

The driver writes one, 128 bytes whose meaning NVIDIA keeps to itself ("CUDA Driver API", Tensor Map Object Management).
A kernel takes it as an argument by value.
"""

import ctypes

import numpy as np

from . import driver

BYTES = 128
BF16, UINT64 = 9, 4  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, _UINT64
NO_INTERLEAVE, NO_SWIZZLE, SWIZZLE_128B, L2_PROMOTION_128B, ZEROS_OUTSIDE = 0, 0, 3, 2, 0


def encode(matrix, columns, box):
    """Return the tensor map of a bfloat16 matrix on the GPU, an array of one item that a launch passes by value.

    matrix: (rows, at least `columns`) as uint16, stored by rows, each of them a multiple of 16 bytes long; what is
    beyond `columns` counts as outside. box: rows and columns that are copied at a time, 64 columns at most: its rows of
    128 bytes are swizzled. Raises RuntimeError where the driver refuses, OSError where there is none.
    """
    sizes, box = (columns, len(matrix)), tuple(reversed(box))
    status, found = tiled(BF16, matrix.data.ptr, sizes, [matrix.strides[0]], (box, (1, 1)), SWIZZLE_128B)
    if status:
        raise RuntimeError(
            f"the driver makes no tensor map of {matrix.shape}, boxes of {box[::-1]}: CUDA error {status}."
        )
    return found


def tiled(kind, address, sizes, strides, box_and_steps, swizzle):
    """Return the driver's answer, 0 if all is well, and the map. Dimensions: that of neighbouring numbers first."""
    room = np.zeros(BYTES + 64, np.uint8)
    found = room[-room.ctypes.data % 64 :][:BYTES]  # it has to begin at a multiple of 64 bytes
    several = ctypes.c_uint32 * len(sizes)
    status = driver.load().cuTensorMapEncodeTiled(
        ctypes.c_void_p(found.ctypes.data),
        *(kind, len(sizes), ctypes.c_void_p(address)),
        (ctypes.c_uint64 * len(sizes))(*sizes),
        (ctypes.c_uint64 * len(strides))(*strides),
        *(several(*numbers) for numbers in box_and_steps),
        *(NO_INTERLEAVE, swizzle, L2_PROMOTION_128B, ZEROS_OUTSIDE),
    )
    return status, found.view(f"V{BYTES}")
