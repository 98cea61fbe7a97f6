"""A service in a process of its own, as a reader starts it."""

import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]


@contextmanager
def serving(network_file, *options):
    """Yield a running service: `address`, `port`, `process`. Its end, by SIGTERM, must be a good one."""
    command = [sys.executable, "-m", "mlpkit", "serve", str(network_file), "--port", "0", *map(str, options)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=ROOT
    ) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("serving at http://"), line + process.stdout.read()
            address = line.split()[2].rstrip(",")
            server = SimpleNamespace(address=address, port=int(address.strip("/").rsplit(":", 1)[1]), process=process)
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            server_said = process.communicate(timeout=30)[0]
    assert process.returncode == 0, server_said
    assert ", 0 lost" in server_said, server_said


def ask(address, body=None, kind="application/octet-stream", path="classify", timeout=20):
    """Return (status, body) of a request."""
    request = urllib.request.Request(address + path, body, {"content-type": kind} if body is not None else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
