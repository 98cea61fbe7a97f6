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
import urllib.request
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image

from experiments.lab import processes, results
from experiments.lab.bench import whole
from mlpkit import data, machine
from mlpkit.nn.models import LENET5
from mlpkit.training.recipe import Recipe

from .read import best

OURS = {"one by one": ("--longest", 1), "batches": (), "batches, wait 5 ms": ("--wait", 0.005)}
PEERS = {"mosec": "mosec_service", "litserve": "litserve_service"}
BODY = {"litserve": "json"}  # what a service is asked with, if not with bytes
LIBRARIES = ("uvicorn", "uvloop", "httptools", "fastapi", "grpcio")
HOPELESS_US = 200_000
MOST_OF_BODIES = 1000  # requests a second of other bodies
STALL, EVERY = 0.3, 2.0  # seconds for which a service is stopped, and from one stop to the next
LUA = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/octet-stream"
wrk.body = io.open("{}", "rb"):read("*a")
"""


@dataclass(frozen=True)
class Plan:
    """At which rates, for how long, how often. overload: seconds of three times the best rate of batches."""

    rates: tuple[int, ...] = (200, 500, 1000, 1500, 2000, 2500, 3000, 4000, 6000, 8000, 9000, 10_000, 12_000)
    seconds: float = 3.0
    rounds: int = 2
    overload: float = 60.0
    peers: tuple[str, ...] = ("mosec", "litserve")


USUAL = Plan()
THOROUGH = Plan(overload=120.0)


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure every service, and return the record."""
    versions = {each: machine.version(each) for each in (*LIBRARIES, *plan.peers)}
    record = results.new("serving", plan=asdict(plan), libraries=versions)
    with tempfile.TemporaryDirectory() as folder:
        network, bodies = prepare(Path(folder))
        return results.collect(record, _runs(plan, network, bodies, progress), save)


def prepare(folder):
    """Return the file of a trained network, and a dict of bodies (content type, file)."""
    dataset = data.load()
    recipe = Recipe(model=LENET5, optimizer="adam", lr=3e-3, batch_size=32, epochs=1)
    network, history = recipe.train(dataset, engine="numba_conv")
    whole(history)
    network.save(folder / "network.npz")
    X = dataset.validation.X
    for name, content in {"raw": X[0].tobytes(), "many": X[:16].tobytes()}.items():
        (folder / name).write_bytes(content)
    (folder / "json").write_text(json.dumps({"images": X[:1, 0].tolist()}))
    Image.fromarray(X[0, 0]).save(folder / "png", "PNG")
    kinds = {"json": "application/json", "png": "image/png"}
    return folder / "network.npz", {
        name: (kinds.get(name, "application/octet-stream"), folder / name) for name in ("raw", "many", "json", "png")
    }


def _runs(plan, network, bodies, progress):
    names = [*OURS, *(name for name in plan.peers if machine.version(name))]
    seen: list[dict] = []
    with ExitStack() as stack:
        services = {name: stack.enter_context(running(name, network)) for name in names}
        for _ in range(plan.rounds):
            lost: set[str] = set()  # services that can't keep up any more
            for rate in plan.rates:
                for name in (each for each in names if each not in lost):
                    progress(f"{name}, {rate} a second")
                    body = BODY.get(name, "raw")
                    run = ask(services[name], bodies[body], rate, plan.seconds)
                    if run["got"] < 0.8 * rate or run["p50"] > HOPELESS_US:
                        lost.add(name)
                    seen.append({"kind": "rate", "service": name, "body": body, **run})
                    yield seen[-1]
            for body in ("many", "json", "png"):
                for rate in (rate for rate in plan.rates if rate <= MOST_OF_BODIES):
                    progress(f"{body}, {rate} a second")
                    run = ask(services["batches"], bodies[body], rate, plan.seconds)
                    yield {"kind": "rate", "service": "batches", "body": body, **run}
        yield from _grpc(plan, network, progress)
        yield from _stalled(services["batches"], bodies["raw"], plan.seconds, progress)
    with running("batches", network) as service:
        progress("overload")
        rate = 3 * (best({"runs": seen}, service="batches") or plan.rates[0])
        yield {"kind": "overload", "service": "batches", **ask(service, bodies["raw"], rate, plan.overload)}


