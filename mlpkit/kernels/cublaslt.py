"""cuBLASLt, NVIDIA's matrix products, through its C interface: planned once, and free to be recorded into a graph.

CuPy's `matmul` calls cuBLAS too, but refuses to be recorded. Here a product is planned for matrices of given shapes, or
for batches of them: cuBLAS chooses a kernel then, and not again at each call. Names and numbers are those of cuBLAS's
documentation.
"""

import ctypes
import threading
from functools import cache
from typing import Any

import cupy as cp
from cuda.pathfinder import load_nvidia_dynamic_lib

WORKSPACE = 32 << 20  # bytes: what cuBLAS's documentation recommends for Hopper
TURNS = 3  # in which a kernel is timed, where several are tried

_TRANSA, _TRANSB = 3, 4  # of a description
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # of a layout
_MAX_WORKSPACE, _MIN_ALIGNMENTS = 1, (5, 6, 7, 8)  # of a preference
_Complex = ctypes.c_float * 2
_TYPES: dict[str, tuple[int, int, Any]] = {  # cublasComputeType_t, cudaDataType_t, a factor
    "float32": (68, 0, ctypes.c_float),
    "tf32": (77, 0, ctypes.c_float),
    "float64": (70, 1, ctypes.c_double),
    "complex64": (68, 4, _Complex),
}
_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_made_once = threading.Lock()


class Unsupported(ValueError):
    """cuBLAS has no kernel for such a product."""


