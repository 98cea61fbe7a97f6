"""What holds for all tests: which run where there is a GPU, in which order, and in which process.

Tests marked `gpu` run where there is an NVIDIA GPU, and say so where there is none.
"""

import gc
import os
import signal
from pathlib import PurePosixPath

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

# Files whose tests call the same loops, compiled by Numba. One process runs them all: two at the same time would find
# no code of each other's on the disk, and compile everything twice.
COMPILED = {"test_engines", "test_convolutions", "test_numba_conv", "test_numba", "test_bench", "test_passes",
            "test_gradients", "test_convolve", "test_products", "test_network", "test_crew",
            "test_first_edition"}  # fmt: skip
# What takes long in one piece, and so comes first: at the end, the other processes would wait for it.
LONG = {"test_clean_checkout", "test_emulated", "test_site", "test_browser", "02_train_it_well", "03_find_the_floor",
        "13_convolve", "14_make_it_fast_on_a_cpu", "17_choose_a_convolution"}  # fmt: skip


# Python looks through all objects again and again for some that nobody needs. What collecting the tests makes, close to
# a million, stays: it is not looked through at all.
def pytest_configure():
    gc.disable()


def pytest_collection_finish():
    gc.enable()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile`, give each process a file at a time, but all of COMPILED to one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "compiled" if PurePosixPath(file).stem in COMPILED else file

    config.option.loadscopereorder = False  # in the order of `pytest_collection_modifyitems`
    return Scheduling(config, log)


def turn(item):
    """Return what sorts tests by when they should begin: notebooks find what the tests had compiled."""
    return item.path.suffix == ".ipynb", item.path.stem not in LONG, item.path.stem not in COMPILED


def pytest_collection_modifyitems(items):
    items.sort(key=turn)
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
