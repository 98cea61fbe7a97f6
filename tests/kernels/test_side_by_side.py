"""Kernels in the making: who asks goes on, who launches waits, and a rehearsal launches nothing."""

import contextlib
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from mlpkit.kernels.compiling import Module, beside, rehearsal, rehearsing, settle
from mlpkit.kernels.overlap import Overlapping


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=contextlib.nullcontext)))


class Raw:
    """A `cupy.RawModule` and its kernels, which take down what is launched."""

    def __init__(self):
        self.compiled, self.launched, self.kernel, self.ptr = [], [], self, 7

    def compile(self):
        self.compiled.append(threading.current_thread())

    def get_function(self, name):
        return self

    def __call__(self, *given, **options):
        self.launched.append((*given, options))


def test_a_kernel_is_asked_for_at_once_and_waited_for_at_its_launch():
    raw, may_go_on = Raw(), threading.Event()
    kernel = Module(lambda name: may_go_on.wait(20) and raw).get_function("any")
    kernel.max_dynamic_shared_size_bytes = 99
    assert not hasattr(raw, "max_dynamic_shared_size_bytes")
    may_go_on.set()
    kernel((1,), (32,), (), shared_mem=5)
    assert raw.launched == [((1,), (32,), (), {"shared_mem": 5})]
    assert raw.max_dynamic_shared_size_bytes == 99
    assert not hasattr(raw, "preferred_shared_memory_carveout")
    assert threading.main_thread() not in raw.compiled


def test_two_kernels_of_a_file_are_compiled_side_by_side():
    both = threading.Barrier(2, timeout=20)  # one alone would wait in vain
    module = Module(lambda name: both.wait() is not None and Raw())
    kernels = [module.get_function(name) for name in ("multiply", "add")]
    assert [kernel.ptr for kernel in kernels] == [7, 7]


def test_a_kernel_is_compiled_once_whoever_asks():
    made = []
    module = Module(lambda name: made.append(name) or Raw())
    kernels = [module.get_function(name) for name in ("multiply", "add", "multiply")]
    assert [kernel.ptr for kernel in kernels] == [7, 7, 7]
    assert sorted(made) == ["add", "multiply"]


def test_a_rehearsal_compiles_and_launches_nothing():
    raw = Raw()
    with rehearsal():
        assert rehearsing()
        kernel = Module(lambda name: raw).get_function("any")
        kernel((1,), (32,), ())
        kernel.kernel((1,), (32,), ())
        Overlapping(kernel)((1,), (32,), ())
    assert not rehearsing()
    assert raw.compiled
    assert not raw.launched


@pytest.mark.parametrize("launched_as", [lambda kernel: kernel, Overlapping])
def test_a_rehearsal_waits_for_what_was_asked_for_before(launched_as):
    raw = Raw()
    kernel = Module(lambda name: time.sleep(0.1) or raw).get_function("any")
    with rehearsal():
        launched_as(kernel)((1,), (32,), ())
    assert raw.compiled


def test_a_rehearsal_need_not_wait():
    may_go_on, raw = threading.Event(), Raw()
    with rehearsal(waits=False):
        kernel = Module(lambda name: may_go_on.wait(20) and raw).get_function("any")
        kernel((1,), (32,), ())
    assert not raw.compiled
    may_go_on.set()
    kernel((1,), (32,), ())
    assert len(raw.launched) == 1


def test_a_kernel_that_does_not_compile_is_an_error_where_it_is_needed_first():
    def broken(name):
        raise RuntimeError("scale.cu does not compile")

    with pytest.raises(RuntimeError, match=r"scale\.cu does not compile"), rehearsal():
        Module(broken).get_function("any")((1,), (32,), ())
    kernel = Module(broken).get_function("any")
    with pytest.raises(RuntimeError, match=r"scale\.cu does not compile"):
        kernel((1,), (32,), ())


def test_an_error_in_a_rehearsal_ends_it():
    with pytest.raises(KeyError), rehearsal():
        raise KeyError("theta")
    assert not rehearsing()


def test_what_is_rehearsed_beside_is_in_another_thread_and_waited_for():
    may_go_on, seen, raw = threading.Event(), [], Raw()

    def work():
        may_go_on.wait(20)
        Module(lambda name: raw).get_function("any")((1,), (32,), ())
        seen.append((threading.current_thread(), rehearsing()))
        raise MemoryError("somebody else will have that, too")

    beside(work)
    assert not rehearsing()
    assert not seen
    may_go_on.set()
    settle()
    ((thread, was_rehearsing),) = seen
    assert was_rehearsing
    assert thread is not threading.main_thread()
    assert not raw.launched
