"""A launch that was made ready once passes what its numbers are now."""

import ctypes
from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from shared import one_sentence

from mlpkit.kernels.driver import cuda


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """The module, with a driver that notes an array's first number and the value of the second argument."""
    emulator._replace_cupy(monkeypatch, tmp_path, 0).cuda.get_current_stream.return_value.ptr = 7
    found = emulator.own("engines.cuda.launch")
    found.seen, found.status = [], cuda.CUresult.CUDA_SUCCESS

    def cuLaunchKernel(function, *given):
        *sizes, stream, address, _ = given
        places = (ctypes.c_void_p * 2).from_address(address)
        array, number = (ctypes.c_void_p.from_address(place).value for place in places)
        found.seen.append((sizes, int(stream), array, number))
        return (found.status,)

    found.cuda = SimpleNamespace(**vars(cuda) | {"cuLaunchKernel": cuLaunchKernel})
    return found


class Kernel:
    ptr = 5

    @property
    def kernel(self):
        return self


def test_numbers_are_read_at_each_launch(launch):
    array, number = np.zeros(3, np.float32).view(emulator.Array), ctypes.c_void_p(11)
    call = launch.ready(Kernel(), 4, 32, (array, number))
    call()
    number.value = 12
    call()
    assert launch.seen == [([4, 1, 1, 32, 1, 1, 0], 7, array.data.ptr, value) for value in (11, 12)]


def test_a_launch_that_the_driver_refuses_is_said(launch):
    launch.status = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError) as caught:
        launch.ready(Kernel(), 1, 32, (np.int32(1), np.float64(2)))()
    one_sentence(caught.value, "CUDA_ERROR_INVALID_VALUE")
