"""What `make` installs: CUDA's libraries only beside a GPU that can use them, and never a failure for lack of one.
What it says meanwhile: a few lines, and a sentence that helps where something goes wrong.
"""

import contextlib
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="on Windows there is no make")


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a .venv that is set up, whose Python writes down what it is asked and does nothing."""
    folder = tmp_path.resolve() / "check out"
    for name in (
        "tools/set_up.sh",
        "tools/pip.py",
        "tools/why_not_here.py",
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
    ):
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


def environment(folder, nvidia_smi="exit 127", **variables):
    tools = folder.parent / "bin"
    executable(tools / "nvidia-smi", nvidia_smi)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "GPU"))}
    return kept | variables | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}


def run(folder, *command, **settings):
    done = subprocess.run(command, cwd=folder, env=environment(folder, **settings), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


SET_UP = ("sh", "tools/set_up.sh")


def set_up(folder, **settings):
    return subprocess.run(SET_UP, cwd=folder, env=environment(folder, **settings), capture_output=True, text=True)


def pip_says(folder, text, then="exit 0", first=":"):
    """Make pip do something, say this, and do something else when it installs the workbook; else it says nothing."""
    (folder.parent / "said").write_text(text)
    line = f"""case "$*" in *" -e "*) {first}; cat '{folder.parent}/said'; {then};; esac"""
    executable(folder / ".venv" / "bin" / "python", line)


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
    said = run(checkout, *SET_UP, nvidia_smi=answer, GPU=asked)
    assert installed(checkout) == extras
    assert ("Adding the CUDA libraries" in said) == (extras == "[test,gpu]")
    assert ("too old for CUDA 12" in said) == ("470" in answer)
    assert (checkout / ".venv" / "set-up-complete").read_text() == f"{checkout}\n"
    assert (checkout / ".venv" / "cuda-complete").exists() == (extras == "[test,gpu]")


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
@pytest.mark.parametrize("asked", ["maybe", "No", ""])
def test_an_answer_that_is_none_is_refused_before_anything_is_set_up(checkout, asked):
    done = subprocess.run(
        ["make", "-n", "run", f"GPU={asked}"], cwd=checkout, env=environment(checkout), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"GPU must be yes, no or auto, not '{asked}'" in done.stderr


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_cudas_libraries_are_added_later_and_once(checkout):
    assert "set_up.sh" not in run(checkout, "make", "-n", "run")
    assert "set_up.sh" in run(checkout, "make", "-n", "run", "GPU=yes")
    (checkout / ".venv" / "cuda-complete").touch()
    assert "set_up.sh" not in run(checkout, "make", "-n", "run", "GPU=yes")


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_what_one_target_needs_is_added_once_and_again_after_a_new_set_up(checkout):
    (checkout / ".venv" / "cuda-complete").touch()
    assert "set_up.sh site" in run(checkout, "make", "-n", "site")
    run(checkout, *SET_UP, "site", nvidia_smi="echo 580.159.04")
    assert installed(checkout) == "[site]"  # and no CUDA, which the first set-up decides on
    assert (checkout / ".venv" / "cuda-complete").exists()
    assert "set_up.sh" not in run(checkout, "make", "-n", "site")
    run(checkout, *SET_UP, GPU="no")
    assert "set_up.sh site" in run(checkout, "make", "-n", "site")


PIP = r"""Collecting numpy<3,>=2.3 (from mlpkit==0.1.0)
  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (17.3 MB)
Progress 5334944 of 17334944
Progress 17334944 of 17334944
Requirement already satisfied: pip in C:\new\tabs (from mlpkit==0.1.0)
Installing collected packages: numpy, numba, mlpkit

