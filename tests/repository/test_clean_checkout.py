"""The README's first command, as a newcomer gives it: a fresh clone, then `make run`.

The clone is of the last commit: it has no file that somebody forgot to add, and no change that is
not committed yet. What is measured, and with which engines, is `test_bench`'s to check: one line of the clone is
changed, so that it takes less time. But each engine is imported.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlpkit import engines

ROOT = Path(__file__).parents[2]
# What a `make test` around this one, or a shell, would pass on to the newcomer's `make`.
INHERITED = ("MAKE", "MFLAGS", "PYTEST", "VIRTUAL_ENV", "PYTHON", "MLPKIT", "GPU")

MEASURES = "experiments/engines/measure.py"
USUAL = "USUAL = Plan()"
SHORT = (
    "USUAL = Plan(Timing(steps_a_sample=20, rounds=2, patience=1.0), Recipe(batch_size=32, epochs=1),"
    ' ("numpy_baseline", "python_lists", "numba_serial"))'
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    for tool in ("git", "make"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool} here")
    if run("git", "rev-parse", "--verify", "HEAD", cwd=ROOT).returncode:
        pytest.skip("no commit to clone: not a git repository, or an empty one")
    download = "pip", "download", "--no-deps", "--quiet", "--retries=0", "-c", "constraints.txt", "tqdm"
    asked = run(sys.executable, "-m", *download, "-d", tmp_path_factory.mktemp("pip"), cwd=ROOT)
    if asked.returncode:
        pytest.skip("no package index within reach")
    folder = tmp_path_factory.mktemp("somebody's new") / "check out"
    cloned = run("git", "clone", "--quiet", ROOT, folder)
    assert cloned.returncode == 0, cloned.stderr
    return folder


def run(*command, cwd=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(INHERITED)}
    return subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def shorten(measures):
    """Let few engines take few steps and one epoch: each is gated, timed and trained, or said to be too slow."""
    text = measures.read_text(encoding="utf-8")
    assert text.count(USUAL) == 1
    measures.write_text(text.replace(USUAL, SHORT), encoding="utf-8")


def test_make_run_sets_up_and_prints_the_table(checkout):
    shorten(checkout / MEASURES)
    first = run("make", "run", cwd=checkout)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Successfully installed" in first.stdout
    assert re.search(r"^numpy_baseline .* 9\d\.\d\d%$", first.stdout, re.MULTILINE)
    assert "numba_serial" in first.stdout

    # An engine without a file that it needs only says so.
    said = run(".venv/bin/python", "-m", "mlpkit", "doctor", cwd=checkout).stdout
    ready = re.findall(r"^(\w+) +ready$", said, re.MULTILINE)
    assert {name for name in engines.names() if not engines.on_gpu(name)} <= {*ready}
    assert "cannot import name" not in said
    assert "No module named 'mlpkit" not in said

    # A second time there is only the command itself left to do.
    assert run("make", "--dry-run", "run", cwd=checkout).stdout.count("\n") == 1
    assert run("git", "status", "--porcelain", cwd=checkout).stdout == f" M {MEASURES}\n"
