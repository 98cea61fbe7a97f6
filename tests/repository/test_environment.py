"""pyproject.toml, environment.yml and constraints.txt tell one story, and data/ the images' authors'."""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from PIL import Image

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PYTHONS = ["3.11", "3.12", "3.13"]
# What README.md's table calls a system and a processor, for uv and for a marker
PLATFORMS = {
    ("Linux", "x86-64"): ("x86_64-manylinux_2_28", "linux", "x86_64"),
    ("Linux", "ARM, 64 bits"): ("aarch64-manylinux_2_28", "linux", "aarch64"),
    ("Linux with musl, as Alpine", "any"): ("x86_64-unknown-linux-musl", "linux", "x86_64"),
    ("Linux", "RISC-V"): ("riscv64-unknown-linux", "linux", "riscv64"),
    ("macOS", "Apple"): ("aarch64-apple-darwin", "darwin", "arm64"),
    ("macOS", "Intel, or Rosetta"): ("x86_64-apple-darwin", "darwin", "x86_64"),
    ("Windows", "x86-64"): ("x86_64-pc-windows-msvc", "win32", "AMD64"),
    ("Windows", "ARM, 64 bits"): ("aarch64-pc-windows-msvc", "win32", "ARM64"),
    ("Windows", "32 bits"): ("i686-pc-windows-msvc", "win32", "x86"),
}
ROWS = re.findall(
    r"^\| ([^|]+?) \| ([^|]+?) \| (3[\d., ]+) \| (tried|resolves|can't)\b",
    (ROOT / "README.md").read_text("utf-8"),
    re.M,
)
CASES = [(*row[:2], python, row[3]) for row in ROWS for python in re.findall(r"3\.\d+", row[2])]


def requirements(lines):
    """Return {name and where it applies: (extras, versions)}, so that spelling does not matter."""
    parsed = [Requirement(line) for line in lines]
    return {(r.name, str(r.marker)): (r.extras, r.specifier) for r in parsed}


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


def test_the_table_has_every_platform_with_every_python():
    """A row is left out for nobody, and a machine stands in one row alone."""
    assert len(CASES) == len(set(CASES)) == len(PLATFORMS) * len(PYTHONS)
    assert {case[:3] for case in CASES} == {(*platform, python) for platform in PLATFORMS for python in PYTHONS}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS, ids=", ".join)
def test_every_direct_dependency_is_pinned_within_its_range(platform, python):
    _, system, processor = PLATFORMS[platform]
    here = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": system,
        "platform_machine": processor,
    }
    applying = [p for p in pins() if p.marker is None or p.marker.evaluate(here)]
    pinned = {p.name: p for p in applying}
    assert len(pinned) == len(applying)  # one version of a package, wherever one is
    lines = PROJECT["dependencies"] + EXTRAS["test"] + EXTRAS["gpu"] + EXTRAS["site"] + ["pip", "setuptools>=77"]
    for wanted in map(Requirement, lines):
        if wanted.marker is None or wanted.marker.evaluate(here):
            (pin,) = pinned[wanted.name].specifier
            assert pin.operator == "=="
            assert pin.version in wanted.specifier


@pytest.mark.slow
@pytest.mark.parametrize(("system", "processor", "python", "said"), CASES, ids=map(", ".join, CASES))
def test_the_table_says_where_each_package_has_a_wheel(system, processor, python, said, tmp_path):
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if not uv:
        pytest.skip("no uv here")
    extras = ["test", "site"] + ["labs"] * (system != "Windows") + ["gpu"]
    options = [f"--extra={extra}" for extra in extras] + ["--only-binary=:all:", "--quiet", "--no-header"]
    options += ["--python-platform", PLATFORMS[system, processor][0], "--python-version", python]
    command = [uv, "pip", "compile", "pyproject.toml", "-c", "constraints.txt", "--output-file", tmp_path / "pins"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    if re.search("Failed to fetch|error sending request|dns error", done.stderr):
        pytest.skip("no package index within reach")
    assert (done.returncode == 0) == (said != "can't"), done.stderr
    assert said != "can't" or re.search("no usable wheels|no wheels with a matching", done.stderr), done.stderr


def test_constraints_name_no_place():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text  # an index, a mirror, a repository
    assert not re.search(r"^\s*-|\bfile:|@", text, re.MULTILINE)  # an option, a path


def test_each_bundled_photograph_has_an_author_a_licence_and_a_source():
    folder = ROOT / "data" / "photos"
    rows = re.findall(r"^\| (\S+\.jpg) \|(.+)\|$", (folder / "README.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == sorted(path.name for path in folder.glob("*.jpg"))
    for name, cells in rows:
        author, licence, source, size = (cell.strip() for cell in cells.split("|"))
        assert author, name
        assert source.startswith("`"), name
        assert licence == "public domain" or re.match(r"\[CC(0 1.0| BY 4.0)\]", licence), name
        assert size == "{} x {}".format(*Image.open(folder / name).size)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000


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
