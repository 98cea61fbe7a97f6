"""A service in a process of its own: killed at random, starved, flooded, lied to. It answers, and it goes on."""

import concurrent.futures
import http.client
import io
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from running import ask, serving

pytest.importorskip("fastapi", reason="no fastapi here: the extra `serve` brings it")
pytest.importorskip("uvicorn", reason="no uvicorn here: the extra `serve` brings it")

pytestmark = pytest.mark.slow
KILLED = int(os.environ.get("MLPKIT_KILLED", "300"))  # requests; by hand once 10,000
HOSTILE = int(os.environ.get("MLPKIT_HOSTILE", "400"))  # by hand once 100,000
ONE = bytes(784)


@pytest.fixture(scope="module")
def server(network_file):
    with serving(network_file) as found:
        yield found


def raw(port, *parts, pause=0.0, timeout=20.0, half_close=False):
    """Send bytes, and return what comes back until the service closes, or nothing more comes."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        found = b""
        try:
            for part in parts:
                sock.sendall(part)
                time.sleep(pause)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(65536):
                found += data
                if b"\r\n\r\n" in found and b"connection: close" not in found.lower():
                    break
        except (ConnectionError, TimeoutError):
            pass
        return found


def head(length, kind="application/octet-stream", more=""):
    return (
        f"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{more}\r\n".encode()
    )


def memory_mib(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


# Killed


def client(port_of, count, lost, answered, lock):
    """Ask one request after another, on a connection that stays, whichever service is there."""
    connection, left = None, count
    while left:
        try:
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", port_of(), timeout=20)
                connection.connect()
            began = False
            connection.request("POST", "/classify", ONE, {"content-type": "application/octet-stream"})
            response = connection.getresponse()
            began = True  # a head has come: the body must, too
            body = response.read()
            if response.status == 200 and b"probability" in body:
                with lock:
                    answered.append(1)
                left -= 1
            else:
                assert response.status in (429, 503), (response.status, body)
        except (http.client.HTTPException, OSError) as error:
            if began:
                lost.append(error)
                return
            connection = None  # it was closed before a request was accepted: ask the next service


def test_killed_at_random_no_accepted_request_is_lost(network_file):
    """Each service is ended while clients ask; what it says that it accepted, clients have."""
    ports, lock = [0], threading.Lock()
    lost, answered = [], []
    clients = [
        threading.Thread(target=client, args=(lambda: ports[0], KILLED // 8, lost, answered, lock)) for _ in range(8)
    ]
    rng, started, kills = random.Random(0), False, 0
    while not started or any(each.is_alive() for each in clients):
        with serving(network_file) as found:  # its end must say that none is lost
            ports[0] = found.port
            if not started:
                started = [each.start() for each in clients]
            time.sleep(rng.uniform(0.05, 1.0))
            kills += 1
    assert not lost
    assert len(answered) == KILLED // 8 * 8
    assert kills > 1 or KILLED < 1000


def test_an_end_waits_for_a_body_that_is_still_coming(network_file):
    with serving(network_file) as found:
        with socket.create_connection(("127.0.0.1", found.port), timeout=20) as sock:
            sock.sendall(head(784) + ONE[:300])
            time.sleep(0.3)
            found.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            sock.sendall(ONE[300:])
            answer = sock.recv(65536)
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))


# Starved


def test_who_sends_no_head_is_sent_away_and_the_others_are_served_meanwhile(server):
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for i, sock in enumerate(idle):
        sock.sendall(b"POST /classify HTTP/1.1\r\nx: " + b"a" * i)
    assert ask(server.address, ONE)[0] == 200
    end = time.monotonic() + 15
    for sock in idle:
        sock.settimeout(max(0.1, end - time.monotonic()))
        assert sock.recv(10) == b""  # closed, within seconds
        sock.close()


def test_a_head_that_trickles_or_never_ends_is_given_up(server):
    start = time.monotonic()
    raw(server.port, *[b"G"] + [b"x"] * 40, pause=0.25, timeout=5)
    assert time.monotonic() - start < 15
    found = raw(server.port, b"GET / HTTP/1.1\r\n", *[b"x: " + b"a" * 8192 + b"\r\n"] * 50)
    assert not found.startswith(b"HTTP/1.1 200")
    assert ask(server.address, ONE)[0] == 200


def test_a_half_closed_connection_hangs_nothing(server):
    before = memory_mib(server.process)
    for _ in range(50):
        raw(server.port, head(784) + ONE, half_close=True)
        raw(server.port, head(784) + ONE[:100], half_close=True)
        raw(server.port, b"", half_close=True)
    assert ask(server.address, ONE)[0] == 200
    assert memory_mib(server.process) < before + 30


def test_ten_gigabytes_that_are_promised_or_sent_in_chunks_fill_nothing(server):
    before = memory_mib(server.process)
    assert b" 413 " in raw(server.port, head(10**10), ONE)
    chunked = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n"
    part = b"100000\r\n" + bytes(2**20) + b"\r\n"
    raw(server.port, chunked, *[part] * 64)
    assert ask(server.address, ONE)[0] == 200
    assert memory_mib(server.process) < before + 60


# Flooded


def hostile(rng, port):
    """Send something that no client should, and return what came back."""
    picture = io.BytesIO()
    pixels = np.frombuffer(rng.randbytes(40 * 40 * 3), np.uint8).reshape(40, 40, 3)
    Image.fromarray(pixels).save(picture, rng.choice(("PNG", "JPEG")))
    good = picture.getvalue()
    body = bytearray(good)
    for _ in range(rng.randint(0, 30)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    body = bytes(body[: rng.randint(1, len(body))])
    boundary = f"multipart/form-data; boundary={'b' * rng.randint(0, 90)}"
    part = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n' + body
    odd = "".join(chr(rng.randint(33, 126)) for _ in range(20))
    attacks = [
        lambda: raw(port, head(len(body), "image/png") + body, timeout=5),
        lambda: raw(port, head(len(body), "image/jpeg") + body, timeout=5),
        lambda: raw(port, head(len(part), boundary) + part, timeout=5),
        lambda: raw(port, head(len(part) + 9, boundary) + part, half_close=True, timeout=5),
        lambda: raw(port, head(10**10, "image/png") + body, timeout=5),
        lambda: raw(port, head(len(body), odd) + body, timeout=5),
        lambda: raw(port, head(784, more=f"{odd}\r\n") + ONE, timeout=5),
        lambda: raw(port, rng.randbytes(rng.randint(1, 400)), half_close=True, timeout=5),
        lambda: raw(port, head(784).replace(b"/classify", b"/classify?k=" + odd.encode()) + ONE, timeout=5),
        lambda: raw(port, head(len(body), "application/json") + body, timeout=5),
    ]
    return rng.choice(attacks)()


def test_hostile_requests_kill_hang_and_fill_nothing(server):
    ask(server.address, ONE)
    before = memory_mib(server.process)
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        codes = {}
        for found in pool.map(lambda seed: hostile(random.Random(seed), server.port), range(HOSTILE)):
            code = found[9:12].decode("latin-1")
            codes[code] = codes.get(code, 0) + 1
    assert "500" not in codes, codes
    assert codes.get("422", 0) > 0
    assert ask(server.address, ONE)[0] == 200
    assert memory_mib(server.process) < before + 80
    assert server.process.poll() is None
