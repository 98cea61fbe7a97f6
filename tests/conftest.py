"""Tests marked `gpu` run where there is an NVIDIA GPU, and say so where there is none."""

import os
import signal

import pytest
from hypothesis import settings

from mlpkit.kernels import gpu

# The same examples at every run. To look for new ones: pytest --hypothesis-profile=explore
settings.register_profile("repeatable", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("repeatable")

# What a script starts in the background, `... &`, ignores Ctrl-C, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := gpu.why_not()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of the emulator's compiled kernels: one for all processes that share a run of the tests."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated"
    found.mkdir(exist_ok=True)
    return found