def ask(service, body, rate, seconds, stalls=False):
    """Return what a service, (port, process), does at a rate, its CPU time an answer, its memory before and after."""
    port, process = service
    load(port, body, min(rate, 100), 0.5, connections=8)  # all is warm
    cpu, before = cpu_seconds(process), rss_mib(process)
    with stalling(process) if stalls else nullcontext():
        found = load(port, body, rate, seconds)
    used, responses = cpu_seconds(process) - cpu, max(1, sum(found["codes"].values()))
    return {**found, "cpu_us": round(1e6 * used / responses, 1), "rss_mib": [before, rss_mib(process)]}


def load(port, body, rate, seconds, connections=512):
    """Return what `load.py`, in a process of its own, says."""
    kind, file = body
    options = json.dumps({"port": port, "rate": rate, "seconds": seconds, "connections": connections, "kind": kind})
    command = [sys.executable, "-m", f"{__package__}.load", options]
    with open(file, "rb") as stream:
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True, check=True, cwd=results.ROOT)
    return json.loads(done.stdout)


@contextmanager
def running(name, network):
    """Yield the port of a service that is up, and its process."""
    command = ["mlpkit", "serve", network, "--data", "none", *OURS.get(name, ()), "--port"]
    with started([f"{__package__}.{PEERS[name]}", network] if name in PEERS else command) as (port, process):
        _wait(port, process, name in BODY)
        yield port, process


@contextmanager
def started(command):
    """Yield a port, and the process of a module that serves there. command: the module, its arguments but the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = os.pathsep.join([str(results.ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONPATH": path}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *map(str, command), str(port)], env=env, cwd=results.ROOT,
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield port, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _grpc(plan, network, progress):
    """Yield what gRPC costs, at the rates that other bodies have, too."""
    if not machine.version("grpcio"):
        return
    module = f"{__package__}.grpc_service"
    with started([module, network]) as (port, process):
        for rate in (rate for rate in plan.rates if rate <= MOST_OF_BODIES):
            progress(f"gRPC, {rate} a second")
            processes.ask(module, "x", str(port), "50", "1")  # all is warm
            cpu = cpu_seconds(process)
            found = processes.ask(module, "x", str(port), str(rate), str(plan.seconds))
            used = cpu_seconds(process) - cpu
            yield {"kind": "grpc", "service": "grpc", **found, "cpu_us": round(1e6 * used / found["responses"], 1)}


def _wait(port, process, as_json, seconds=90):
    kind, body = (
        ("json", json.dumps({"images": [[[0] * 28] * 28]}).encode()) if as_json else ("octet-stream", bytes(784))
    )
    address, headers = f"http://127.0.0.1:{port}/classify", {"content-type": f"application/{kind}"}
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=5):
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
    """Stop a service for a moment, now and then."""
    over = threading.Event()

    def stop():
        while not over.wait(EVERY - STALL):
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


def _stalled(service, body, seconds, progress):
    """Yield how a closed loop and an open one, at half of its rate, see a service that stalls, and as it is."""
    if not shutil.which("wrk"):
        return
    port, process = service
    script = body[1].with_name("post.lua")
    script.write_text(LUA.format(body[1]))
    command = ["wrk", "-t1", "-c8", f"-d{seconds:.0f}s", "--latency", "-s", script, f"http://127.0.0.1:{port}/classify"]
    scale = {"us": 1, "ms": 1e3, "s": 1e6}
    for stalls in (False, True):
        progress(f"wrk and an open loop, {'a service that stalls' if stalls else 'as it is'}")
        with stalling(process) if stalls else nullcontext():
            said = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout
        shares = {f"p{n}": float(t) * scale[unit] for n, t, unit in re.findall(r"(\d+)% +([\d.]+)(us|ms|s)", said)}
        [got] = re.findall(r"Requests/sec: +([\d.]+)", said)
        yield {"kind": "closed", "service": "batches", "stalls": stalls, "got": float(got), **shares}
        run = ask(service, body, max(1, round(0.5 * float(got))), seconds, stalls)
        yield {"kind": "open", "service": "batches", "stalls": stalls, **run}
