"""cuBLAS through its C interface (cuBLASLt): products that also do what comes before or after them.

CuPy's `matmul` calls cuBLAS too, but offers no epilogues, and refuses to be recorded into a graph. Here a product is
planned once, for arrays of given shapes: see `kernels.cublaslt`. Products are in the type of their arrays, float32 (in
full, not TF32) or float64. Names and numbers are those of cuBLAS's documentation.

The derivative of ReLU at exactly 0 is a convention: 0 in the baseline, 1 in cuBLAS's masks (so found, on an H200). It
matters where a sum is exactly 0: in a row that nothing comes through, with biases of 0.
"""

import ctypes
from typing import Any

import cupy as cp
import numpy as np

from mlpkit.kernels import cublaslt
from mlpkit.kernels.cublaslt import WORKSPACE, Unsupported

# What is done besides the product a b. The vector has a number for each column of b, the mask a bit for each result.
PLAIN = 1
BIAS = 4  # add the vector
RELU_BIAS = 6  # add the vector, take the ReLU
RELU_AUX_BIAS = 134  # add the vector, take the ReLU, and write into the mask what was not below 0
DRELU = 136  # where the mask has 0, the result is 0
BGRADA = 256  # write the sums of b's columns into the vector

# Lent a workspace, cuBLAS takes other kernels, for short sums mostly such as split them: up to four times as long, and
# at batch 16 one that takes 18 times as long (an H100, the record launches). Without a workspace it splits none.
SHORT = 256

_EPILOGUE, _BIAS_POINTER, _AUX_POINTER, _AUX_LD = 7, 8, 11, 12  # of a description


class Product(cublaslt.Product):
    """The product of a (n, k) and b (k, m) into out (n, m): a and b contiguous, or transposes of such arrays.

    out is contiguous, and all are of one type, float32 or float64. vector (m,) and mask (see `mask`) are for the
    epilogues that need them. Raises Unsupported where cuBLAS has no kernel, as not every type has every epilogue, and
    ValueError for matrices that lie otherwise. Call it with arrays of the same shapes.

    workspace: bytes that cuBLAS may use of the one workspace; 0 for a product that may overlap with another. None: as
    much as there is, for sums that are worth splitting. precision: "tf32" for float32 of which 11 bits count.
    """

    def __init__(self, a, b, out, epilogue=PLAIN, vector=None, mask=None, workspace=None, precision=None):
        self.kept = vector, mask
        if workspace is None:
            workspace = WORKSPACE if a.shape[1] > SHORT else 0
        attributes: dict[int, Any] = {_EPILOGUE: ctypes.c_uint32(epilogue)}
        if vector is not None:
            attributes[_BIAS_POINTER] = ctypes.c_void_p(vector.data.ptr)
        if mask is not None:
            attributes[_AUX_POINTER] = ctypes.c_void_p(mask.data.ptr)
            attributes[_AUX_LD] = ctypes.c_int64(8 * mask.shape[1])
        super().__init__(a, b, out, precision, attributes=attributes, workspace=workspace)


def mask(n, features):
    """Return an array for the bits of a result (n, features): rows of whole 128s of bits, as cuBLAS wants them."""
    return cp.empty((n, -(-features // 128) * 16), np.uint8)


_EPILOGUES = ["BGRADA", "BIAS", "DRELU", "PLAIN", "RELU_AUX_BIAS", "RELU_BIAS"]
__all__ = [*_EPILOGUES, "WORKSPACE", "Product", "Unsupported", "mask"]
