"""A search whose scheduler, workers and client are killed at random: is anything lost, or done twice?

Each of them is a process of its own here. A client that was killed, or that gave up since its scheduler was, is started
again with the same command; so is the scheduler. A worker is started again by the process that watches over it.
"""

import collections
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from experiments.lab import results

STUDY = """
sampler = "random"
pruner = "none"
engine = "{engine}"
images = {images}
trials = {trials}
heartbeat = {heartbeat}
workers = {workers}
[recipe]
epochs = {epochs}
batch_size = 64
[search]
lr = {{ low = 0.01, high = 0.1, log = true }}
"""


def write(path, engine, images, trials, workers=2, epochs=2, heartbeat=5):
    """Write a study's file."""
    text = STUDY.format(
        engine=engine, images=images, trials=trials, workers=workers, epochs=epochs, heartbeat=heartbeat
    )
    path.write_text(text, encoding="utf-8")


def logged(study, choices, epochs, before=None):
    """Train as the search does; write first into a log that it was begun."""
    from mlpkit.search.task import train_to

    with open(study.path.with_suffix(".log"), "a", encoding="utf-8") as log:
        log.write(f"{choices['lr']!r}\n")
    return train_to(study, choices, epochs, before)


def client(path):
    """Be the search's client, whose workers write down what they begin; return the exit code."""
    from mlpkit.__main__ import main
    from mlpkit.search import run

    vars(run)["train_to"] = logged
    return main(["search", path])


class Processes:
    """The scheduler, on a port of its own, the workers and the client of a study, each in a session of its own."""

    def __init__(self, path, port, workers=2):
        self.path, self.port, self.workers = path, port, workers
        self.found = {}
        self.environment = os.environ | {
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "9"
        }  # chance may hit one often
        address = f"tcp://127.0.0.1:{port}"
        text = path.read_text(encoding="utf-8")
        path.write_text(f'cluster = "{address}"\n{text}', encoding="utf-8")
        worker = ["distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard", "--death-timeout", "5"]
        self.commands = {
            "scheduler": [
                "distributed.cli.dask_scheduler",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--no-dashboard",
            ],
            **{f"worker {number}": worker for number in range(workers)},
            "client": ["experiments.search.kills", str(path)],
        }

    def start(self):
        """Start whatever does not run; return the client's exit code if it has just ended, else None."""
        ended = self.found["client"].poll() if "client" in self.found else None
        if ended == 0:
            return 0
        for name, command in self.commands.items():
            if name not in self.found or self.found[name].poll() is not None:
                self.found[name] = self._started(name, command)
        return ended

    def _started(self, name, command):
        log = open(self.path.with_name(f"{name}.txt"), "ab")  # noqa: SIM115 (as long as the process has it)
        line = [sys.executable, "-W", "ignore", "-m", *command]
        return subprocess.Popen(
            line, stdout=log, stderr=log, cwd=results.ROOT, env=self.environment, start_new_session=True
        )

    def kill(self, name):
        """Kill a process with signal 9: of a worker the one that computes, not the one that watches over it."""
        pid = self.found[name].pid
        if name.startswith("worker"):
            pid = next(iter(_children(pid)), pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def end(self):
        """End all, and what they have started."""
        for process in self.found.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _children(pid):
    """Return the processes that compute for a worker: children that are no helper of Python's, newest first."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            line = (each / "cmdline").read_bytes()
            if parent == pid and b"spawn_main" in line:
                found.append(int(each.name))
    return sorted(found, reverse=True)


def killed(path, kills, seed=0, port=18786, least=0.5, most=2.5, patience=240, progress=print):
    """Run the study in `path` and kill so many processes at random; return what was killed, and what is left.

    least, most: seconds between two kills, once a worker has begun something since the last one. Raises TimeoutError
    where it has not ended in so many seconds after the last kill.
    """
    rng, processes = random.Random(seed), Processes(path, port)
    done: list[str] = []
    log = path.with_suffix(".log")
    log.touch()
    try:
        begun, last = 0, time.monotonic()
        while processes.start() != 0:
            time.sleep(0.1)
            if time.monotonic() - last > patience:
                raise TimeoutError(f"nothing has come of it for {patience} seconds: see the texts in {path.parent}.")
            if len(done) < kills and len(log.read_text().split()) > begun:
                time.sleep(rng.uniform(least, most))
                who = rng.choice([*processes.commands])
                processes.kill(who)
                done.append(who)
                progress(f"killed: {who}, number {len(done)} of {kills}")
                begun, last = len(log.read_text().split()), time.monotonic()
    finally:
        processes.end()
    return {"killed": done} | left(path)


def left(path):
    """Return what is in a study's file: whether it is whole, how many trials are in which state, begun, or double."""
    with sqlite3.connect(path.with_name("studies.db")) as file:
        (whole,) = file.execute("pragma integrity_check").fetchone()
        states = dict(file.execute("select state, count(*) from trials group by state"))
        values = file.execute("select trial_id, count(*) from trial_values group by trial_id").fetchall()
        chosen = file.execute(
            "select param_value from trial_params join trials using (trial_id) where state = 'COMPLETE'"
        ).fetchall()
    begun = collections.Counter(path.with_suffix(".log").read_text().split())
    return {
        "whole": whole,
        "states": states,
        "results": len(values),
        "twice": sum(count > 1 for _, count in values) + len(chosen) - len(set(chosen)),
        "begun": sum(begun.values()),
        "tried": len(begun),
    }


if __name__ == "__main__":
    sys.exit(client(sys.argv[1]))
