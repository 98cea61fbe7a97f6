"""What holds for all tests: which run on this machine, in which order, and in which process.

What this machine can't run is left out before anything runs: tests marked `gpu` where there is no NVIDIA GPU, and those
whose own mark says so, such as an engine's that is missing, or the browser's. The last lines say how many, and why.
"""

import gc
import hashlib
import pickle
import re
import signal
from collections import Counter
from functools import lru_cache, wraps
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import settings

from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.data import originals
from mlpkit.engines import EngineUnavailable
from mlpkit.files import write_atomically
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
            "test_gradients", "test_convolve", "test_products", "test_network", "test_team",
            "test_first_edition", "test_executors", "test_numba_steps"}  # fmt: skip
# What takes long in one piece, the longest first: at the end, the other processes would wait for it.
LONG = ("test_clean_checkout", "test_site", "test_browser", "test_conv_implicit", "test_emulated", "test_persistent",
        "test_kernels", "test_limit", "test_killed_studies", "15_train_networks_that_see", "21_ship_it",
        "14_make_it_fast_on_a_cpu", "22_serve_it", "02_train_it_well", "03_find_the_floor", "12_compare_everything",
        "13_convolve", "10_write_a_matmul", "26_two_gpus", "01_build_the_mlp", "24_paint", "04_rewrite_it_in_loops",
        "05_why_it_failed", "00_start_here", "06_where_numba_wins", "25_find")  # fmt: skip


# Where a GPU stands for a lesser one, what that one would refuse is no failure.
LESS = re.compile(rf"{gpu.SETTING} says|this GPU|this one has")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    try:
        return (yield)
    except (EngineUnavailable, ValueError) as refusal:
        if pyfuncitem.get_closest_marker("gpu") and gpu.is_restricted() and LESS.search(str(refusal)):
            pytest.skip(str(refusal))
        raise


def turn(item):
    """Return what sorts tests by when they should begin: notebooks find what the tests had compiled."""
    name = item.path.stem
    long = LONG.index(name) if name in LONG else len(LONG)
    return item.path.suffix == ".ipynb", name not in COMPILED, long


# Python looks through all objects again and again for some that nobody needs. What collecting the tests makes, close to
# a million, stays: it is not looked through at all. Nor is what a file's tests have left.
def pytest_configure():
    gc.disable()


def pytest_collection_finish():
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
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


# ---- What this machine can't run ----

# Words before a reason that are not it: of an engine, of a module.
WHO = re.compile(r"engine \w+ can't run on this machine: |could not import '[^']*': ")
LEFT_OUT = pytest.StashKey[Counter]()  # reason: tests


def why_left_out(item, no_gpu):
    """Return why a test can't run here, as far as its marks tell, or None."""
    if no_gpu and (item.get_closest_marker("gpu") or item.get_closest_marker("gpus")):
        return no_gpu
    if item.get_closest_marker("gpus") and gpu.count() < 2:
        return "one GPU"
    marks = [*item.iter_markers("skip"), *(mark for mark in item.iter_markers("skipif") if True in mark.args)]
    return marks[0].kwargs["reason"] if marks else None


@pytest.hookimpl(trylast=True)  # of the tests that were asked for: `-m` and `-k` have chosen
def pytest_collection_modifyitems(config, items):
    no_gpu, reasons = gpu.why_not(), {}
    for item in items:
        if reason := why_left_out(item, no_gpu):
            reasons[item] = WHO.sub("", reason)
    config.stash[LEFT_OUT] = Counter(reasons.values())
    if reasons:
        config.hook.pytest_deselected(items=[*reasons])
    items[:] = sorted((item for item in items if item not in reasons), key=turn)
    if "not slow" in config.option.markexpr:
        draw_the_ends([item for item in items if item.path.suffix == ".ipynb"])


