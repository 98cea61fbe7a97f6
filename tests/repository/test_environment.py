"""pyproject.toml, environment.yml and constraints.txt tell one story, and data/ the images' authors'."""

import gzip
import hashlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = ["3.11", "3.12", "3.13"]
PLATFORMS = ["linux", "darwin", "win32"]


def requirements(lines):
    """Return {name: (extras, versions, where it applies)}, so that spelling does not matter."""
    parsed = [Requirement(line) for line in lines]
    return {r.name: (r.extras, r.specifier, str(r.marker)) for r in parsed}


def conda():
    """Return environment.yml's conda lines, its pip requirements, and pip's options."""
    lines = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip_lines = next(line["pip"] for line in lines if isinstance(line, dict))
    conda_lines = [line for line in lines if isinstance(line, str)]
    options = [line for line in pip_lines if line.startswith("-")]
    return conda_lines, [line for line in pip_lines if line not in options], options


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.lstrip().startswith("#")]


def test_conda_installs_the_same_packages():
    _, pip_lines, options = conda()
    assert requirements(pip_lines) == requirements(PROJECT["dependencies"] + EXTRAS["test"])
    assert options == ["-c constraints.txt", "-e ."]


def test_conda_takes_the_same_python():
    conda_lines, _, _ = conda()
    python = next(Requirement(line) for line in conda_lines if line.startswith("python"))
    assert python.specifier == SpecifierSet(PROJECT["requires-python"])


def test_python_range_is_the_one_tested():
    minors = [f"3.{minor}" for minor in range(8, 20)]
    assert list(SpecifierSet(PROJECT["requires-python"]).filter(minors)) == PYTHONS
    script = (ROOT / "tools" / "set_up.sh").read_text()
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in script


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_every_direct_dependency_is_pinned_within_its_range(python, platform):
    here = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": platform,
    }
    pinned = {p.name: p for p in pins() if p.marker is None or p.marker.evaluate(here)}
    lines = PROJECT["dependencies"] + EXTRAS["test"] + EXTRAS["gpu"] + EXTRAS["site"] + ["pip", "setuptools>=77"]
    for wanted in map(Requirement, lines):
        if wanted.marker is None or wanted.marker.evaluate(here):
            (pin,) = pinned[wanted.name].specifier
            assert pin.operator == "=="
            assert pin.version in wanted.specifier


def test_constraints_name_no_place():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text  # an index, a mirror, a repository
    assert not re.search(r"^\s*-|\bfile:|@", text, re.MULTILINE)  # an option, a path


@pytest.mark.parametrize(("name", "files"), [("mnist", 4), ("fashion-mnist-sample", 2)])
def test_bundled_images_are_what_their_readme_says(name, files):
    folder = ROOT / "data" / name
    rows = re.findall(r"\| (\S+-ubyte) +\| +([\d,]+) \| `(\w{64})`", (folder / "README.md").read_text())
    assert len(rows) == files
    assert (folder / "LICENSE").is_file()
    for file, size, sha256 in rows:
        unpacked = gzip.decompress((folder / f"{file}.gz").read_bytes())
        assert len(unpacked) == int(size.replace(",", ""))
        assert hashlib.sha256(unpacked).hexdigest() == sha256
