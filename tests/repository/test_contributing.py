"""CONTRIBUTING.md's examples work: each piece of Python is run, and one that begins with a file's name is that file.
And what CHANGELOG.md tells a reader to import is there.
"""

import re
import sys
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (mlpkit/\S+|experiments)/(\w+)\.py\n")


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Write a file into a folder that its package looks into, too, for as long as the test runs."""
    before = set(sys.modules)

    def add(package, name, text):
        folder = tmp_path / package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        room = import_module(package.replace("/", "."))
        monkeypatch.setattr(room, "__path__", [*room.__path__, str(folder)])
        monkeypatch.delattr(room, name, raising=False)
        invalidate_caches()

    yield add
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_every_example_does_what_the_text_says(added):
    names = {"__name__": "contributing"}
    for block in BLOCKS:
        if file := FILE.match(block):
            assert not (ROOT / f"{file[1]}/{file[2]}.py").exists()
            added(*file.groups(), block)
        else:
            above = TEXT[: TEXT.index(block)].count("\n")  # so that an error names the line of the page
            exec(compile("\n" * above + block, ROOT / "CONTRIBUTING.md", "exec"), names)
    assert {"Square", "MeanAbsoluteError", "network", "history", "bars", "record"} <= names.keys()


def test_an_example_is_short():
    assert len(BLOCKS) == 10
    assert all(len(block.splitlines()) <= 24 for block in BLOCKS)
    code = [
        [line for line in block.splitlines() if line.strip() and not line.startswith(("#", '"'))] for block in BLOCKS
    ]
    assert max(map(len, code)) <= 20


def test_what_the_page_names_is_there():
    named = re.findall(r"`(?:mlpkit/)?((?:\w+/)+\w+\.py|\w+\.py)`", TEXT) + re.findall(
        r"^\| `(\w+)/`", TEXT, re.MULTILINE
    )
    rooms = ["", "mlpkit", "experiments/engines"]
    assert [name for name in named if not any((ROOT / room / name).exists() for room in rooms)] == []
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make (\w+)`", TEXT)) <= set(targets)
    assert [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if not (ROOT / link).exists()] == []


def test_the_changelog_names_modules_that_are_there():
    rows = re.findall(r"^\| `.*` \| (.*) \|$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    modules = [module for row in rows for module in re.findall(r"`((?:mlpkit|experiments)[\w.]+)`", row)]
    assert len(modules) > 15
    assert [module for module in modules if not find_spec(module)] == []
