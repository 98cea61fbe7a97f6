"""The service, asked in this process as a server would ask it: what it takes, what it refuses, and in which words."""

import asyncio
import contextlib
import io
import json
import math
import socket
import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image
from shared import one_sentence

pytest.importorskip("fastapi", reason="no fastapi here: the extra `serve` brings it")
pytest.importorskip("uvicorn", reason="no uvicorn here: the extra `serve` brings it")

from mlpkit.nn.layers import Flatten, Linear
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, mlp
from mlpkit.nn.network import Network
from mlpkit.serving import app, command
from mlpkit.serving.batching import Full
from mlpkit.serving.inputs import MOST_BYTES

RAW = "application/octet-stream"


@pytest.fixture(scope="module")
def service(network_file):
    return command.service(network_file, longest=8, capacity=16)


async def ask(
    service, body=b"", kind=RAW, query="", headers=(), method="POST", path="/classify", parts=None, gone=None
):
    """Return (status, headers, JSON or bytes). parts: of the body, as they come. gone: an event, the client's end."""
    heads = [(b"content-type", kind.encode("latin-1")), *headers]
    heads += [] if parts is not None else [(b"content-length", str(len(body)).encode())]
    coming = iter(parts if parts is not None else [body])
    sent = []
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": heads,
             "query_string": query.encode(), "http_version": "1.1", "root_path": "", "scheme": "http",
             "asgi": {"version": "3.0"}, "server": ("test", 80), "client": ("test", 1), "state": {}}  # fmt: skip

    async def receive():
        part = next(coming, None)
        if part is None:
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}
        if isinstance(part, float):
            await asyncio.sleep(part)
            part = b""
        return {"type": "http.request", "body": part, "more_body": parts is not None}

    async def send(message):
        sent.append(message)

    await asyncio.wait_for(service(scope, receive, send), 30)
    found = b"".join(message.get("body", b"") for message in sent[1:])
    heads = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], heads, json.loads(found) if heads["content-type"] == "application/json" else found


def run(service, *arguments, **options):
    async def main():
        async with service.running(None):
            return await ask(service, *arguments, **options)

    return asyncio.run(main())


def picture(image, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind)
    return buffer.getvalue()


def form(*files, boundary="b0"):
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="picture"; filename="a.png"\r\n\r\n'.encode()
    return b"".join(head + file + b"\r\n" for file in files) + f"--{boundary}--\r\n".encode()


def names(found):
    return [each["classes"][0]["name"] for each in found["predictions"]]


# What it takes


def test_bytes_numbers_pictures_and_forms_say_the_same(service, digits, network):
    X = digits.validation.X[:3]
    wanted = [str(label) for label in network.predict(X)]
    bodies = {
        RAW: X.tobytes(),
        "application/json": json.dumps({"images": X[:, 0].tolist()}).encode(),
        "multipart/form-data; boundary=b0": form(*(picture(x[0]) for x in X)),
    }
    for kind, body in bodies.items():
        status, _, found = run(service, body, kind)
        assert (status, names(found)) == (200, wanted), kind
    status, _, found = run(service, picture(255 - X[0, 0], "JPEG"), "image/jpeg")
    assert (status, names(found)) == (200, wanted[:1])


def test_the_k_likeliest_come_in_order_and_all_add_up_to_one(service, digits):
    status, _, found = run(service, digits.validation.X[0].tobytes(), query="k=10")
    sure = [each["probability"] for each in found["predictions"][0]["classes"]]
    assert (status, len(sure)) == (200, 10)
    assert sure == sorted(sure, reverse=True)
    assert sum(sure) == pytest.approx(1)


def test_it_shows_what_it_saw_and_where_the_reasons_lie(service, digits):
    _, _, found = run(service, digits.validation.X[0].tobytes(), query="explain=true")
    seen, because = (found["predictions"][0][name] for name in ("seen", "because"))
    assert seen.startswith("data:image/png;base64,")
    assert seen != because
    assert "seen" not in run(service, digits.validation.X[0].tobytes())[2]["predictions"][0]


@pytest.mark.parametrize(
    "query", ["k=0", "k=11", "k=-1", "k=x", "k=", "k=1e1", "k=9999999999", "explain=maybe", "k=%FF"]
)
def test_a_query_that_means_nothing_is_refused(service, digits, query):
    status, _, found = run(service, digits.validation.X[0].tobytes(), query=query)
    assert status == 422
    assert found["detail"].endswith(".")


