"""Tensor maps: what Hopper's copy engine has to know of a matrix before it copies boxes of it to shared memory.

The driver writes one, 128 bytes whose meaning NVIDIA keeps to itself ("CUDA Driver API", Tensor Map Object Management).
A kernel takes it as an argument by value. CuPy has no word for that function of the driver, so ctypes calls it.
"""

import ctypes

import numpy as np

BYTES = 128
BF16 = 9  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
NO_INTERLEAVE, SWIZZLE_128B, L2_PROMOTION_128B, ZEROS_OUTSIDE = 0, 3, 2, 0


def encode(matrix, columns, box):
    """Return the tensor map of a bfloat16 matrix on the GPU, an array of one item that a launch passes by value.

    matrix: (rows, at least `columns`) as uint16, stored by rows, each of them a multiple of 16 bytes long; what is
    beyond `columns` counts as outside. box: rows and columns that are copied at a time, 64 columns at most: its rows of
    128 bytes are swizzled. Raises RuntimeError where the driver refuses, OSError where there is none.
    """
    room = np.zeros(BYTES + 64, np.uint8)
    found = room[-room.ctypes.data % 64 :][:BYTES]  # it has to begin at a multiple of 64 bytes
    pair = ctypes.c_uint32 * 2
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(found.ctypes.data),
        *(BF16, 2, ctypes.c_void_p(matrix.data.ptr)),
        (ctypes.c_uint64 * 2)(columns, len(matrix)),
        (ctypes.c_uint64 * 1)(matrix.strides[0]),
        *(pair(*reversed(box)), pair(1, 1)),  # every number of it, not each second one
        *(NO_INTERLEAVE, SWIZZLE_128B, L2_PROMOTION_128B, ZEROS_OUTSIDE),
    )
    if status:
        raise RuntimeError(f"the driver makes no tensor map of {matrix.shape}, boxes of {box}: CUDA error {status}.")
    return found.view(f"V{BYTES}")
