"""A launch that was made ready once passes what its numbers are now."""

import ctypes
from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from shared import one_sentence


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """The module, with a driver that notes an array's first number and the value of the second argument."""
    emulator._replace_cupy(monkeypatch, tmp_path, 0).cuda.get_current_stream.return_value.ptr = 7
    found = emulator.own("cuda.launch")
    found.seen, found.status = [], 0

    def driver(function, *given):
        *sizes, stream, places, _ = given
        array, number = (ctypes.c_void_p.from_address(place).value for place in places)
        found.seen.append(([size.value for size in sizes], stream.value, array, number))
        return found.status

    found.driver = SimpleNamespace(load=lambda: SimpleNamespace(cuLaunchKernel=driver))
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
    launch.status = 1
    with pytest.raises(RuntimeError) as caught:
        launch.ready(Kernel(), 1, 32, (np.int32(1), np.float64(2)))()
    one_sentence(caught.value, "error 1")
