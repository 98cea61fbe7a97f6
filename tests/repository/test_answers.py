"""Answers to exercises are code that can be run: behind the chapter that asks, with the names that it has given."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlpkit.kernels import gpu

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9a][0-9]_*.ipynb"))
PART_TWO_ON_GPU = [path for path in CHAPTERS if path.name[:2] in ("16", "17", "18", "19", "20")]
ANSWER, BLOCK = re.compile(r"<details>.*?</details>", re.DOTALL), re.compile(r"```python\n(.*?)```", re.DOTALL)
# Runs a chapter's cells, and then its answers, of which it says which ones fail.
RUNS = """
import json, sys
names = {"__name__": "__main__"}
cells, answers = json.load(sys.stdin)
for name, text in cells:
    exec(compile(text, name, "exec"), names)
for name, text in answers:
    try:
        exec(compile(text, name, "exec"), names)
    except Exception as error:
        sys.exit(f"{name}: {type(error).__name__}: {error}")
"""


def cells(path, kind):
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(cell["id"], "".join(cell["source"])) for cell in found if cell["cell_type"] == kind]


def answers(path, without=None):
    """Return the pieces of Python in a chapter's answers: pairs (exercise, text). without: exercises that say so."""
    asked = [(name, text) for name, text in cells(path, "markdown") if not without or without not in text]
    texts = [(name, answer) for name, text in asked for answer in ANSWER.findall(text)]
    return [(name, block) for name, text in texts for block in BLOCK.findall(text)]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem[:2])
def test_an_answer_is_python(path):
    for name, text in answers(path):
        try:
            ast.parse(text)
        except SyntaxError as error:
            pytest.fail(f"{path.name}, {name}, line {error.lineno}: {error.msg}")


@pytest.mark.slow
@pytest.mark.parametrize("path", PART_TWO_ON_GPU, ids=lambda path: path.stem[:2])
def test_an_answer_runs_behind_its_chapter(path):
    given = json.dumps([cells(path, "code"), answers(path, without="with a GPU)" if gpu.why_not() else None)])
    env = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUNS], input=given, text=True, cwd=path.parent, env=env,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