def test_networks_of_rows_and_of_garments_are_served_too(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
    flat = Model((1, 28, 28), (Flatten(), Linear(10)))
    for name, model in {"rows": mlp(784, 16, 10), "garments": FASHION_CNN, "flat": flat}.items():
        Network("numba_conv", model).save(tmp_path / f"{name}.npz")
        made = command.service(tmp_path / f"{name}.npz", of=None, longest=4, capacity=4)
        for kind, body in ((RAW, image.tobytes()), ("image/png", picture(image))):
            status, _, found = run(made, body, kind, query="explain=1")
            assert (status, len(found["predictions"])) == (200, 1)


def test_outputs_that_are_not_finite_are_no_prediction(tmp_path):
    network = Network("numba_conv", Model((3, 8, 6), (Flatten(), Linear(4))))
    network.theta[: network.n_weights] = np.where(np.arange(network.n_weights) % 8 < 4, 3e38, -3e38)
    network.save(tmp_path / "network.npz")
    made = command.service(tmp_path / "network.npz", of=None, longest=4, capacity=4)
    status, _, found = run(made, bytes([255]) * 144)
    assert (status, "not finite" in found["detail"]) == (500, True)
    status, _, found = run(made, bytes(144), query="explain=1")
    assert (status, len(found["predictions"])) == (200, 1)


@pytest.mark.parametrize("model", [mlp(10, 4, 3), mlp(783, 10)])
def test_a_network_of_no_images_is_refused(tmp_path, model):
    Network("numba_conv", model).save(tmp_path / "network.npz")
    with pytest.raises(ValueError, match="classes of grey or coloured images"):
        command.service(tmp_path / "network.npz", of=None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"longest": 0}, "longest must be at least 1"),
        ({"capacity": 63}, "capacity must be at least 64, not 63"),
        *[({"wait": wait}, "wait must be a finite number, 0 or above") for wait in (-1, math.nan, math.inf)],
        *[({"target": target}, "target must be a finite number above 0") for target in (-1.0, 0.0, math.nan)],
        *[({"seconds": seconds}, "seconds must be a finite number above 0") for seconds in (0.0, -1.0, math.inf)],
        *[(each, "seconds must be above wait") for each in ({"wait": 3.0}, {"seconds": 1e9})],
    ],
)
def test_a_setting_that_is_none_is_refused_before_a_file_is_read(settings, words):
    with pytest.raises(ValueError, match=words) as caught:
        command.service("nowhere.npz", **settings)
    one_sentence(caught.value)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99999), ("127.0.0.1", -1), ("...", 0), ("no such host", 0)])
def test_where_nothing_can_listen_there_is_a_sentence(host, port):
    with pytest.raises(OSError, match="choose another --host or --port") as caught:
        command.run(None, host, port)
    one_sentence(caught.value, host, port)


def test_an_engine_of_integers_is_shown_images_of_the_data_set(network_file):
    with pytest.raises(ValueError, match="--data") as caught:
        command.service(network_file, "numba_int8", None)
    one_sentence(caught.value)
    made = command.service(network_file, "numba_int8", longest=4)
    (predict,) = made.predictions
    assert predict(np.zeros((2, 1, 28, 28), np.uint8)).shape == (2, 10)


def test_a_network_of_another_data_set_is_refused(tmp_path):
    Network("numba_conv", mlp(784, 7)).save(tmp_path / "network.npz")
    with pytest.raises(ValueError, match="--data"):
        command.service(tmp_path / "network.npz")