Successfully installed mlpkit-0.1.0 numba-0.68.1 numpy-2.4.6
"""


def kept(said):
    """Return the lines of the log: what pip writes four times a second would bury the others."""
    return [line for line in said.splitlines() if not line.startswith("Progress ")]


def stamp(folder):
    return folder / ".venv" / "set-up-complete"


def test_a_pipe_gets_a_few_lines_and_the_log_all_that_pip_said(checkout):
    pip_says(checkout, PIP)
    lines = run(checkout, *SET_UP, GPU="no").splitlines()
    assert lines[1:-1] == ["  collecting packages", "  installing 3 packages"]
    assert lines[-1].startswith("Successfully installed in ")
    assert lines[-1].endswith(" .venv/set-up.log")
    assert (checkout / ".venv" / "set-up.log").read_text().splitlines() == kept(PIP)
    assert stamp(checkout).exists()


def test_a_terminal_gets_one_line_that_is_written_over(checkout):
    pty = pytest.importorskip("pty")
    pip_says(checkout, PIP)
    ours, theirs = pty.openpty()
    with subprocess.Popen(SET_UP, cwd=checkout, env=environment(checkout, GPU="no"), stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux's way to say that nobody writes any more
            while more := os.read(ours, 4096):
                shown += more
    os.close(ours)
    assert process.returncode == 0
    states = [state.rstrip() for line in shown.decode().splitlines() for state in line.split("\r")]
    for state in ("collecting numpy", "downloading numpy, 5 of 17 MB", "installing 3 packages"):
        assert f"  {state}" in states
    assert all(len(state) < 80 for state in states[1:])
    assert states[-1].startswith("Successfully installed in ")


BROKEN = "after connection broken by 'NewConnectionError('<HTTPSConnection>: Failed to establish a new connection')'"
TROUBLES = {
    "network": (
        f"WARNING: Retrying (Retry(total=0)) {BROKEN}: /simple/numpy/\nERROR: No match\n",
        "internet connection",
    ),
    "index": ("ERROR: Could not find a version that satisfies numpy (from versions: none)\n", "internet connection"),
    "time": ("pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.\n", "internet connection"),
    "certificate": (
        "Could not fetch URL https://a/numpy/: There was a problem confirming the ssl certificate: "
        "(Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed')))\n"
        "ERROR: Could not find a version that satisfies numpy (from versions: none)\n",
        "set the variable PIP_CERT",
    ),
    "bundle": (
        "ERROR: Could not install packages due to an OSError: Could not find a suitable TLS CA certificate bundle, "
        "invalid path: /gone\n",
        "unset PIP_CERT",
    ),
    "clock": (
        "(Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
        "certificate is not yet valid')))\n",
        "set the clock right",
    ),
    "temporary": ("FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp']\n", "variable TMPDIR"),
    "disk": ("ERROR: Could not install: [Errno 28] No space left on device\n", "make room"),
    "folder": ("ERROR: Could not install: [Errno 13] Permission denied: '/usr/lib'\n", "may not write in"),
    "other": ("ERROR: Failed building wheel for numpy\n", "lines above say why"),
    "nothing": ("", "lines above say why"),
}


@pytest.mark.parametrize(("said", "advice"), TROUBLES.values(), ids=TROUBLES)
def test_a_failure_shows_pips_last_words_and_what_to_do(said, advice, checkout):
    pip_says(checkout, PIP + said, "exit 2")
    done = set_up(checkout, GPU="no")
    assert done.returncode != 0
    *last_lines, where, sentence = done.stderr.splitlines()
    assert last_lines == kept(PIP + said)[-8:]
    assert where.endswith("/.venv/set-up.log.)")
    assert advice in sentence
    assert not stamp(checkout).exists()


def test_a_folder_that_is_somebody_elses_is_said(checkout):
    shutil.rmtree(checkout / ".venv")
    python = checkout.parent / "python"
    executable(
        python, "case \"$*\" in '-m venv '*) echo \"Error: [Errno 13] Permission denied: '.venv'\" >&2; exit 1;; esac"
    )
    checkout.chmod(0o555)
    done = set_up(checkout, PYTHON=str(python))
    assert done.returncode == 1
    assert done.stderr.startswith("Error: [Errno 13]")
    everywhere = os.access(checkout, os.W_OK)  # as root may write: then it is another folder
    said = "a folder that the lines above name: make it yours" if everywhere else f"{checkout}: move"
    assert f"may not write in {said}" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_wheelhouse_that_lacks_a_package_is_said_and_no_internet_asked_for(checkout):
    pip_says(checkout, TROUBLES["index"][0], "exit 2")
    done = set_up(checkout, GPU="no", PIP_NO_INDEX="1", PIP_FIND_LINKS="/a/wheelhouse")
    assert "The folder /a/wheelhouse lacks a package: 'make wheelhouse'" in done.stderr
    assert "internet" not in done.stderr


@pytest.mark.parametrize("what", ["a file", "a link to nowhere", "no pip in it", "no Python in it"])
def test_what_is_no_environment_is_made_anew(what, checkout):
    venv, python = checkout / ".venv", checkout.parent / "python"
    makes = f"mkdir -p .venv/bin; rm -f .venv/bin/python; cp \"$0\" .venv/bin/python; echo made >'{python}.made'"
    line = f"""case "$*" in '-m venv '*) {makes};; esac"""
    executable(python, line)
    match what:
        case "no pip in it":
            executable(venv / "bin" / "python", "case $2 in 'import pip') exit 1;; esac")
        case "no Python in it":
            (venv / "bin" / "python").unlink()
            (venv / "bin" / "python").symlink_to("/nowhere")
        case _:
            shutil.rmtree(venv)
            venv.touch() if what == "a file" else venv.symlink_to("/nowhere")
    done = set_up(checkout, GPU="no", PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    assert python.with_suffix(".made").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_variables_for_another_python_do_not_reach_this_one(checkout):
    executable(checkout / ".venv" / "bin" / "python", f'env >"{checkout.parent}/seen"')
    names = ("HOME", "PATH", "STARTUP", "PLATLIBDIR", "INSPECT", "SAFEPATH", "WARNINGS", "_GIL")
    others = {f"PYTHON{name}": "/other" for name in names} | {"MPLBACKEND": "/other"}
    for command in (["make", "check"], SET_UP):
        run(checkout, *command, **others)
        seen = (checkout.parent / "seen").read_text()
        assert "/other" not in seen
        assert "PATH=" in seen
    run(checkout, "make", "check", PYTHONDONTWRITEBYTECODE="1")
    assert "PYTHONDONTWRITEBYTECODE" not in (checkout.parent / "seen").read_text()


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_an_inbox_may_be_called_as_a_person_is(checkout):
    (checkout / ".venv" / "labs-complete").write_text("")
    run(checkout, "make", "grade", "INBOX=O'Brien's (1) & co", "PATTERN={lab} 'a'/{student}.ipynb")
    asked = (checkout.parent / "asked").read_text().splitlines()
    assert asked[-1] == "-m labs.grading --pattern {lab} 'a'/{student}.ipynb O'Brien's (1) & co"


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
@pytest.mark.parametrize("home", ["pyproject.toml/home", ""])
def test_jupyter_starts_where_the_home_folder_cannot_be_written(home, checkout):
    executable(checkout / ".venv" / "bin" / "python", 'case $1 in -m) test -w "$HOME" && echo "$2 in $HOME";; esac')
    said = run(checkout, "make", "lab", HOME=home)
    assert "The home folder can't be written" in said
    assert f"jupyterlab in {tempfile.gettempdir()}" in said
    nowhere = {"JUPYTER_DATA_DIR": "/dev/null/x", "XDG_CONFIG_HOME": "/dev/null/y"}
    executable(
        checkout / ".venv" / "bin" / "python", f'case $1 in -m) echo "$2 in $HOME"; env >"{checkout}/seen";; esac'
    )
    told = run(checkout, "make", "lab", HOME=str(checkout), **nowhere).splitlines()
    assert [line.partition(",")[0] for line in told if "leads" in line] == [
        f"{name} leads to {folder}" for name, folder in nowhere.items()
    ]
    assert "/dev/null" not in (checkout / "seen").read_text()
    mine = run(checkout, "make", "lab", HOME=str(checkout))
    assert mine.splitlines()[-1] == f"jupyterlab in {checkout}"
    assert "can't be written" not in mine


LISTED = r"""Config variable 'PIP_CONFIG_FILE' is not set
:env:.cert='/a/certificate.pem'
:env:.target='/elsewhere'
global.cert='/another.pem'
global.extra-index-url='https://a/simple\nhttps://b/simple'
global.no-deps='true'
global.quiet='1'
install.find-links="/it's/here"
install.prefix='/elsewhere'
install.root='/elsewhere'
"""


def test_of_pips_settings_those_count_that_say_how_to_reach_packages():
    reach = runpy.run_path(str(ROOT / "tools" / "pip.py"))["reach"]
    assert reach(LISTED) == {
        "PIP_CERT": "/a/certificate.pem",
        "PIP_EXTRA_INDEX_URL": "https://a/simple\nhttps://b/simple",
        "PIP_FIND_LINKS": "/it's/here",
    }


def test_a_pip_that_is_set_to_go_elsewhere_stays_here(tmp_path):
    """The real pip, and no package: what it says of itself is what it was told."""
    (tmp_path / "pip.conf").write_text("[global]\ntarget = /elsewhere\nquiet = 2\ntimeout = 7\n[install]\nroot = /b\n")
    variables = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_PREFIX": "/elsewhere", "PIP_PYTHON": "/no/python"}
    command = [sys.executable, ROOT / "tools" / "pip.py", "config", "list"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(command, env=kept | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^[\w:]+\.([\w-]+)=", done.stdout, re.MULTILINE)
    assert "timeout" in names
    assert not {"target", "quiet", "root", "prefix", "python"} & {*names}


HERE = ("Linux", "x86_64", "glibc 2.36", "")
MACHINES = [
    (HERE, None),
    (("Linux", "aarch64", "glibc 2.28", ""), None),
    (("Darwin", "arm64", "", "15.1"), None),
    (("Darwin", "x86_64", "", "12.0"), None),
    (("Darwin", "x86_64", "", "10.16"), None),
    (("Darwin", "arm64", "", "11.7"), "macOS 12"),
    (("Linux", "x86_64", "", ""), "without glibc"),
    (("Linux", "x86_64", "glibc 2.17", ""), "glibc 2.17"),
    (("Linux", "riscv64", "glibc 2.39", ""), "a processor riscv64"),
    (("Linux", "armv7l", "glibc 2.36", ""), "a processor armv7l"),
    (("FreeBSD", "amd64", "", ""), "FreeBSD"),
]


@pytest.mark.parametrize(("told", "why"), MACHINES, ids=str)
def test_a_machine_that_no_packages_are_for_is_told_so_before_anything_is_made(told, why, monkeypatch):
    system, processor, libc, macos = told
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr("platform.mac_ver", lambda: (macos, ("", "", ""), processor))
    monkeypatch.setattr(os, "confstr", lambda name: libc, raising=False)
    reason = runpy.run_path(str(ROOT / "tools" / "why_not_here.py"))["why_not"]()
    assert (reason is None) if why is None else (why in reason)


def test_a_refusal_is_one_sentence_and_nothing_is_made(checkout):
    shutil.rmtree(checkout / ".venv")
    executable(checkout.parent / "python", "case $1 in tools/*) echo 'This workbook can not be.' >&2; exit 1;; esac")
    done = set_up(checkout, PYTHON=str(checkout.parent / "python"))
    assert (done.returncode, done.stderr) == (1, "This workbook can not be.\n")
    assert not (checkout / ".venv").exists()


def test_a_disk_that_is_full_before_there_is_a_pip_is_said(checkout):
    shutil.rmtree(checkout / ".venv")
    python = checkout.parent / "python"
    full = "'-m ensurepip '*) echo '[Errno 28] No space left on device'; exit 1"
    executable(python, f"""case "$*" in '-m venv '*) mkdir -p .venv/bin; cp "$0" .venv/bin/python;; {full};; esac""")
    done = set_up(checkout, GPU="no", PYTHON=str(python))
    assert done.returncode == 1
    assert "make room, then give the same command again" in done.stderr


def test_a_path_for_cd_leads_nowhere_else(checkout):
    (checkout.parent / "other" / "tools").mkdir(parents=True)
    stamp(checkout).unlink()
    executable(checkout / ".venv" / "bin" / "python", "exit 0")
    assert set_up(checkout, GPU="no", CDPATH=str(checkout.parent / "other"), PYTHON="true").returncode == 0
    assert stamp(checkout).exists()


@pytest.mark.skipif(not shutil.which("flock"), reason="no flock here")
def test_of_two_set_ups_at_once_one_waits_and_finds_it_done(checkout):
    pip_says(checkout, PIP, f"sleep 1; echo done >>'{checkout.parent}/asked'")
    options = {"stdout": subprocess.PIPE, "text": True, "cwd": checkout, "env": environment(checkout, GPU="no")}
    with subprocess.Popen(SET_UP, **options) as first:
        while "collecting" not in first.stdout.readline():
            pass
        second = subprocess.run(SET_UP, **options, check=True)
        assert "Successfully installed" in first.communicate()[0]
    assert second.stdout == "Another set-up is at work in this folder: waiting for its end\n"
    assert (checkout.parent / "asked").read_text() == "done\n"


def test_an_interrupted_set_up_is_begun_anew(checkout):
    """Ctrl-C reaches everybody who belongs to the terminal's command, so the test sends it to the whole group."""
    stopped = "trap 'echo ERROR: Operation cancelled by user; exit 1' INT"
    pip_says(checkout, PIP, "while sleep 0.1; do :; done", first=stopped)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(SET_UP, cwd=checkout, env=environment(checkout, GPU="no"), **options) as process:
        while "installing" not in process.stdout.readline():
            pass
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.startswith("Interrupted: .venv is half made")
    assert said.count("\n") == 1
    assert "cancelled by user" in (checkout / ".venv" / "set-up.log").read_text()
    assert not stamp(checkout).exists()
