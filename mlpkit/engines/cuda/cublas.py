"""cuBLAS through its C interface (cuBLASLt): products that also do what comes before or after them.

CuPy's `matmul` calls cuBLAS too, but offers no epilogues, and refuses to be recorded into a graph. Here a product is
planned once, for arrays of given shapes: cuBLAS chooses a kernel then, and not again at each call. Products are in the
type of their arrays, float32 (in full, not TF32) or float64. Names and numbers are those of cuBLAS's documentation.

The derivative of ReLU at exactly 0 is a convention: 0 in the baseline, 1 in cuBLAS's masks (so found, on an H200). It
matters where a sum is exactly 0: in a row that nothing comes through, with biases of 0.
"""

import ctypes
from functools import cache

import cupy as cp
import numpy as np
from cuda.pathfinder import load_nvidia_dynamic_lib

WORKSPACE = 32 << 20  # bytes: what cuBLAS's documentation recommends for Hopper

# What is done besides the product a b. The vector has a number for each column of b, the mask a bit for each result.
PLAIN = 1
RELU_BIAS = 6  # add the vector, take the ReLU
RELU_AUX_BIAS = 134  # add the vector, take the ReLU, and write into the mask what was not below 0
DRELU = 136  # where the mask has 0, the result is 0
BGRADA = 256  # write the sums of b's columns into the vector

_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _AUX_POINTER, _AUX_LD = 3, 4, 7, 8, 11, 12  # of a description
_MAX_WORKSPACE, _MIN_ALIGNMENTS = 1, (5, 6, 7, 8)  # of a preference
_TYPES = {  # cublasComputeType_t, cudaDataType_t, a factor
    np.dtype(np.float32): (68, 0, ctypes.c_float),
    np.dtype(np.float64): (70, 1, ctypes.c_double),
}
_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Unsupported(ValueError):
    """cuBLAS has no kernel for such a product."""


