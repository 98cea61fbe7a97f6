"""What `make` installs: CUDA's libraries only beside a GPU that can use them, and never a failure for lack of one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="on Windows there is no make")


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a .venv that is set up, whose Python writes down what it is asked and does nothing."""
    folder = tmp_path.resolve() / "check out"
    for name in ("tools/set_up.sh", "Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv" / "bin").mkdir(parents=True)
    executable(folder / ".venv" / "bin" / "python", f'echo "$@" >>"{tmp_path}/asked"')
    (folder / ".venv" / "set-up-complete").write_text(f"{folder}\n")
    return folder


def executable(path, line):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def run(folder, *command, nvidia_smi=None, **variables):
    tools = folder.parent / "bin"
    executable(tools / "nvidia-smi", nvidia_smi or "exit 127")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "GPU"))}
    environment = kept | variables | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(folder):
    """Return the extras that pip was asked for last."""
    (line,) = [line for line in (folder.parent / "asked").read_text().splitlines() if " -e " in line]
    return line.rpartition(" .")[2]


ANSWERS = [
    ("echo 580.159.04; echo 580.159.04", "auto", "[test,gpu]"),
    ("echo 525.60.13", "auto", "[test,gpu]"),
    ("echo 470.82.01", "auto", "[test]"),
    ("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9", "auto", "[test]"),
    ("echo 'No devices were found'; exit 6", "auto", "[test]"),
    ("exit 127", "auto", "[test]"),
    ("echo 580.159.04", "no", "[test]"),
    ("exit 127", "yes", "[test,gpu]"),
]


@pytest.mark.parametrize(("answer", "asked", "extras"), ANSWERS)
def test_a_gpu_that_can_be_used_gets_cudas_libraries(answer, asked, extras, checkout):
    if extras == "[test,gpu]" and not shutil.which("timeout"):
        pytest.skip("no `timeout` here, and no driver that could need it")
    said = run(checkout, "sh", "tools/set_up.sh", nvidia_smi=answer, GPU=asked)
    assert installed(checkout) == extras
    assert ("Adding the CUDA libraries" in said) == (extras == "[test,gpu]")
    assert ("too old for CUDA 12" in said) == ("470" in answer)
    assert (checkout / ".venv" / "set-up-complete").read_text() == f"{checkout}\n"
    assert (checkout / ".venv" / "cuda-complete").exists() == (extras == "[test,gpu]")


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_cudas_libraries_are_added_later_and_once(checkout):
    assert "set_up.sh" not in run(checkout, "make", "-n", "run")
    assert "set_up.sh" in run(checkout, "make", "-n", "run", "GPU=yes")
    (checkout / ".venv" / "cuda-complete").touch()
    assert "set_up.sh" not in run(checkout, "make", "-n", "run", "GPU=yes")