# What it refuses


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side):
    """Return a PNG of some kilobytes that says that it has side * side pixels."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")


SMALL = picture(np.zeros((30, 30), np.uint8))
IMAGE = [[0] * 28] * 28
REFUSED = {
    "no kind": (b"x", "", 415),
    "another kind": (b"x", "text/html", 415),
    "nothing": (b"", RAW, 422),
    "a byte too few": (bytes(783), RAW, 422),
    "too many images": (bytes(784 * 9), RAW, 422),
    "no picture": (b"no picture", "image/png", 422),
    "an empty picture": (b"", "image/jpeg", 422),
    "half a picture": (picture(np.eye(90, dtype=np.uint8) * 255)[:-60], "image/png", 422),
    "black": (SMALL, "image/png", 422),
    "a bomb": (bomb(9_000), "image/png", 413),
    "one beyond Pillow's limit": (bomb(60_000), "image/png", 422),
    "many scans": (picture(np.eye(9, dtype=np.uint8), "JPEG") + b"\xff\xda" * 200, "image/jpeg", 413),
    "no JSON": (b"{", "application/json", 422),
    "deep JSON": (b"[" * 100_000, "application/json", 422),
    "no object": (b"[]", "application/json", 422),
    "another name": (b'{"image": []}', "application/json", 422),
    "no images": (b'{"images": []}', "application/json", 422),
    "a long number": (b'{"images": [' + b"9" * 9999 + b"]}", "application/json", 422),
    "another shape": (json.dumps({"images": [IMAGE[1:]]}).encode(), "application/json", 422),
    "a text": (json.dumps({"images": [[["0"] * 28] * 28]}).encode(), "application/json", 422),
    "a yes": (json.dumps({"images": [[[True] * 28] * 28]}).encode(), "application/json", 422),
    "NaN": (json.dumps({"images": [[[float("nan")] * 28] * 28]}).encode(), "application/json", 422),
    "infinity": (json.dumps({"images": [[[float("inf")] * 28] * 28]}).encode(), "application/json", 422),
    "256": (json.dumps({"images": [[[256] * 28] * 28]}).encode(), "application/json", 422),
    "a half": (json.dumps({"images": [[[0.5] * 28] * 28]}).encode(), "application/json", 422),
    "too much JSON": (b" " * 2**21, "application/json", 413),
    "no boundary": (form(SMALL), "multipart/form-data", 422),
    "an odd boundary": (form(SMALL), 'multipart/form-data; boundary="', 422),
    "an empty form": (b"--b0--\r\n", "multipart/form-data; boundary=b0", 422),
    "no form": (b"no form", "multipart/form-data; boundary=b0", 422),
    "half a form": (form(SMALL)[:-20], "multipart/form-data; boundary=b0", 422),
    "a form of nine": (form(*[SMALL] * 9), "multipart/form-data; boundary=b0", 422),
    "a form of large pictures": (form(*[bomb(4_900)] * 5), "multipart/form-data; boundary=b0", 413),
    "a form with another file": (form(b"x"), "multipart/form-data; boundary=b0", 422),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_used_is_refused_in_a_sentence(service, name):
    body, kind, wanted = REFUSED[name]
    status, _, found = run(service, body, kind)
    assert status == wanted
    assert found["detail"].endswith(".")
    assert len(found["detail"]) < 400


def test_a_png_that_holds_a_jpegs_marks_is_a_picture(service, digits):
    plain = picture(digits.validation.X[0, 0])
    marked = plain[:-12] + chunk(b"teSt", b"\xff\xda" * 200) + plain[-12:]
    assert run(service, marked, "image/png") == run(service, plain, "image/png")


def test_ten_gigabytes_are_refused_before_any_of_them_is_read(service):
    read = []
    parts = (read.append(1) or bytes(2**20) for _ in range(10_000))
    status, headers, _ = run(service, headers=[(b"content-length", b"10000000000")], parts=parts)
    assert (status, headers["connection"], len(read)) == (413, "close", 0)
    for odd in (b"-1", b"1e9", b"9" * 400, b"\xb2"):
        assert run(service, headers=[(b"content-length", odd)], parts=[])[0] == 413


def test_a_body_without_a_length_is_counted_while_it_comes(service):
    read = []
    parts = (read.append(1) or bytes(2**20) for _ in range(10_000))
    assert run(service, parts=parts)[0] == 413
    assert len(read) == MOST_BYTES // 2**20 + 1


def test_a_body_that_comes_too_slowly_is_given_up(service, monkeypatch):
    monkeypatch.setattr(app, "SLOW", 0.05)
    status, headers, found = run(service, parts=[b"x", 5.0, b"y"])
    assert (status, headers["connection"]) == (408, "close")
    assert "did not come" in found["detail"]


# When too much is asked


class Slow:
    """The service with a prediction that waits until it is let go."""

    def __init__(self, service, monkeypatch, **settings):
        self.go, self.rows = threading.Event(), []
        predict = service.predictions[0]

        def stuck(rows):
            self.rows.append(len(rows))
            assert self.go.wait(20)
            return predict(rows)

        monkeypatch.setattr(service, "predictions", [stuck])
        for name, value in settings.items():
            monkeypatch.setattr(service, name, value)


async def until(true):
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


def test_a_full_queue_is_told_at_once_and_all_that_was_accepted_is_answered(service, digits, monkeypatch):
    slow, eight = Slow(service, monkeypatch), digits.validation.X[:8].tobytes()

    async def main():
        async with service.running(None):
            first = asyncio.ensure_future(ask(service, eight))
            await until(lambda: slow.rows)
            kept = [asyncio.ensure_future(ask(service, eight)) for _ in range(2)]
            await until(lambda: service.batcher.waiting == 16)
            status, headers, found = await ask(service, eight[:784])
            slow.go.set()
            return status, headers, found, [each[0] for each in await asyncio.gather(first, *kept)]

    status, headers, found, others = asyncio.run(main())
    assert (status, others) == (429, [200, 200, 200])
    assert int(headers["retry-after"]) >= 1
    assert "try again" in found["detail"]


def test_a_request_gets_its_deadline_even_if_the_prediction_hangs(service, digits, monkeypatch):
    slow = Slow(service, monkeypatch, seconds=0.1)

    async def main():
        async with service.running(None):
            found = await asyncio.gather(*[ask(service, digits.validation.X[0].tobytes()) for _ in range(4)])
            slow.go.set()
            return found

    assert [status for status, _, _ in asyncio.run(main())] == [504] * 4


def test_of_a_client_that_is_gone_nothing_is_computed(service, digits, monkeypatch):
    slow = Slow(service, monkeypatch)
    one, two = (digits.validation.X[:n].tobytes() for n in (1, 2))

    async def main():
        async with service.running(None):
            first = asyncio.ensure_future(ask(service, one))
            await until(lambda: slow.rows)
            gone = asyncio.Event()
            left = asyncio.ensure_future(ask(service, two, gone=gone))
            await until(lambda: service.batcher.waiting == 2)
            gone.set()
            assert (await left)[0] == 499
            slow.go.set()
            return (await first)[0]

    assert asyncio.run(main()) == 200
    assert slow.rows == [1]


def test_an_end_answers_what_was_accepted_and_refuses_the_rest(service, digits, monkeypatch):
    slow, one = Slow(service, monkeypatch), digits.validation.X[:1].tobytes()

    async def main():
        loop = asyncio.get_running_loop()
        async with service.running(None):
            kept = [asyncio.ensure_future(ask(service, one)) for _ in range(5)]
            await until(lambda: service.batcher.waiting + sum(slow.rows) == 5)
            closing = loop.run_in_executor(None, service.batcher.close)
            await until(lambda: not service.batcher._open)
            late = await ask(service, one)
            slow.go.set()
            assert await closing
            return late[0], [each[0] for each in await asyncio.gather(*kept)]

    assert asyncio.run(main()) == (503, [200] * 5)


def test_a_mistake_of_ours_is_500_and_the_service_goes_on(service, digits, monkeypatch):
    def fails(rows):
        raise ArithmeticError("below zero")

    one, predict = digits.validation.X[:1].tobytes(), service.predictions[0]
    monkeypatch.setattr(service, "predictions", [fails])
    status, _, found = run(service, one)
    assert status == 500
    assert "below zero" not in found["detail"]
    monkeypatch.setattr(service, "predictions", [predict])
    assert run(service, one)[0] == 200


def test_the_event_loop_computes_nothing(service, digits, monkeypatch):
    threads = []
    read, predict, image = type(service.reader).picture, service.predictions[0], digits.validation.X[0, 0]
    monkeypatch.setattr(type(service.reader), "picture", lambda *a: threads.append(threading.get_ident()) or read(*a))
    monkeypatch.setattr(service, "predictions", [lambda x: threads.append(threading.get_ident()) or predict(x)])
    assert run(service, picture(image), "image/png")[0] == 200
    assert len(set(threads) - {threading.get_ident()}) == len(threads) == 2


# While it is full


async def say(streams, *parts):
    """Send the parts of a request on a connection; return (status, head, JSON) of its response."""
    for part in parts:
        streams[1].write(part)
        await streams[1].drain()
        await asyncio.sleep(0.02)
    head = (await streams[0].readuntil(b"\r\n\r\n")).decode()
    size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return int(head[9:12]), head, json.loads(await streams[0].readexactly(size))


SHORT = b"POST /classify HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
HEAD = f"POST /classify?k=2 HTTP/1.1\r\nhost: x\r\ncontent-type: {RAW}\r\ncontent-length: 784\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def listening(service, monkeypatch):
    """Yield the server of a service, and its address."""
    server, sock = command.server(service), socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(server, "capture_signals", contextlib.nullcontext)
    running = asyncio.ensure_future(server.serve([sock]))
    await until(lambda: server.started)
    yield server, sock.getsockname()
    server.should_exit = True
    await running


def test_while_full_a_small_request_is_refused_by_its_head_and_its_connection_goes_on(service, digits, monkeypatch):
    one, head = digits.validation.X[:1].tobytes(), HEAD
    big = head.replace(b"784", b"20000")

    async def main():
        async with listening(service, monkeypatch) as (_, address):
            streams = await asyncio.open_connection(*address)
            found = [await say(streams, head + one)]
            monkeypatch.setattr(service.batcher, "full", lambda **_: Full(3))
            found += [await say(streams, head + one), await say(streams, head[:20], head[20:], one[:9], one[9:])]
            found += [await say(streams, big, bytes(20000)), await say(streams, head.replace(b"POST", b"PUT") + one)]
            found += [await say(streams, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")]
            monkeypatch.undo()
            found += [await say(streams, head + one)]
            streams[1].close()
            return found

    found = asyncio.run(main())
    assert [status for status, _, _ in found] == [200, 429, 429, 429, 405, 200, 200]
    assert service.accepted == service.done
    assert all("retry-after: 3" in head and "try again in 3 s" in told["detail"] for _, head, told in found[1:4])


def test_of_many_that_come_at_once_no_more_enter_than_there_is_room_for(service, digits, monkeypatch):
    slow, one, entered = Slow(service, monkeypatch), digits.validation.X[:1].tobytes(), []
    classify = service.classify
    monkeypatch.setattr(service, "classify", lambda *asked: entered.append(1) or classify(*asked))

    async def main():
        async with listening(service, monkeypatch) as (_, address):
            service.batcher.limit, before = 16, service.done
            clients = [await asyncio.open_connection(*address) for _ in range(60)]
            for _, writer in clients:
                writer.write(HEAD + one)  # nothing is awaited: the server sees all of them in one turn of the loop
            await until(lambda: service.done == before + 44)
            slow.go.set()
            found = [await say(streams) for streams in clients]
            for _, writer in clients:
                writer.close()
            return [status for status, _, _ in found]

    found = asyncio.run(main())
    assert (found.count(200), found.count(429), len(entered)) == (16, 44, 16)
    assert service.entering == 0


def test_a_client_that_reads_no_refusal_gets_no_more_of_them(service, monkeypatch):
    async def main():
        async with listening(service, monkeypatch) as (server, address):
            monkeypatch.setattr(service.batcher, "full", lambda **_: Full(3))
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, address)
                with contextlib.suppress(TimeoutError):
                    for _ in range(400):
                        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(client, 100 * SHORT), 2)
                [protocol] = server.server_state.connections
                return protocol.transport.get_write_buffer_size()

    assert asyncio.run(main()) < 1e6


# Beside predictions


def test_health_metrics_and_the_page(service, digits):
    async def main():
        async with service.running(None):
            await ask(service, digits.validation.X[:3].tobytes())
            return [await ask(service, method="GET", path=path) for path in ("/health", "/metrics", "/", "/nowhere")]

    (_, _, health), (_, _, metrics), (_, kind, page), (missing, *_) = asyncio.run(main())
    assert health == {"status": "ok", "classes": list("0123456789")}
    assert b'mlpkit_requests_total{code="200"}' in metrics
    assert b"mlpkit_batch_rows_bucket" in metrics
    assert kind["content-type"].startswith("text/html")
    assert b"<canvas" in page
    assert missing == 404


def test_another_method_is_told_which_one_to_take(service):
    status, headers, _ = run(service, method="GET")
    assert (status, headers["allow"]) == (405, "POST")


def test_the_page_asks_nobody_else(service):
    page = (command.__file__.rpartition("command.py")[0]) + "page.html"
    text = open(page, encoding="utf-8").read()  # noqa: SIM115
    assert "http://" not in text
    assert "https://" not in text


def test_openapi_tells_all_bodies_queries_and_refusals(service):
    _, _, found = run(service, method="GET", path="/openapi.json")
    told = found["paths"]["/classify"]["post"]
    assert {"200", "408", "413", "415", "422", "429", "503", "504"} <= set(told["responses"])
    assert set(told["requestBody"]["content"]) == {
        RAW,
        "image/png",
        "image/jpeg",
        "application/json",
        "multipart/form-data",
    }
    assert {each["name"] for each in told["parameters"]} == {"k", "explain"}
    assert set(found["paths"]) == {"/classify", "/health", "/metrics", "/"}