class Product:
    """The product of a (n, k) and b (k, m) into out (n, m): a and b contiguous, or transposes of such arrays.

    out is contiguous, and all are of one type, float32 or float64. vector (m,) and mask (see `mask`) are for the
    epilogues that need them. Raises Unsupported where cuBLAS has no kernel, as not every type has every epilogue, and
    ValueError for matrices that lie otherwise. Call it with arrays of the same shapes.

    workspace: bytes that cuBLAS may use of the one workspace; 0 for a product that may overlap with another.
    """

    def __init__(self, a, b, out, epilogue=PLAIN, vector=None, mask=None, workspace=WORKSPACE):
        (n, k), m = a.shape, b.shape[1]
        self.workspace = workspace
        self.description, self.kept = _pointer(), (vector, mask)
        compute, self.type, number = _TYPES[a.dtype]
        _call("cublasLtMatmulDescCreate", ctypes.byref(self.description), _int(compute), _int(self.type))
        # cuBLAS takes matrices column after column, and so sees the transpose of each: out.T = b.T a.T.
        self.set(_TRANSA, _int(_is_transposed(b)))
        self.set(_TRANSB, _int(_is_transposed(a)))
        self.set(_EPILOGUE, ctypes.c_uint32(epilogue))
        if vector is not None:
            self.set(_BIAS_POINTER, _pointer(vector.data.ptr))
        if mask is not None:
            self.set(_AUX_POINTER, _pointer(mask.data.ptr))
            self.set(_AUX_LD, ctypes.c_int64(8 * mask.shape[1]))
        self.layouts = [
            self.layout(*shape, _is_transposed(x)) for shape, x in (((m, k), b), ((k, n), a), ((m, n), out))
        ]
        self.one, self.zero = number(1), number(0)
        self.choice = self.choose((b, a, out, out))
        self.addresses, self.arguments = None, ()  # of the last call, most often of the next one too

    def set(self, attribute, value):
        """Set an attribute of the description to a number or a pointer of ctypes."""
        size = _size(ctypes.sizeof(value))
        _call("cublasLtMatmulDescSetAttribute", self.description, _int(attribute), ctypes.byref(value), size)

    def layout(self, rows, columns, is_transposed):
        """Return how a matrix lies in memory; rows and columns as cuBLAS counts them."""
        rows, columns = (columns, rows) if is_transposed else (rows, columns)
        layout, sizes = _pointer(), (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        _call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _int(self.type), *sizes)
        return layout

    def choose(self, matrices):
        """Return the kernel that cuBLAS thinks the fastest, for matrices that lie in memory as these do."""
        preference, found = _pointer(), _int()
        _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        alignments = [ctypes.c_uint32(_alignment(matrix)) for matrix in matrices]
        room = (_MAX_WORKSPACE, ctypes.c_uint64(self.workspace))
        wishes = dict([room, *zip(_MIN_ALIGNMENTS, alignments, strict=True)])
        for attribute, value in wishes.items():
            size = _size(ctypes.sizeof(value))
            _call("cublasLtMatmulPreferenceSetAttribute", preference, _int(attribute), ctypes.byref(value), size)
        result, (b, a, out) = _Choice(), self.layouts
        what = _handle(), self.description, b, a, out, out, preference, _int(1), ctypes.byref(result)
        try:
            _call("cublasLtMatmulAlgoGetHeuristic", *what, ctypes.byref(found))
        finally:
            _call("cublasLtMatmulPreferenceDestroy", preference)
        return result

    def __call__(self, a, b, out):
        addresses = a.data.ptr, b.data.ptr, out.data.ptr
        if addresses != self.addresses:
            self.addresses, self.arguments = addresses, self.arguments_for(*addresses)
        status = _matmul()(*self.arguments, _pointer(cp.cuda.get_current_stream().ptr))
        if status:
            _check(status)

    def arguments_for(self, a, b, out):
        """Return cuBLAS's arguments but the stream: to make ctypes of them takes as long as the call."""
        b_layout, a_layout, out_layout = self.layouts
        one, zero, choice = map(ctypes.byref, (self.one, self.zero, self.choice))
        a, b, out, workspace = map(_pointer, (a, b, out, _workspace().ptr))
        matrices = b, b_layout, a, a_layout, zero, out, out_layout, out, out_layout
        return _handle(), self.description, one, *matrices, choice, workspace, _size(self.workspace)

    def __del__(self):
        for layout in getattr(self, "layouts", ()):
            _library().cublasLtMatrixLayoutDestroy(layout)
        _library().cublasLtMatmulDescDestroy(self.description)


def mask(n, features):
    """Return an array for the bits of a result (n, features): rows of whole 128s of bits, as cuBLAS wants them."""
    return cp.empty((n, -(-features // 128) * 16), np.uint8)


class _Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", _size),
        ("status", _int),
        ("waves", ctypes.c_float),
        ("reserved", _int * 4),
    )


def _is_transposed(matrix):
    if not (matrix.flags.c_contiguous or matrix.flags.f_contiguous):
        raise ValueError("cuBLAS multiplies contiguous matrices and their transposes only: copy this one first.")
    return not matrix.flags.c_contiguous


def _alignment(matrix):
    """Return the largest power of two, at most 256, that divides the address in bytes of every row as it is stored."""
    addresses = matrix.data.ptr | max(matrix.strides) | 256
    return addresses & -addresses


@cache
def _library():
    return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)


@cache
def _handle():
    handle = _pointer()
    _call("cublasLtCreate", ctypes.byref(handle))
    return handle


@cache
def _workspace():
    # Not from a pool: a graph must find it where it was. One for all: products that use it must not overlap.
    return cp.cuda.Memory(WORKSPACE)


@cache
def _matmul():
    return _library().cublasLtMatmul


def _call(name, *arguments):
    _check(getattr(_library(), name)(*arguments))


def _check(status):
    if status in (7, 15):  # CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED
        raise Unsupported(f"cuBLAS has no kernel for this product (status {status}).")
    if status:
        raise RuntimeError(f"cuBLAS refused a call: status {status} of its documentation's list (cublasStatus_t).")
