"""How the record "serving" is made: a service and a load, a process each, on the same two cores; services take turns.

A run is one service at one rate. `cpu_us` is what the service's processes computed for an answer: unlike a latency, it
is the same on a busy machine. Beside them: `wrk`, a closed loop, and how both see a service that stalls; three times
what it can bear; and a request of many images, pictures, and numbers as text.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.lab import results
from mlpkit import data, machine
from PIL import Image
from mlpkit.nn.models import LENET5
from mlpkit.training.recipe import Recipe

OURS = {"one by one": ("--longest", 1), "batches": (), "batches, wait 5 ms": ("--wait", 0.005)}
PEERS = {"mosec": "mosec_service", "litserve": "litserve_service"}
STALL = 0.3  # seconds for which a service is stopped, once a second
LUA = 'wrk.method = "POST"; wrk.headers["content-type"] = "application/octet-stream"; wrk.body = io.open("{}", "rb"):read("*a")'


@dataclass(frozen=True)
class Plan:
    """At which rates, for how long, how often. overload: seconds of three times what is borne."""

    rates: tuple[int, ...] = (200, 400, 600, 800, 1000, 1500, 2000, 2500, 3000, 4000, 5000)
    seconds: float = 3.0
    rounds: int = 2
    overload: float = 20.0
    peers: tuple[str, ...] = ("mosec", "litserve")


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure every service, and return the record."""
    versions = {each: machine.version(each) for each in ("uvicorn", "uvloop", "httptools", "fastapi", *plan.peers)}
    record = results.new("serving", plan=asdict(plan), libraries=versions)
    with tempfile.TemporaryDirectory() as folder:
        network, bodies = prepare(Path(folder))
        return results.collect(record, _runs(plan, network, bodies, progress), save)


def prepare(folder):
    """Return the file of a trained network, and a dict of bodies (content type, file)."""
    digits = data.load()
    recipe = Recipe(model=LENET5, optimizer="adam", lr=3e-3, batch_size=32, epochs=1)
    recipe.train(digits, engine="numba_conv")[0].save(folder / "network.npz")
    X = digits.validation.X
    for name, content in {"raw": X[0].tobytes(), "many": X[:16].tobytes()}.items():
        (folder / name).write_bytes(content)
    (folder / "json").write_text(json.dumps({"images": X[:1, 0].tolist()}))
    Image.fromarray(X[0, 0]).save(folder / "png", "PNG")
    kinds = {"json": "application/json", "png": "image/png"}
    return folder / "network.npz", {
        name: (kinds.get(name, "application/octet-stream"), folder / name) for name in ("raw", "many", "json", "png")
    }


def _runs(plan, network, bodies, progress):
    services = [*OURS, *(name for name in plan.peers if machine.version(name))]
    for _ in range(plan.rounds):
        lost: set[str] = set()  # services that can't keep up any more
        for rate in plan.rates:
            for name in (each for each in services if each not in lost):
                progress(f"{name}, {rate} a second")
                run = one(name, network, bodies["raw"], rate, plan.seconds)
                if run["got"] < 0.8 * rate or run["p50"] > 200_000:
                    lost.add(name)
                yield {"kind": "rate", "body": "raw", **run}
    for body in ("many", "json", "png"):
        for rate in (rate for rate in plan.rates if rate <= 1000):
            progress(f"{body}, {rate} a second")
            yield {"kind": "rate", "body": body, **one("batches", network, bodies[body], rate, plan.seconds)}
    yield from _stalled(network, bodies["raw"], progress)
    progress("overload")
    yield {"kind": "overload", **one("batches", network, bodies["raw"], 3 * plan.rates[-3], plan.overload)}


def one(name, network, body, rate, seconds, stalls=False):
    """Return what a service does at a rate, its CPU time an answer, and its memory before and after."""
    with running(name, network) as (port, process):
        load(port, body, min(rate, 200), 1.0)  # all is warm
        cpu, before = cpu_seconds(process), rss_mib(process)
        with stalling(process) if stalls else nullcontext():
            found = load(port, body, rate, seconds)
        used = cpu_seconds(process) - cpu
        answers = max(1, sum(found["codes"].values()))
        return {"service": name, **found, "cpu_us": round(1e6 * used / answers, 1), "rss_mib": [before, rss_mib(process)]}


def load(port, body, rate, seconds):
    """Return what `load.py`, in a process of its own, says."""
    kind, file = body
    options = json.dumps({"port": port, "rate": rate, "seconds": seconds, "kind": kind})
    command = [sys.executable, "-m", f"{__package__}.load", options]
    with open(file, "rb") as stream:
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True, check=True, cwd=results.ROOT)
    return json.loads(done.stdout)


@contextmanager
def running(name, network):
    """Yield the port of a service, and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["mlpkit", "serve", network, "--port", port, "--room", 512, *OURS.get(name, ())]
    if name in PEERS:
        command = [f"{__package__}.{PEERS[name]}", network, port]
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONPATH": str(results.ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *map(str, command)], env=env, cwd=results.ROOT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait(port, process)
        yield port, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait(port, process, seconds=90):
    request = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\ncontent-length: 784\r\n\r\n"
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
            sock.sendall(request + bytes(784))
            if b" 200 " in sock.recv(4096):
                return
        time.sleep(0.1)
    raise OSError(f"the service did not come up within {seconds} s.")


def _group(process):
    """Yield the fields of /proc/PID/stat of the processes in a service's session."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == process.pid:
                yield fields


def cpu_seconds(process):
    """Return for how long a service's processes have computed."""
    return sum(int(fields[11]) + int(fields[12]) for fields in _group(process)) / os.sysconf("SC_CLK_TCK")


def rss_mib(process):
    """Return how much memory a service's processes have."""
    return round(sum(int(fields[21]) for fields in _group(process)) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


@contextmanager
def stalling(process):
    """Stop a service for a moment, once a second."""
    over = threading.Event()

    def stop():
        while not over.wait(1 - STALL):
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(STALL)
            os.killpg(process.pid, signal.SIGCONT)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stalled(network, body, progress, seconds=5):
    """Yield how a closed loop and an open one see a service that stalls, at the same rate."""
    if not shutil.which("wrk"):
        return
    for stalls in (False, True):
        progress(f"wrk, {'a service that stalls' if stalls else 'as it is'}")
        with running("batches", network) as (port, process):
            load(port, body, 200, 1.0)
            script = body[1].with_name("post.lua")
            script.write_text(LUA.format(body[1]))
            command = ["wrk", "-t1", "-c8", f"-d{seconds}s", "--latency", "-s", script, f"http://127.0.0.1:{port}/classify"]
            with stalling(process) if stalls else nullcontext():
                said = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
        scale = {"us": 1, "ms": 1e3, "s": 1e6}
        shares = {f"p{share}": float(n) * scale[unit] for share, n, unit in re.findall(r"(\d+)% +([\d.]+)(us|ms|s)", said)}
        got = float(re.search(r"Requests/sec: +([\d.]+)", said)[1])  # type: ignore[index]
        yield {"kind": "closed", "service": "batches", "stalls": stalls, "got": got, **shares}
        progress("the same rate, open")
        yield {"kind": "open", "stalls": stalls, **one("batches", network, body, round(0.5 * got), seconds, stalls)}
