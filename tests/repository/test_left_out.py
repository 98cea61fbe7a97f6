"""Tests that this machine can't run are left out, and the last lines say how many, and why: a line for each reason."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
WITHOUT_A_GPU = """
from mlpkit.kernels import gpu
gpu.why_not = lambda: "there is no GPU"
"""
TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(3))
def test_on_a_gpu(n):
    raise AssertionError

no_gpu = pytest.mark.skip(reason="engine cuda can't run on this machine: there is no GPU")

@pytest.mark.parametrize("name", ["numpy", pytest.param("cuda", marks=no_gpu)])
def test_an_engine(name):
    assert name == "numpy"

@pytest.mark.skipif(True, reason="no browser here")
def test_in_a_browser():
    raise AssertionError

def test_that_finds_out_later():
    pytest.skip("no browser here")

@pytest.mark.skipif(False, reason="this is not so")
def test_here():
    pass
"""


def run(folder, *options):
    """Return what pytest exits with, its last line, and what it says did not run."""
    (folder / "conftest.py").write_text(WITHOUT_A_GPU + CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:nbval",
        "--disable-warnings",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()[-1], re.findall(r"^\d.* did not run here: .*", done.stdout, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two"])
def test_each_reason_is_a_line(processes, tmp_path):
    code, last, said = run(tmp_path, *processes)
    assert code == 0
    assert "2 passed, 1 skipped" in last
    assert said == ["4 tests did not run here: there is no GPU", "2 tests did not run here: no browser here"]


def test_whoever_asks_for_a_gpu_is_told_that_there_is_none(tmp_path):
    code, _, said = run(tmp_path, "-m", "gpu")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert said == ["3 tests did not run here: there is no GPU"]
