"""The hosted checks run what exists, on the Pythons that the workbook is for, and may do nothing but read."""

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
SETTINGS = re.findall(r"^([A-Z]+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow):
    """Return the words of each line that a workflow has a shell run."""
    return [shlex.split(line) for step in steps(workflow) for line in step.get("run", "").splitlines()]


def why_wrong(words):
    """Return what a command names that is not there; None where all is."""
    match words:
        case ["make", *names]:
            settings = [name.partition("=")[0] for name in names if "=" in name]
            missing = {name for name in names if "=" not in name} - {*TARGETS} or {*settings} - {*SETTINGS}
        case ["python", "-m", module, *_]:
            missing = set() if find_spec(module) else {module}
        case ["sudo", "sysctl", "--write", "kernel.apparmor_restrict_unprivileged_userns=0"]:
            missing = set()  # a setting of the runner's own system, not of ours
        case _:
            missing = {words[0]}
    named = [path for word in words for path in word.rpartition("=")[2].split() if "/" in path]
    missing |= {path for path in named if not (ROOT / path).exists()}
    return f"{shlex.join(words)}: there is no {', '.join(sorted(missing))}" if missing else None


def test_there_are_some():
    assert "test" in [path.stem for path in PATHS]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_command_names_what_exists(path):
    found = commands(read(path))
    assert found
    assert [wrong for wrong in map(why_wrong, found) if wrong] == []


@pytest.mark.parametrize(
    "line",
    [
        "make tset",
        "make test NOTEBOKS=x",
        "make test NOTEBOOKS='notebooks/99.ipynb'",
        "python -m pytets",
        "curl x",
        "sudo curl x",
    ],
)
def test_a_command_that_names_what_does_not_exist_is_found(line):
    assert "there is no " in why_wrong(shlex.split(line))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_and_comes_to_an_end(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets" not in path.read_text(encoding="utf-8")
    assert workflow["concurrency"]["cancel-in-progress"] is True
    assert all(0 < job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v0"))


def test_what_a_local_run_passes_the_hosted_one_passes_too():
    """The site's tests skip where it was not set up: `make site` does that, too."""
    local = re.findall(r"^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert {"check", "test", "test-labs"} <= {*local}
    hosted = [words[1] for words in commands(read(ROOT / ".github" / "workflows" / "test.yml")) if words[0] == "make"]
    assert {*local, "site"} <= {*hosted}
    assert hosted.index("site") < hosted.index("test")


def test_the_pythons_are_those_of_the_project():
    matrix = read(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minors = [f"3.{minor}" for minor in range(8, 20)]
    assert matrix["python"] == list(SpecifierSet(project["requires-python"]).filter(minors))
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