# Pictures that nothing compares are drawn, but not laid out and not made files of, which takes three times as long.
DRAWN = """import mlpkit.plots as _plots
from mlpkit.plots import style as _style
def _drawn(figure):
    figure.set_layout_engine("none")
    canvas = _style.FigureCanvasAgg(figure)
    canvas.get_renderer().mathtext_parser = _style.PARSER
    canvas.draw()
    return b""
_plots.picture = _style.picture = lambda *of: _style.Picture(_drawn(of[0]), of[1], _style.picture_width(of[0]))
"""
ALL_DRAWN = "_plots.png = _style.png = _drawn\n"
ENDS = """from mlpkit.plots import png as _png, widgets as _widgets
def _ends(self):
    for name, values in self.controls.items():
        _png(self.draw(**self.start | {name: values[-1]}))
    return "the ends"
_widgets.Explorer.static = _ends
"""


def draw_the_ends(cells):
    """Have figures drawn as far as that can show a fault, where nothing compares what they look like.

    Those under sliders at their start and their ends. Where slow tests run, too, all of their frames are drawn, and all
    figures as a reader sees them; so are all frames of a notebook that has a slider whose frames are compared.
    """
    explorers = [each for each in cells if "Explorer(" in each.cell.source]
    compared = {each.path for each in explorers if "nbval-ignore-output" not in each.cell.metadata.get("tags", ())}
    for each in explorers:
        if each.path not in compared:
            each.cell.source = ENDS + each.cell.source
    for first in {each.path: each for each in reversed(cells)}.values():
        first.cell.source = DRAWN + ALL_DRAWN * (first.path not in compared) + first.cell.source


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Take what a process has left out: each of them has collected the same tests."""
    if found := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = Counter(found)


def pytest_terminal_summary(terminalreporter, config):
    """Say how many tests did not run here, a line for each reason: those left out, and those that found out later."""
    found = Counter(config.stash.get(LEFT_OUT, {}))
    for report in terminalreporter.getreports("skipped"):
        found[WHO.sub("", report.longrepr[2].removeprefix("Skipped: "))] += 1
    for reason, tests in found.most_common():
        terminalreporter.line(f"{tests:,} {'test' if tests == 1 else 'tests'} did not run here: {reason}")


# ---- What takes long to compile is kept, for all processes and for the next run: `make clean` throws it away ----


@pytest.fixture(scope="session")
def compile_cache(request, tmp_path_factory):
    """A folder for what is compiled. Its files have names made from all that they depend on."""
    cache = getattr(request.config, "cache", None)
    return cache.mkdir("compiled") if cache else tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def folder(compile_cache):
    """The folder of the emulator's compiled kernels."""
    import emulator

    found = compile_cache / f"emulated-{emulator.version()}"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="session", autouse=True)
def unpacked_once():
    """Have the same file of images unpacked and summed up once, where that takes a third of a second each time."""
    work = originals.read_original
    kept = lru_cache(maxsize=8)(lambda path, file, *others: work(path, file))

    def read(path, file):
        state = path.stat()
        return kept(path, file, originals.MOST, state.st_ino, state.st_size, state.st_mtime_ns).copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(originals, "read_original", read)
        yield


def once(folder, work, depends_on):
    """Return a function that does the work, unless the folder has what came of it, or what was wrong."""

    def outcome(*given, **macros):
        try:
            return work(*given, **macros), None
        except RuntimeError as refusal:  # the compiler's
            return None, str(refusal)

    @wraps(work)
    def look(name, arch="sm_90", *args, **macros):
        key = repr((work.__name__, kernels.source(name), arch, args, macros, *depends_on()))
        path = folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.outcome"
        if not path.is_file():
            write_atomically(path, pickle.dumps(outcome(name, arch, *args, **macros)))
        found, refusal = pickle.loads(path.read_bytes())
        if refusal:
            raise RuntimeError(refusal)
        return found

    return look


@pytest.fixture(scope="session", autouse=True)
def compiled_once(compile_cache):
    """Have NVRTC and the assembler look at each kernel once."""

    def compiler():
        from cupy.cuda import nvrtc

        return kernels.OPTIONS, nvrtc.getVersion()

    def assembler():
        file = Path(kernels.ptxas()).stat()
        return *compiler(), file.st_size, file.st_mtime

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_compile", once(compile_cache, kernels._compile, compiler))
        patch.setattr(ptxas, "resources", once(compile_cache, ptxas.resources, assembler))
        yield
