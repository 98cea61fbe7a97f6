"""The README says what is so: its headline comes from the records, its links and commands lead somewhere."""

import ast
import re
import runpy
import subprocess
import sys

import pytest

from experiments.lab import results
from mlpkit import data
from mlpkit.data import Split

TEXT = (results.ROOT / "README.md").read_text(encoding="utf-8")


def test_the_headline_is_that_of_the_records():
    tool = runpy.run_path(str(results.ROOT / "tools" / "update_readme.py"))
    assert tool["MARKED"].search(TEXT)[0] == tool["headline"]()


def test_links_lead_to_files():
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    assert targets
    assert [target for target in targets if not (results.ROOT / target).exists()] == []


def test_its_piece_of_python_runs(monkeypatch, capsys):
    """On a few images: a whole epoch takes a minute."""
    whole = data.load()
    few = whole._replace(
        **{name: Split(*(a[:300] for a in getattr(whole, name))) for name in ("train", "validation", "test")}
    )
    monkeypatch.setattr(data, "load", lambda: few)
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    exec(code, {})
    loss, accuracy = ast.literal_eval(capsys.readouterr().out)
    assert 0 < loss < 2.5
    assert 0 <= accuracy <= 1


def test_make_targets_exist():
    named = set(re.findall(r"^    make (\w+)", TEXT, re.MULTILINE))
    makefile = (results.ROOT / "Makefile").read_text()
    assert {"run", "test", "lab"} <= named
    assert named <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))


def test_a_readme_without_its_marks_is_left_as_it_was(tmp_path):
    names = runpy.run_path(str(results.ROOT / "tools" / "update_readme.py"))["main"].__globals__
    readme, written = tmp_path / "README.md", {}
    names |= {"README": readme, "write_atomically": written.__setitem__}
    readme.write_text("no marks")
    with pytest.raises(SystemExit, match="left as it was"):
        names["main"]()
    assert written == {}
    readme.write_text("before\n<!-- headline -->\nold\n<!-- /headline -->\nafter, with an umlaut: ü\n", "utf-8")
    names["main"]()
    text = f"before\n<!-- headline -->\n{names['headline']()}<!-- /headline -->\nafter, with an umlaut: ü\n"
    assert written[readme].decode() == text
    assert written[names["PICTURE"]].startswith(b"\x89PNG")


@pytest.mark.parametrize("content", [None, '{"cells": ['], ids=["missing", "broken"])
def test_what_is_no_notebook_is_refused_before_any_is_run(content, tmp_path):
    if content:
        (tmp_path / "a.ipynb").write_text(content)
    command = [sys.executable, results.ROOT / "tools" / "execute_notebooks.py", tmp_path / "a.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "a.ipynb can't be read as a notebook" in done.stderr
    assert "Traceback" not in done.stderr
