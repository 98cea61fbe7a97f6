"""What the driver refuses is an error that says so; a kernel's arguments are as C wants them."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from mlpkit.kernels.driver import Arguments, call, cuda


def test_a_refusal_has_its_name():
    def cuAnything(*given):
        return (cuda.CUresult.CUDA_ERROR_INVALID_VALUE,) if given else (cuda.CUresult.CUDA_SUCCESS, 7)

    assert call(cuAnything) == [7]
    with pytest.raises(RuntimeError, match=r"^CUDA's driver refused cuAnything: CUDA_ERROR_INVALID_VALUE\.$"):
        call(cuAnything, 1)


def test_arguments_lie_where_their_addresses_say():
    struct = np.frombuffer(bytes(range(128)), "V128")
    read = ctypes.c_void_p(11)
    array = SimpleNamespace(data=SimpleNamespace(ptr=1 << 40))
    values = (
        array,
        np.int32(-3),
        np.float64(0.5),
        5,
        read,
        struct,
        struct[0],
    )
    given = Arguments(values)
    places = (ctypes.c_void_p * len(values)).from_address(given.address)
    assert ctypes.c_uint64.from_address(places[0]).value == 1 << 40
    assert ctypes.c_int32.from_address(places[1]).value == -3
    assert ctypes.c_double.from_address(places[2]).value == 0.5
    assert ctypes.c_void_p.from_address(places[3]).value == 5
    read.value = 12  # it is read when the kernel is launched
    assert ctypes.c_void_p.from_address(places[4]).value == 12
    assert ctypes.string_at(places[5], 128) == ctypes.string_at(places[6], 128) == bytes(range(128))
