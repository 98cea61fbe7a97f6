"""Colab, Binder, Docker: the files for them name what exists, and the page about them says what is so."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from packaging.specifiers import SpecifierSet
from test_workflows import TARGETS

from experiments.lab import lines
from mlpkit import engines, kernels

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "binder" / "README.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "binder" / "Dockerfile").read_text(encoding="utf-8")
CONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHIPS = {"7.5": "sm_75", "8.0": "sm_80", "9.0": "sm_90"}
ON_GPU = [name for name in engines.names() if engines.on_gpu(name)]
REPOSITORY = "https://github.com/somebody/somewhere"

needs_cupy = pytest.mark.skipif(not find_spec("cupy"), reason="CuPy is not installed")


# Which engine runs on which GPU

# Import every engine where CuPy sees a GPU of a certain compute capability, and nothing is asked of it.
PRETEND = """
import json, sys, types
from unittest import mock
import cupy
from mlpkit import engines
from mlpkit.kernels import gpu
from mlpkit.kernels.conv import cudnn
gpu.why_not = cudnn.why_not = lambda: None
cupy.cuda.Device = lambda: types.SimpleNamespace(
    compute_capability=sys.argv[1].replace(".", ""), attributes={"MaxSharedMemoryPerBlockOptin": 65536}
)
cupy.cuda.Stream = mock.MagicMock()
print(json.dumps({name: why for name, why in engines.available().items() if engines.on_gpu(name)}))
"""


def said_to(capability):
    """Return what each engine says to a GPU of a compute capability: a sentence or None."""
    command = [sys.executable, "-c", PRETEND, capability]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout)


@pytest.fixture(scope="module", params=CHIPS)
def pretended(request):
    """Return a compute capability, and what each engine says to a GPU that has it."""
    return request.param, said_to(request.param)


def table():
    """Return {engine: {capability: "runs" or what it needs}} of the page."""
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    return {name: dict(zip(CHIPS, cells.split(" | "), strict=True)) for name, cells in rows if name in ON_GPU}


@needs_cupy
def test_the_table_is_what_each_engine_says(pretended):
    capability, said = pretended
    assert sorted(table()) == sorted(said), "binder/README.md has a row for each engine that needs a GPU"
    for name, why in said.items():
        needs = re.search(r"needs a GPU of compute capability (\d\.\d) or newer, and this one has (\d\.\d)$", why or "")
        assert needs or why is None, why
        assert not needs or needs[2] == capability
        assert table()[name][capability] == (f"needs {needs[1]}" if needs else "runs"), name


@needs_cupy
def test_no_engine_says_to_a_newer_chip_that_it_is_too_new():
    assert [(name, why) for name, why in said_to("12.0").items() if why] == []
    assert "On newer chips, 10.0 and on, no engine refuses" in PAGE


def _no_compiler():
    try:
        kernels.ptxas()
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:
        return f"no compiler here: {error}"
    return None


@pytest.mark.skipif(_no_compiler() is not None, reason=_no_compiler() or "")
@pytest.mark.parametrize("capability", CHIPS)
@pytest.mark.parametrize("name", ON_GPU)
def test_an_engine_runs_where_the_compiler_takes_its_kernels(name, capability):
    """And asks for a newer GPU where it does not, instead of showing what the compiler says.

    A file that says itself that it needs a newer chip is one of several that do the same: the table of
    `kernels.conv.variants` chooses.
    """
    if name not in table():
        pytest.skip("the table lacks it, which another test says")
    files = [path.stem for path in lines.files(name) if path.suffix == ".cu"]
    found = {file: compiles(file, CHIPS[capability]) for file in files}
    if table()[name][capability] == "runs":
        assert [file for file, fine in found.items() if not fine and not _is_newer(file, CHIPS[capability])] == []
    else:
        assert not all(found.values())


def _is_newer(file, chip):
    needs = re.search(r"^// needs sm_(\d+)", kernels.source(file), re.MULTILINE)
    return bool(needs) and int(needs[1]) > int(chip.removeprefix("sm_"))


@cache  # engines share files
def compiles(file, chip):
    """Say whether a file compiles; `test_kernels` has those compiled that are for sm_80 or sm_90."""
    if chip in ("sm_80", "sm_90") and kernels.chip(file) in ("sm_75", "sm_80", chip):
        return True
    try:
        return bool(kernels.cubin(file, chip))
    except RuntimeError:
        return False


def test_the_page_quotes_an_engine():
    (quoted,) = re.findall(r"in full: \*(.+?)\*", PAGE.replace("\n", " "))
    source = " ".join((ROOT / "mlpkit" / "kernels" / "gpu.py").read_text().split())
    (pattern,) = re.findall(r'ImportError\(f"(it needs a GPU .+?)"\)', source)
    text = pattern.format(least=8.0, has="this one has", found=7.5)
    assert quoted == f"engine cuda_persistent can't run on this machine: {text}"


# Binder, Docker, a dev container


def instructions():
    """Return the Dockerfile's instructions as pairs (name, the rest)."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", DOCKERFILE))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def test_the_dockerfile_names_what_exists():
    made = {what.partition("=")[0] for name, what in instructions() if name == "ARG"}
    assert made == {"NB_USER", "NB_UID", "GPU"}  # what Binder sets, and ours
    used = set(re.findall(r"\$\{(\w+)\}", DOCKERFILE))
    assert used == made | {"PATH"}
    (base,) = [what for name, what in instructions() if name == "FROM"]
    assert SpecifierSet(PROJECT["requires-python"]).contains(re.fullmatch(r"python:(3\.\d+)-slim-\w+", base)[1])
    commands = " ".join(what for name, what in instructions() if name == "RUN")
    assert "make .venv/set-up-complete" in commands
    assert re.search(r"^GPU \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (command,) = [json.loads(what) for name, what in instructions() if name == "CMD"]
    assert (ROOT / command[-1]).is_file()


def test_binder_reads_the_dockerfile_alone():
    """A file such as environment.yml beside it would change nothing, and seem to."""
    assert sorted(path.name for path in (ROOT / "binder").iterdir()) == ["Dockerfile", "README.md"]


def test_what_git_ignores_stays_out_of_an_image():
    """Among it what students handed in."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in (ROOT / ".gitignore").read_text().split():
        assert {line, f"**/{line}"} & {*ignored}, line
    assert ".git" in ignored


def test_the_dev_container_sets_up_as_make_does():
    assert re.search(r"&& make \.venv/set-up-complete$", CONTAINER["postCreateCommand"])
    version = re.search(r":(3\.\d+)-\w+$", CONTAINER["image"])[1]
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert CONTAINER["mounts"][0].split("target=")[1].startswith("${containerWorkspaceFolder}/.venv,")


def test_commands_of_the_page_exist():
    named = re.findall(r"^    make (\w+)|`make ([\w-]+)`", PAGE, re.MULTILINE)
    assert {"lab", "colab"} <= {first or second for first, second in named} <= {*TARGETS}
    for path in re.findall(r"docker build -f (\S+)", PAGE + DOCKERFILE):
        assert (ROOT / path).is_file()


# Colab

MAKE = "import json, sys; sys.path.insert(0, 'site'); import colab; print(json.dumps(colab.notebooks(sys.argv[1])))"


@pytest.fixture(scope="module")
def for_colab():
    """Return the chapters as they are written for Colab, by the names of their files."""
    pytest.importorskip("myst_nb", reason="no Sphinx here: 'make site' installs it", exc_type=ImportError)
    done = subprocess.run([sys.executable, "-c", MAKE, REPOSITORY], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return {name: nbformat.reads(text, as_version=4) for name, text in json.loads(done.stdout).items()}


def test_a_chapter_for_colab_is_the_chapter_after_a_first_cell(for_colab):
    assert sorted(for_colab) == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    for name, notebook in for_colab.items():
        nbformat.validate(notebook)
        first, *cells = notebook.cells
        assert f"git clone --quiet --depth 1 {REPOSITORY} " in first.source
        (script,) = re.findall(r"%run \.\./(\S+)", first.source)
        assert (ROOT / script).is_file()
        chapter = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells
        for ours, theirs in zip(chapter, cells, strict=True):
            assert theirs.get("outputs", []) == []
            assert theirs.source == ours.source or ours.cell_type == "markdown"
            assert re.sub(r"\]\([^)]*\)", "]()", theirs.source) == re.sub(r"\]\([^)]*\)", "]()", ours.source)


def test_a_link_in_colab_leads_to_the_web(for_colab):
    leads = set()
    for notebook in for_colab.values():
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                text = re.sub(r"(?s)```.*?```|`[^`]*`|\$[^$]*\$", "", cell.source)
                leads |= set(re.findall(r"\]\((?!#)([^)\s]+)\)", text))
    assert len(leads) > 50
    web = (f"{REPOSITORY}/blob/main/", f"{REPOSITORY}/tree/main/", "https://colab.research.google.com/github/")
    assert not [lead for lead in leads if not lead.startswith(web)]
    for lead in leads:
        path = ROOT / re.sub(r".*/main/|#.*", "", lead).replace("colab/", "notebooks/")
        assert path.exists(), lead


def test_without_an_address_there_is_nothing_for_colab_and_with_one_it_is_up_to_date(for_colab):
    setting = re.search(r'^repository = "(.*)"$', (ROOT / "site" / "conf.py").read_text(), re.MULTILINE)[1]
    if not setting:
        done = subprocess.run([sys.executable, ROOT / "site" / "colab.py"], capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "set `repository` in site/conf.py" in done.stderr
        assert not (ROOT / "colab").exists()
    else:
        made = json.loads(subprocess.check_output([sys.executable, "-c", MAKE, setting], cwd=ROOT))
        assert {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "colab").iterdir()} == made


@pytest.fixture(scope="module")
def set_up():
    return runpy.run_path(str(ROOT / "tools" / "set_up_colab.py"))


@pytest.mark.parametrize("what", ["a folder", "a file"])
def test_a_site_takes_the_place_of_nothing_but_a_site(what, tmp_path):
    target = tmp_path / "mine"
    kept = target / "notes.txt" if what == "a folder" else target
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    line = [sys.executable, ROOT / "site" / "build.py", "--no-pdf", "--to", target]
    done = subprocess.run(line, capture_output=True, text=True)
    assert kept.read_text() == "mine"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert str(target) in done.stderr


def test_a_site_takes_the_place_of_a_site(tmp_path):
    may_be_replaced = runpy.run_path(str(ROOT / "site" / "build.py"))["may_be_replaced"]
    assert may_be_replaced(tmp_path / "absent")
    assert may_be_replaced(tmp_path)
    (tmp_path / ".buildinfo").touch()
    (tmp_path / "index.html").touch()
    assert may_be_replaced(tmp_path)


@pytest.fixture
def installed(tmp_path):
    """Return a function that runs the set-up with a pip that only says that it was asked: its process, and whether."""
    for name in ("pip", "google/colab"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "google" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(f"open({str(tmp_path / 'asked')!r}, 'w').close()")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    asked = [sys.executable, "-c", "import pip; print(pip.__file__)"]
    assert str(tmp_path) in subprocess.check_output(asked, env=environment, text=True)  # and no other pip

    def run(*arguments, colab):
        if not colab:
            (tmp_path / "google" / "colab" / "__init__.py").unlink()
            (tmp_path / "google" / "colab").rmdir()
        line = [sys.executable, ROOT / "tools" / "set_up_colab.py", *arguments]
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        return done, (tmp_path / "asked").exists()

    return run


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_no_python_but_colabs_is_changed(arguments, installed):
    done, asked = installed(*arguments, colab=False)
    assert (done.returncode, done.stderr.count("\n"), asked) == (1, 1, False)
    assert "for Colab alone" in done.stderr


def test_colabs_python_gets_what_the_workbook_needs(installed):
    done, asked = installed(colab=True)
    assert (done.returncode, asked) == (0, True), done.stderr
    assert "ready" in done.stdout


def test_colab_keeps_its_own_jupyter(set_up):
    for gpu in (False, True):
        names = {re.match(r"[\w-]+", line)[0] for line in set_up["requirements"](PROJECT, gpu)}
        assert {"numpy", "numba", "matplotlib"} <= names
        assert not [name for name in names if name.startswith(("jupyter", "ipy", "nb", "pytest"))]
    assert any("[ctk]" in line for line in set_up["requirements"](PROJECT, gpu=True))
    assert not any("[ctk]" in line for line in set_up["requirements"](PROJECT, gpu=False))


def test_a_session_with_an_older_module_is_found(set_up, monkeypatch):
    import numpy

    wanted = ["numpy>=2.3,<3", "pillow>=11", "absent>=1"]
    assert set_up["outdated"](wanted) == []
    monkeypatch.setattr(numpy, "__version__", "2.0.2")
    assert set_up["outdated"](wanted) == ["numpy"]