class Product:
    """The product of a (n, k) and b (k, m) into out (n, m), or of batches of such matrices: arrays of three axes.

    Rows or columns of a and b are contiguous, out's rows are. All are of one type: float32, float64 or complex64;
    precision "tf32": float32 of which 11 bits count. attributes: of cuBLAS's description, as numbers
    of ctypes. workspace: bytes that cuBLAS may use of the one workspace; 0 for a product that may overlap with another.
    candidates: of so many kernels the fastest is taken, by the clock where there are several; then out is written.

    Raises Unsupported where cuBLAS has no kernel, and ValueError for matrices that lie otherwise. Call it with arrays
    that lie as these do.
    """

    def __init__(self, a, b, out, precision=None, attributes=None, workspace=WORKSPACE, candidates=1):
        self.workspace, self.description = workspace, _pointer()
        compute, self.type, number = _TYPES[precision or a.dtype.name]
        _call("cublasLtMatmulDescCreate", ctypes.byref(self.description), _int(compute), _int(self.type))
        # cuBLAS takes matrices column after column, and so sees the transpose of each: out.T = b.T a.T.
        for attribute, value in {
            _TRANSA: _int(is_transposed(b)),
            _TRANSB: _int(is_transposed(a)),
            **(attributes or {}),
        }.items():
            self.set(attribute, value)
        batch = out.shape[0] if out.ndim == 3 else 0
        self.layouts = [self.layout(matrix, batch) for matrix in (b, a, out)]
        self.one, self.zero = number(1), number()
        self.last: tuple[Any, Any] = None, ()  # addresses, arguments: of the last call, most often of the next one too
        self.choice, *others = self.choices((b, a, out, out), candidates)
        if others:
            self.choice = min((self.choice, *others), key=lambda choice: self.us(choice, a, b, out))
            self.last = None, ()

    def set(self, attribute, value):
        """Set an attribute of the description to a number or a pointer of ctypes."""
        size = _size(ctypes.sizeof(value))
        _call("cublasLtMatmulDescSetAttribute", self.description, _int(attribute), ctypes.byref(value), size)

    def layout(self, matrix, batch):
        """Return how a matrix lies in memory, or a batch of them; rows and columns as cuBLAS counts them."""
        (columns, rows), strides = matrix.shape[-2:], matrix.strides[-2:]
        if is_transposed(matrix):
            columns, rows, strides = rows, columns, strides[::-1]
        pitch = max(strides[0] // matrix.itemsize, rows)
        layout, sizes = _pointer(), (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(pitch))
        _call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _int(self.type), *sizes)
        if batch:
            stride = matrix.strides[0] // matrix.itemsize if matrix.ndim == 3 else 0
            for attribute, value in ((_BATCH_COUNT, _int(batch)), (_BATCH_STRIDE, ctypes.c_int64(stride))):
                size = _size(ctypes.sizeof(value))
                _call("cublasLtMatrixLayoutSetAttribute", layout, _int(attribute), ctypes.byref(value), size)
        return layout

    def choices(self, matrices, most):
        """Return the kernels that cuBLAS thinks the fastest, for matrices that lie in memory as these do."""
        preference, found = _pointer(), _int()
        _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        alignments = [ctypes.c_uint32(_alignment(matrix)) for matrix in matrices]
        limit = (_MAX_WORKSPACE, ctypes.c_uint64(self.workspace))
        wishes = dict([limit, *zip(_MIN_ALIGNMENTS, alignments, strict=True)])
        for attribute, value in wishes.items():
            size = _size(ctypes.sizeof(value))
            _call("cublasLtMatmulPreferenceSetAttribute", preference, _int(attribute), ctypes.byref(value), size)
        results, (b, a, out) = (_Choice * most)(), self.layouts
        what = _handle(), self.description, b, a, out, out, preference, _int(most), ctypes.byref(results)
        try:
            _call("cublasLtMatmulAlgoGetHeuristic", *what, ctypes.byref(found))
        finally:
            _call("cublasLtMatmulPreferenceDestroy", preference)
        if not found.value:
            raise Unsupported("cuBLAS has no kernel for this product.")
        return results[: found.value]

    def us(self, choice, a, b, out):
        """Return the microseconds of a kernel that cuBLAS has for this product: it is run some times."""
        self.choice, self.last, times = choice, (None, ()), []
        self(a, b, out)
        for _ in range(TURNS):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record()
            self(a, b, out)
            end.record()
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) * 1e3)
        return min(times)

    def __call__(self, a, b, out):
        addresses = a.data.ptr, b.data.ptr, out.data.ptr
        known, arguments = self.last  # both at once: another thread may change them
        if addresses != known:
            arguments = self.arguments_for(*addresses)
            self.last = addresses, arguments
        status = _matmul()(*arguments, _pointer(cp.cuda.get_current_stream().ptr))
        if status:
            _check(status)

    def ready(self, a, b, out):
        """Return a function that does this product of these arrays, on the stream of now: the host's shortest way."""
        multiply, stream = _matmul(), _pointer(cp.cuda.get_current_stream().ptr)
        arguments = *self.arguments_for(a.data.ptr, b.data.ptr, out.data.ptr), stream

        def run(_kept=(self, a, b, out)):  # C knows addresses only
            if status := multiply(*arguments):
                _check(status)

        return run

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


class _Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", _size),
        ("status", _int),
        ("waves", ctypes.c_float),
        ("reserved", _int * 4),
    )


def is_transposed(matrix):
    """Return whether a matrix, or each of a batch, lies in memory by columns. Raises ValueError if by neither."""
    rows, columns = matrix.strides[-2:]
    if columns == matrix.itemsize or matrix.shape[-1] == 1:
        return False
    if rows == matrix.itemsize or matrix.shape[-2] == 1:
        return True
    raise ValueError("cuBLAS multiplies matrices with contiguous rows or columns only: copy this one first.")


def _alignment(matrix):
    """Return the largest power of two, at most 256, that divides the address in bytes of every row as it is stored."""
    addresses = matrix.data.ptr | 256
    for stride in matrix.strides:
        addresses |= stride if stride != matrix.itemsize else 0
    return addresses & -addresses


@cache
def _library():
    return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)


@cache
def _handle():
    handle = _pointer()
    _call("cublasLtCreate", ctypes.byref(handle))
    return handle


def _workspace():
    # Not from a pool: a graph must find it where it was. One for all: products that use it must not overlap.
    with _made_once:  # `cache` alone lets two threads make one each, of which one is soon gone
        return _memory()


@cache
def _memory():
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
