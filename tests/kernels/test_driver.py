"""CUDA's driver is found by the name that it has on each system."""

import importlib
import sys

import pytest

from mlpkit.kernels import driver


@pytest.fixture
def again(monkeypatch):
    """The module as another system would import it: a function of sys.platform, which returns the file it loads."""

    def imported(platform):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "platform", platform)
            asked = []
            patched.setattr("ctypes.CDLL", lambda name: asked.append(name) or "a library")
            module = importlib.reload(driver)
            assert module.load() == module.load() == "a library"
        return asked

    yield imported
    importlib.reload(driver)


@pytest.mark.parametrize(("platform", "file"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")])
def test_each_system_has_its_name_and_it_is_loaded_once(again, platform, file):
    assert again(platform) == [file]
