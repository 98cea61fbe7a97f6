"""What the driver is told of a matrix, with a driver that only listens; and what the real one refuses."""

from types import SimpleNamespace

import numpy as np
import pytest
from shared import needs_hopper

from mlpkit.kernels import tensor_map
from mlpkit.kernels.driver import cuda


class Driver:
    """A driver that keeps what it was told, and answers with a status."""

    def __init__(self, monkeypatch, status=cuda.CUresult.CUDA_SUCCESS):
        self.status, self.told = status, ()
        functions = {"cuTensorMapEncodeTiled": self.cuTensorMapEncodeTiled}
        monkeypatch.setattr(tensor_map, "cuda", SimpleNamespace(**vars(cuda) | functions))

    def cuTensorMapEncodeTiled(self, *arguments):
        self.told = [[int(one) for one in each] if isinstance(each, list) else each for each in arguments]
        return self.status, cuda.CUtensorMap()


class Matrix(np.ndarray):
    """An array of NumPy's that says where it lies as one of CuPy's does."""

    data = SimpleNamespace(ptr=4096)


MATRIX = np.zeros((5, 16), np.uint16).view(Matrix)


def test_the_driver_is_told_where_the_matrix_lies_and_how_large_it_and_a_box_are(monkeypatch):
    driver = Driver(monkeypatch)
    found = tensor_map.encode(MATRIX, 13, (128, 64))
    kind, dimensions, pointer, sizes, strides, box, steps, *_ = driver.told
    assert (kind, dimensions, pointer) == (tensor_map.BF16, 2, 4096)
    assert (sizes, strides, box, steps) == ([13, 5], [32], [64, 128], [1, 1])  # columns first
    assert (found.size, found.nbytes) == (1, 128)


def test_what_the_driver_refuses_is_said_in_a_sentence(monkeypatch):
    Driver(monkeypatch, cuda.CUresult.CUDA_ERROR_INVALID_VALUE)
    said = r"no tensor map of \(5, 16\), boxes of \(128, 64\): CUDA's driver refused .*CUDA_ERROR_INVALID_VALUE\.$"
    with pytest.raises(RuntimeError, match=said):
        tensor_map.encode(MATRIX, 13, (128, 64))


@needs_hopper
@pytest.mark.gpu
def test_a_row_that_is_no_multiple_of_16_bytes_is_refused():
    import cupy

    with pytest.raises(RuntimeError, match="no tensor map"):
        tensor_map.encode(cupy.zeros((8, 7), np.uint16), 7, (8, 8))
