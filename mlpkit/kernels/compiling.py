"""Kernels are compiled side by side, each by itself in a thread of its own: NVRTC works outside of Python.

Who asks for a kernel has it at once, and only its first launch waits until it is compiled. So that a step does not wait
for one kernel after another, it is rehearsed: all its kernels are asked for, and none is launched.

CuPy's own kernels, of its arithmetic, are compiled when they are launched, one after another. So what will want them
later is rehearsed `beside` all else, in a thread of its own.
"""

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial

_here = threading.local()  # `asked`: the kernels that this thread's rehearsal would have launched
_works: list = []  # what is rehearsed `beside`, and may not be over


class Module:
    """A file in the making: make(name) returns a `cupy.RawModule` with its kernel of a name, in another thread."""

    def __init__(self, make):
        self.make, self.futures, self.lock = make, {}, threading.Lock()

    def get_function(self, name):
        """Return a kernel, without waiting for it. It is compiled once, whoever asks."""
        with self.lock:
            if name not in self.futures:
                self.futures[name] = _asked(partial(self.make, name))
        return Kernel(self.futures[name], name)


class Kernel:
    """What `cupy.RawKernel` is, but for the time that it takes to compile. Raises RuntimeError where it is wrong.

    max_dynamic_shared_size_bytes, preferred_shared_memory_carveout: as CuPy's, to be set before the first launch.
    """

    max_dynamic_shared_size_bytes: int | None = None
    preferred_shared_memory_carveout: int | None = None

    def __init__(self, future, name):
        self.future, self.name = future, name

    @cached_property
    def compiled(self):
        """CuPy's own, which this waits for."""
        found = self.future.result().get_function(self.name)
        for setting in ("max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout"):
            if (value := getattr(self, setting)) is not None:
                setattr(found, setting, value)
        return found

    def get_global(self, name):
        """Return a pointer to a variable on the GPU, which is this kernel's own."""
        return self.future.result().get_global(name)

    @cached_property
    def function(self):
        return self.compiled.kernel

    @property
    def kernel(self):
        return self

    @property
    def ptr(self):
        return self.function.ptr

    def __call__(self, grid, block, arguments, **options):
        if rehearsing():
            _here.asked.append(self.future)
        else:
            self.function(grid, block, arguments, **options)


@contextmanager
def rehearsal(waits=True):
    """Return a context in which this thread launches none of its kernels; at its end they are compiled.

    Where that takes a while, it shows how far it is. Raises RuntimeError where a kernel does not compile. waits: else
    nothing of all that: whoever launches them waits, if they are not there by then.
    """
    _here.asked = []
    try:
        yield
    finally:
        asked = vars(_here).pop("asked")
    for future in _shown(asked) if waits else ():
        future.result()


def beside(work):
    """Rehearse work() in another thread: of its kernels only CuPy's own are launched. Nobody sees its errors.

    It must not change what others read, nor record a graph: whoever does that has to `settle` first.
    """
    import cupy

    _works.append(_threads().submit(_rehearsed, work, cupy.cuda.Device()))


def settle():
    """Wait for all that is rehearsed `beside`: while a graph is recorded, no thread may ask for memory."""
    while _works:
        _works.pop().result()


def rehearsing():
    """Return whether this thread is in a `rehearsal`."""
    return hasattr(_here, "asked")


def _rehearsed(work, device):
    with device, suppress(Exception), rehearsal(waits=False):  # it will be done in earnest, with its errors
        work()


def _shown(futures):
    from tqdm.auto import tqdm

    of_each = set(futures)
    return tqdm(as_completed(of_each), "compiling kernels", len(of_each), leave=False, delay=0.5, unit="kernel")


def _asked(make):
    import cupy  # here, because a machine with no GPU can still read and check the sources

    return _threads().submit(_made, make, cupy.cuda.Device())


@cache
def _threads():
    return ThreadPoolExecutor(thread_name_prefix="NVRTC")


def _made(make, device):
    with device:
        module = make()
        module.compile()
    return module
