"""The hosted checks run what exists, on the Pythons that the workbook is for, and may do nothing but read.

And what else a host or a tool reads of the repository is valid: forms for issues, hooks of commits, how to cite.
"""

import datetime
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import mlpkit

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
    assert {"check", "test-all", "test-labs"} <= {*local}
    hosted = [words[1] for words in commands(read(ROOT / ".github" / "workflows" / "test.yml")) if words[0] == "make"]
    assert {*local, "site"} <= {*hosted}
    assert hosted.index("site") < hosted.index("test-all")


def test_the_pythons_are_those_of_the_project():
    matrix = read(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minors = [f"3.{minor}" for minor in range(8, 20)]
    assert matrix["python"] == list(SpecifierSet(project["requires-python"]).filter(minors))
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_a_runner_of_ones_own_is_off_until_asked_for_and_runs_no_pull_requests():
    """Which would run whatever somebody sends on a machine that stays."""
    own = {}
    for path in PATHS:
        workflow = read(path)
        for job in workflow["jobs"].values():
            if "self-hosted" in str(job["runs-on"]):
                own[path.stem] = job
                assert set(workflow[True]) == {"push", "workflow_dispatch"}  # to YAML 1.1 `on` is true
                assert job["if"] == "github.event_name == 'workflow_dispatch' || vars.GPU_RUNNER == 'yes'"
    assert [*own] == ["gpu"]


def test_the_job_on_a_gpu_runs_the_marked_tests_and_fails_without_one():
    assert ["make", "test-gpu", "GPU=yes"] in commands(read(ROOT / ".github" / "workflows" / "gpu.yml"))
    recipe = re.search(r"(?m)^test-gpu:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text())[1].splitlines()
    assert "sys.exit(gpu.why_not())" in recipe[0]
    assert "-m pytest -m gpu tests" in recipe[1]


# Issues and pull requests

FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
FIELDS = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "checkboxes": {"label", "description", "options"},
}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_as_github_wants_it(path):
    form = read(path)
    assert set(form) == {"name", "description", "labels", "body"}
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked) > 2
    assert any(part.get("validations", {}).get("required") for part in asked)
    for part in form["body"]:
        assert set(part) <= {"type", "id", "attributes", "validations"}
        assert {"markdown": "value"}.get(part["type"], "label") in part["attributes"]
        assert set(part["attributes"]) <= FIELDS[part["type"]]


def test_there_is_a_form_for_each_kind_of_letter():
    assert [path.stem for path in FORMS] == ["bug", "number", "record"]
    asked = {path.stem: {part.get("id") for part in read(path)["body"]} for path in FORMS}
    assert {"command", "expected", "doctor"} <= asked["bug"]
    assert {"sentence", "found"} <= asked["number"]
    assert {"command", "record"} <= asked["record"]


def test_what_forms_and_the_template_tell_somebody_to_run_exists():
    pages = [*FORMS, ROOT / ".github" / "pull_request_template.md"]
    text = " ".join(path.read_text(encoding="utf-8") for path in pages)
    named = re.findall(r"`((?:make|python) [^`]+)`", text)
    assert {"python -m mlpkit doctor", "make check", "make test-all", "make notebooks"} <= {*named}
    assert [wrong for wrong in map(why_wrong, map(shlex.split, named)) if wrong] == []
    assert [path for path in re.findall(r"`(\S+/\S+)`", text) if not (ROOT / path).exists()] == []


# Commits, and citations


def test_hooks_have_the_ruff_that_is_pinned_and_commands_that_exist():
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    ruff, ours = yaml.safe_load(text)["repos"]
    pinned = re.search(r"(?m)^ruff==(\S+)", (ROOT / "constraints.txt").read_text())[1]
    assert ruff["rev"] == f"v{pinned}"
    assert [hook["id"] for hook in ruff["hooks"]] == ["ruff-check", "ruff-format"]
    assert ours["repo"] == "local"  # and so asks nothing of the internet
    for hook in ours["hooks"]:
        assert hook["language"] == "system"
        words = shlex.split(hook["entry"])
        missing = why_wrong(words) if words[1] == "-m" else [path for path in words[1:] if not (ROOT / path).exists()]
        assert not missing, hook["id"]
        assert re.compile(hook.get("files", "")).search("mlpkit/nn/model.py") or hook["id"] == "readme"


def test_the_citation_is_valid_and_of_this_edition():
    """By the parts of the Citation File Format's schema, 1.2.0, that are used."""
    cited = read(ROOT / "CITATION.cff")
    texts = {"cff-version", "message", "type", "title", "abstract", "version", "date-released", "license"}
    assert set(cited) == texts | {"authors", "keywords"}
    assert all(isinstance(cited[name], str) and cited[name] for name in texts)
    assert (cited["cff-version"], cited["type"], cited["license"]) == ("1.2.0", "software", "MIT")
    assert cited["authors"] == [{"name": "The mlpkit authors"}]
    assert len({*cited["keywords"]}) == len(cited["keywords"]) > 0
    assert datetime.date.fromisoformat(cited["date-released"]).year >= 2026
    assert cited["version"] == mlpkit.__version__
    newest = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1]
    assert Version(newest) == Version(mlpkit.__version__)
    title = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[0]
    assert title == f"# {cited['title']}"


def test_types_are_told_to_whoever_imports_the_package():
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["mlpkit"]
    assert "py.typed" in packed
    assert (ROOT / "mlpkit" / "py.typed").is_file()
