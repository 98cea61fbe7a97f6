"""The right images are found, wrong ones are refused by name, and every batch is what it should be."""

import gzip
import hashlib
import os
import threading
import time
import tracemalloc
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import idx_bytes, one_sentence

from mlpkit import data
from mlpkit.data import downloads, originals, sets
from mlpkit.data.idx import IDXError
from mlpkit.data.sets import fashion_mnist, fashion_mnist_sample, mnist
from mlpkit.nn.models import MLP
from mlpkit.nn.network import Network
from mlpkit.optim import SGD
from mlpkit.training.fit import fit

MNIST_FOLDER = Path(data.__file__).parents[2] / "data" / "mnist"
FASHION_HERE = (originals.DEBIAN / "fashion-mnist").exists()


@pytest.fixture(scope="module")
def digits():
    return data.load()


@pytest.fixture(scope="module")
def rows():
    return data.load(scaled=True)


COUNTS = 55_000, 5_000, 10_000


def test_mnist_has_its_shapes_and_types(digits):
    assert [split.X.shape for split in digits[1:4]] == [(n, 1, 28, 28) for n in COUNTS]
    for X, y in digits[1:4]:
        assert (X.dtype, y.dtype) == (np.uint8, np.int64)
        assert y.shape == (len(X),)
        assert X.flags.c_contiguous
        assert (X.min(), X.max()) == (0, 255)
    assert (digits.name, digits.classes) == ("mnist", tuple("0123456789"))


def test_scaled_images_are_rows_of_numbers_from_zero_to_one(digits, rows):
    """The same pixels in the same order, over 255."""
    assert [split.X.shape for split in rows[1:4]] == [(n, 784) for n in COUNTS]
    for (X, y), (pixels, labels) in zip(rows[1:4], digits[1:4], strict=True):
        assert (X.dtype, y.dtype) == (np.float32, np.int64)
        assert X.flags.c_contiguous
        assert (X.min(), X.max()) == (0, 1)
        assert_array_equal(X[:500], pixels[:500].reshape(500, -1) / np.float32(255))
        assert_array_equal(y, labels)


def test_images_may_be_looked_at_as_rows_without_a_copy(digits):
    flat = data.flatten(digits.test.X)
    assert (flat.shape, flat.dtype) == ((10_000, 784), np.uint8)
    assert np.shares_memory(flat, digits.test.X)


def test_mnist_has_its_known_numbers(rows):
    """From the counts, mean and standard deviation that are quoted for MNIST everywhere."""
    y, X = np.concatenate([rows.train.y, rows.validation.y]), rows.train.X
    assert_array_equal(y[:10], [5, 0, 4, 1, 9, 2, 1, 3, 1, 4])
    assert_array_equal(np.bincount(y), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    assert_array_equal(np.bincount(rows.test.y), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    assert_allclose([X.mean(dtype=np.float64), X.std(dtype=np.float64)], [0.1307, 0.3081], atol=5e-4)


# A data set of the right form, small, whose checksums are made to match.

SHAPES = {"train-images-idx3-ubyte": (20, 28, 28), "train-labels-idx1-ubyte": (20,)}
SHAPES |= {"t10k-images-idx3-ubyte": (6, 28, 28), "t10k-labels-idx1-ubyte": (6,)}


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Return the bytes of four .gz files by name, which now are both data sets; nothing else is to be found."""
    rng = np.random.default_rng(0)
    unpacked = {
        name: idx_bytes(rng.integers(256 if len(shape) > 1 else 10, size=shape, dtype=np.uint8))
        for name, shape in SHAPES.items()
    }
    packed = {f"{name}.gz": gzip.compress(content) for name, content in unpacked.items()}
    registry = tuple(
        originals.File(name, *(hashlib.sha256(each).hexdigest() for each in (unpacked[name], gz)), len(gz))
        for name, gz in ((name, packed[f"{name}.gz"]) for name in SHAPES)
    )
    for module in (mnist, fashion_mnist):
        ours = module.ORIGINALS._replace(files=registry)
        monkeypatch.setattr(module, "ORIGINALS", ours)
        monkeypatch.setattr(module, "read", ours.read)
    monkeypatch.setattr(originals, "N_TRAIN", 15)
    monkeypatch.setattr(originals, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(fashion_mnist, "SOURCES", ("http://127.0.0.1:9/",))  # nobody answers there
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("MLPKIT_DATA", raising=False)
    return packed


def put(files, folder):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def check_small(dataset):
    assert [split.X.shape for split in dataset[1:4]] == [(n, 1, 28, 28) for n in (15, 5, 6)]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_reader_may_say_where_the_files_are(name, files, tmp_path, monkeypatch):
    monkeypatch.setenv("MLPKIT_DATA", str(put(files, tmp_path / "mine" / name).parent))
    check_small(data.load(name))


def test_the_folder_may_hold_the_files_themselves(files, tmp_path, monkeypatch):
    monkeypatch.setenv("MLPKIT_DATA", str(put(files, tmp_path / "mine")))
    check_small(data.load("fashion-mnist"))


def test_debians_package_is_found(files, tmp_path):
    put(files, tmp_path / "debian" / "fashion-mnist")
    dataset = data.load("fashion-mnist")
    check_small(dataset)
    assert (dataset.name, dataset.classes[9]) == ("fashion-mnist", "Ankle boot")


def test_unpacked_files_do_as_well(files, tmp_path, monkeypatch):
    unpacked = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    monkeypatch.setenv("MLPKIT_DATA", str(put(unpacked, tmp_path / "mine")))
    check_small(data.load("fashion-mnist"))


def test_a_folder_with_three_of_the_four_files_is_passed_over(files, tmp_path, monkeypatch):
    monkeypatch.setenv("MLPKIT_DATA", str(put(dict(list(files.items())[:3]), tmp_path / "mine")))
    put(files, tmp_path / "debian" / "fashion-mnist")
    check_small(data.load("fashion-mnist"))


def test_the_readers_own_files_come_before_debians(files, tmp_path, monkeypatch):
    monkeypatch.setenv("MLPKIT_DATA", str(put(files, tmp_path / "mine" / "fashion-mnist").parent))
    put(dict.fromkeys(files, b"never read"), tmp_path / "debian" / "fashion-mnist")
    check_small(data.load("fashion-mnist"))


def test_a_tilde_is_the_readers_home(files, tmp_path, monkeypatch):
    """Where no shell has put it there, as from a notebook's `%env`."""
    put(files, tmp_path / "mine")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("MLPKIT_DATA", "~/mine")
    check_small(data.load("fashion-mnist"))


IN_THE_WAY = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a secret": lambda path: path.touch(0),
}
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other kinds of files")
not_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")


@posix
@pytest.mark.parametrize("name", ["t10k-labels-idx1-ubyte.gz", "train-images-idx3-ubyte"])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[not_root] * (kind == "a secret")) for kind in IN_THE_WAY])
def test_what_stands_in_a_files_place_is_told(kind, name, files, tmp_path, monkeypatch):
    """It is not passed over for the next folder, waited for, or written to."""
    folder = put(
        {each: files[each] for each in files if not each.startswith(name)}, tmp_path / "mine" / "fashion-mnist"
    )
    IN_THE_WAY[kind](folder / name)
    check_unreadable(folder.parent, folder / name, monkeypatch)


@posix
@pytest.mark.parametrize(
    "setting", ["long" * 64, "deep/" * 999, "file", "file/below", pytest.param("locked", marks=not_root)]
)
def test_a_setting_that_can_be_no_folder_is_told(setting, files, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir(0)
    check_unreadable(tmp_path / setting, tmp_path / setting / "fashion-mnist", monkeypatch)


def check_unreadable(setting, path, monkeypatch):
    monkeypatch.setenv("MLPKIT_DATA", str(setting))
    for call in (partial(data.load, "fashion-mnist"), data.download):
        with pytest.raises(OSError, match="can't be read") as caught:
            call()
        one_sentence(caught.value, path, "MLPKIT_DATA")


@pytest.mark.parametrize("name", SHAPES)
def test_one_wrong_pixel_is_found(name, files, tmp_path, monkeypatch):
    wrong = bytearray(gzip.decompress(files[f"{name}.gz"]))
    wrong[-1] ^= 1
    folder = put(files | {f"{name}.gz": gzip.compress(wrong)}, tmp_path / "mine")
    monkeypatch.setenv("MLPKIT_DATA", str(folder))
    with pytest.raises(IDXError) as caught:
        data.load("fashion-mnist")
    one_sentence(caught.value, folder / f"{name}.gz", "SHA-256")


def test_two_files_with_their_names_swapped_are_found(files, tmp_path, monkeypatch):
    train, test = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"
    folder = put(files | {train: files[test], test: files[train]}, tmp_path / "mine")
    monkeypatch.setenv("MLPKIT_DATA", str(folder))
    with pytest.raises(IDXError) as caught:
        data.load("fashion-mnist")
    one_sentence(caught.value, folder / train, "not the original train-images-idx3-ubyte")


def test_a_damaged_file_is_named(files, tmp_path, monkeypatch):
    name = "t10k-labels-idx1-ubyte.gz"
    folder = put(files | {name: files[name][:-9]}, tmp_path / "mine")
    monkeypatch.setenv("MLPKIT_DATA", str(folder))
    with pytest.raises(IDXError) as caught:
        data.load("fashion-mnist")
    one_sentence(caught.value, folder / name, "damaged or cut short")


def test_mnist_itself_is_checked(tmp_path, monkeypatch):
    """Fashion-MNIST's files have the names and the sizes of MNIST's."""
    bundled = {path.name: path.read_bytes() for path in MNIST_FOLDER.glob("*.gz")}
    name = "train-images-idx3-ubyte.gz"
    put(bundled | {name: gzip.compress(idx_bytes(np.zeros((60_000, 28, 28), np.uint8)), 1)}, tmp_path / "mnist")
    monkeypatch.setenv("MLPKIT_DATA", str(tmp_path))
    with pytest.raises(IDXError) as caught:
        data.load("mnist")
    one_sentence(caught.value, tmp_path / "mnist" / name, "not the original")


@pytest.mark.skipif(not FASHION_HERE, reason="no Fashion-MNIST here (Debian: dataset-fashion-mnist)")
def test_the_real_fashion_mnist():
    dataset = data.load("fashion-mnist")
    assert [split.X.shape for split in dataset[1:4]] == [(n, 1, 28, 28) for n in COUNTS]
    assert_array_equal(np.bincount(dataset.test.y), [1000] * 10)


def test_a_sample_of_fashion_mnist_comes_along():
    sample = data.load("fashion-mnist-sample")
    assert [split.X.shape for split in sample[1:4]] == [(0, 1, 28, 28), (0, 1, 28, 28), (2000, 1, 28, 28)]
    assert [split.y.shape for split in sample[1:4]] == [(0,), (0,), (2000,)]
    assert (sample.test.X.dtype, sample.test.y.dtype, sample.classes[8]) == (np.uint8, np.int64, "Bag")
    assert_array_equal(np.bincount(sample.test.y), [200, 203, 214, 190, 219, 195, 197, 200, 194, 188])
    rows = data.load("fashion-mnist-sample", scaled=True)
    assert [split.X.shape for split in rows[1:4]] == [(0, 784), (0, 784), (2000, 784)]
    assert_array_equal(rows.test.X, data.scale(sample.test.X))


@pytest.mark.skipif(not FASHION_HERE, reason="no Fashion-MNIST here (Debian: dataset-fashion-mnist)")
def test_the_sample_is_the_first_of_the_test_images():
    sample, whole = data.load("fashion-mnist-sample").test, data.load("fashion-mnist").test
    assert_array_equal(sample.X, whole.X[:2000])
    assert_array_equal(sample.y, whole.y[:2000])


def test_nobody_trains_on_a_sample_of_test_images():
    network = Network(model=MLP)
    with pytest.raises(ValueError, match="inputs must have shape") as caught:
        fit(network, SGD(network, 0.1), data.load("fashion-mnist-sample").train)
    one_sentence(caught.value, "(0, 1, 28, 28)")
    assert fashion_mnist_sample.TEST_ONLY  # so the command line does not offer it


def test_the_folder_is_the_list_of_the_data_sets(tmp_path, monkeypatch):
    assert data.names() == ("mnist", "fashion-mnist", "fashion-mnist-sample")
    (tmp_path / "of_mine.py").write_text("CLASSES = ('a', 'b')\nread = lambda: [([[1.0]], [0])] * 3\n")
    monkeypatch.setattr(sets, "__path__", [*sets.__path__, str(tmp_path)])
    assert data.names() == ("mnist", "fashion-mnist", "fashion-mnist-sample", "of-mine")
    found = data.load("of-mine")
    assert (found.name, found.test.y, found.classes) == ("of-mine", [0], ("a", "b"))


def test_each_data_set_says_what_it_is():
    for name in data.names():
        source = data.source(name)
        assert source.__doc__.partition(":")[0].lower().replace(" ", "-") in (name, f"a-sample-of-{name[:-7]}")
        assert len(source.CLASSES) == 10
        assert hasattr(source, "download") == hasattr(source, "BYTES")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist-sample"])
def test_what_comes_along_is_not_downloaded(name):
    with pytest.raises(ValueError, match="is not downloaded") as caught:
        data.download(name=name)
    one_sentence(caught.value, name)


@pytest.mark.parametrize("name", ["cifar", None, 3, ["mnist"], "", "fashion_mnist", "../idx", "Mnist"])
def test_an_unknown_data_set_is_refused_with_the_names_there_are(name):
    for ask in (data.load, data.source, lambda name: data.download(name=name)):
        with pytest.raises(ValueError, match="there is no data set") as caught:
            ask(name)
        one_sentence(caught.value, repr(name), "mnist, fashion-mnist")


def test_without_the_files_mnist_says_what_to_do(files, monkeypatch, tmp_path):
    monkeypatch.setattr(originals, "__file__", str(tmp_path / "site-packages" / "mlpkit" / "data" / "originals.py"))
    with pytest.raises(FileNotFoundError) as caught:
        data.load("mnist")
    one_sentence(caught.value, "MLPKIT_DATA", tmp_path / "debian")


def test_mnist_in_the_place_of_fashion_mnist_is_told_with_how_to_get_the_other(monkeypatch, tmp_path):
    put({path.name: path.read_bytes() for path in MNIST_FOLDER.glob("*-ubyte.gz")}, tmp_path / "mine")
    monkeypatch.setattr(originals, "DEBIAN", tmp_path)
    monkeypatch.setenv("MLPKIT_DATA", str(tmp_path / "mine"))
    assert len(data.load("mnist").test.X) == 10_000
    with pytest.raises(IDXError) as caught:
        data.load("fashion-mnist")
    one_sentence(caught.value, tmp_path / "mine", "python -m mlpkit download", "Fashion-MNIST")


# Downloading


class Server:
    """A web server on this machine: it gives the files, but answers for those in `lies` as these functions do."""

    def __init__(self, files, **lies):
        self.files, self.lies, self.asked, self.ended = files, lies, [], threading.Event()

    def __enter__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                outer.asked.append(name)
                with suppress(OSError):  # the other side has heard enough
                    outer.lies.get(name.partition("-")[0], whole)(self, outer.files[name], outer.ended)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()  # so soon it can be ended
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        return self

    def __exit__(self, *error):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


def whole(answer, content, ended, status=200, length=None):
    answer.send_response(status)
    if length is not False:
        answer.send_header("Content-Length", str(len(content) if length is None else length))
    answer.end_headers()
    answer.wfile.write(content)


def missing(answer, content, ended):
    whole(answer, b"<html>no such page</html>", ended, 404)


def log_in(answer, content, ended):
    whole(answer, b"<html>Log in to the airport's network</html>", ended)


def cut(answer, content, ended):
    whole(answer, content[:-5], ended)


def cut_in_flight(answer, content, ended):
    whole(answer, content[:-5], ended, length=len(content))


def flipped(answer, content, ended):
    whole(answer, bytes([content[0] ^ 1]) + content[1:], ended)


def endless(answer, content, ended):
    whole(answer, content, ended, length=False)
    while not ended.is_set():
        answer.wfile.write(bytes(2**16))


def silent(answer, content, ended):
    whole(answer, content[:10], ended, length=len(content))
    ended.wait(60)


def dripping(answer, content, ended):
    whole(answer, b"", ended, length=len(content))
    for byte in content:
        if not ended.wait(0.1):
            answer.wfile.write(bytes([byte]))


def somewhere_else(answer, content, ended):
    answer.send_response(302)
    answer.send_header("Location", "http://127.0.0.1:9/elsewhere")
    answer.end_headers()


def in_circles(answer, content, ended):
    answer.send_response(302)
    answer.send_header("Location", answer.path)
    answer.end_headers()


def to_no_host(answer, content, ended):
    answer.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n")


def to_a_long_host(answer, content, ended):
    answer.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: http://%b.x/\r\nContent-Length: 0\r\n\r\n" % (70 * b"a"))


def to_a_local_file(answer, content, ended):
    answer.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/hostname\r\nContent-Length: 0\r\n\r\n")


def flood(before, again, pause=0.0):
    """Return a lie that sends some bytes, then others until it is heard no more."""

    def lie(answer, content, ended):
        answer.wfile.write(before)
        while not ended.wait(pause):
            answer.wfile.write(again)

    return lie


BOMB = gzip.compress(bytes(2**24))
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
FLOODS = {
    "a redirect's endless body": flood(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\n" + CHUNKED, b"10000\r\n" + bytes(2**16) + b"\r\n"
    ),
    "a redirect that is unpacked": lambda answer, content, ended: answer.wfile.write(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Encoding: gzip\r\n\r\n" + BOMB
    ),
    "a header that drips": flood(b"HTTP/1.1 200 OK\r\n", b"a", 0.05),
    "100 Continue, slowly": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
    "100 Continue, fast": flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "trailers, slowly": flood(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"0\r\n", b"a: b\r\n", 0.05),
    "trailers, fast": flood(b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"0\r\n", b"a: b\r\n" * 1000),
}
for name, each in FLOODS.items():
    each.__name__ = name
LIES = (
    *(missing, log_in, cut, cut_in_flight, flipped, endless, silent, dripping, somewhere_else, in_circles),
    *(to_no_host, to_a_long_host, to_a_local_file, *FLOODS.values()),
)


@pytest.fixture
def here(files, monkeypatch, tmp_path):
    """Return the folder that downloads go to."""
    monkeypatch.setenv("MLPKIT_DATA", str(tmp_path / "here"))
    monkeypatch.setattr(downloads, "SILENCE", 0.2)
    monkeypatch.setattr(downloads, "LONGEST", 0.5)
    return tmp_path / "here" / "fashion-mnist"


def test_nothing_is_downloaded_by_surprise(files, here, monkeypatch):
    with Server(files) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        with pytest.raises(FileNotFoundError) as caught:
            data.load("fashion-mnist")
        assert server.asked == []
    one_sentence(caught.value, "python -m mlpkit download", "31 MB", "MLPKIT_DATA", here)


def test_fashion_mnist_is_downloaded_once(files, here, monkeypatch):
    came = []
    with Server(files) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        data.download(came.append)
        assert sorted(server.asked) == sorted(files)
        assert sum(came) == sum(map(len, files.values()))
        assert sorted(data.download()) == sorted(here / name for name in files)
        assert len(server.asked) == 4
    check_small(data.load("fashion-mnist"))
    assert {path.name: path.read_bytes() for path in here.iterdir()} == files


def test_what_has_come_is_not_asked_for_again(files, here, monkeypatch):
    with Server(files, t10k=missing) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        with pytest.raises(OSError, match="t10k"):
            data.download()
        assert sorted(path.name for path in here.iterdir()) == sorted(name for name in files if "train" in name)
        server.lies, server.asked = {}, []
        data.download()
        assert sorted(server.asked) == sorted(name for name in files if "t10k" in name)


def test_a_damaged_file_is_set_aside_and_asked_for_again(files, here, monkeypatch):
    damaged = min(files)
    here.mkdir(parents=True)
    for name in files:
        (here / name).write_bytes(files[name][: 100 if name == damaged else None])
    with Server(files) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        data.download()
        assert server.asked == [damaged]
    check_small(data.load("fashion-mnist"))
    assert [path.read_bytes() for path in here.glob("*.previous")] == [files[damaged][:100]]


def test_what_is_whole_in_another_folder_is_not_asked_for(files, here, monkeypatch):
    elsewhere = here.parents[1] / "elsewhere"
    (elsewhere / "fashion-mnist").mkdir(parents=True)
    for name in files:
        (elsewhere / "fashion-mnist" / name).write_bytes(files[name])
    monkeypatch.setattr(originals, "DEBIAN", elsewhere)
    with Server(files) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        assert {path.parent for path in data.download()} == {elsewhere / "fashion-mnist"}
        assert server.asked == []


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_of_a_server_that_lies_nothing_is_kept(lie, files, here, monkeypatch):
    begin = time.monotonic()
    with Server(files, train=lie) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        with pytest.raises(OSError, match="could not be downloaded") as caught:
            data.download()
        assert len(set(server.asked)) == 1
    assert time.monotonic() - begin < 30
    one_sentence(caught.value, "train-images-idx3-ubyte.gz", server.url, "MLPKIT_DATA")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_where_one_source_fails_the_other_is_asked(lie, files, here, monkeypatch):
    with Server(files, t10k=lie) as first, Server(files) as second:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (first.url, second.url))
        data.download()
    check_small(data.load("fashion-mnist"))


@pytest.mark.parametrize("name", FLOODS)
def test_nothing_that_comes_along_fills_the_memory(name, files, here, monkeypatch):
    monkeypatch.setattr(downloads, "AROUND", 2**16)
    with Server(files, t10k=FLOODS[name], train=FLOODS[name]) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        tracemalloc.start()
        try:
            with pytest.raises(OSError, match="could not be downloaded"):
                data.download()
            assert tracemalloc.get_traced_memory()[1] < 2**23  # the server's own bytes, too
        finally:
            tracemalloc.stop()


def test_ctrl_c_leaves_nothing_of_a_file(files, here, monkeypatch):
    def interrupt(count):
        raise KeyboardInterrupt

    with Server(files) as server:
        monkeypatch.setattr(fashion_mnist, "SOURCES", (server.url,))
        with pytest.raises(KeyboardInterrupt):
            data.download(interrupt)
    assert list(here.iterdir()) == []


def test_without_a_network_the_reader_learns_what_to_do(files, here):
    with pytest.raises(OSError, match="could not be downloaded") as caught:
        data.download()
    one_sentence(caught.value, "Fashion-MNIST", "MLPKIT_DATA")


def test_the_first_source_is_asked_in_secret():
    assert fashion_mnist.SOURCES[0].startswith("https://")


def test_a_file_that_promises_more_than_its_data_set_has_is_not_unpacked(files, tmp_path, monkeypatch):
    folder = put(files, tmp_path / "given" / "mnist")
    zeros = np.zeros((2000, 28, 28 * 2), np.uint8)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(zeros)))
    monkeypatch.setenv("MLPKIT_DATA", str(tmp_path / "given"))
    monkeypatch.setattr(originals, "MOST", 2000 * 28 * 28)
    monkeypatch.setattr(np, "empty", lambda *arguments: pytest.fail("it was given memory"))
    with pytest.raises(IDXError) as caught:
        data.load("mnist")
    one_sentence(caught.value, "train-images", "promises")


# From images to batches


def test_scale_makes_rows_from_zero_to_one():
    images = np.array([[[0, 51], [102, 255]], [[255, 0], [0, 0]]], np.uint8)
    rows = data.scale(images)
    assert rows.dtype == np.float32
    assert_allclose(rows, [[0, 0.2, 0.4, 1], [1, 0, 0, 0]], rtol=1e-6)
    assert images.max() == 255  # its own memory


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, bool])
def test_scale_refuses_what_is_no_image(dtype):
    with pytest.raises(TypeError, match="uint8") as caught:
        data.scale(np.ones((2, 28, 28), dtype))
    one_sentence(caught.value, np.dtype(dtype))


def test_scale_refuses_what_is_no_array():
    with pytest.raises(TypeError, match="images must be an array, not list") as caught:
        data.scale([[0, 255]])
    one_sentence(caught.value)


@pytest.mark.parametrize("scaled", ["no", "False", 1, None])
def test_whether_images_are_scaled_is_yes_or_no(scaled):
    with pytest.raises(TypeError, match="scaled must be True or False") as caught:
        data.load(scaled=scaled)
    one_sentence(caught.value)


def test_one_hot():
    rows = data.one_hot(np.array([2, 0], np.uint8), classes=3)
    assert rows.dtype == np.float32
    assert_array_equal(rows, [[0, 0, 1], [1, 0, 0]])
    assert data.one_hot([9]).shape == (1, 10)
    assert data.one_hot(np.zeros(0, int)).shape == (0, 10)


@pytest.mark.parametrize(
    ("labels", "error"),
    [([10], ValueError), ([-1], ValueError), ([1.0], TypeError), ([[1]], ValueError), (3, ValueError)],
)
def test_one_hot_refuses_what_is_no_label(labels, error):
    with pytest.raises(error, match="labels must"):
        data.one_hot(np.array(labels))


@pytest.mark.parametrize(("classes", "error"), [(0, ValueError), (-5, ValueError), (2.5, TypeError), ("3", TypeError)])
def test_one_hot_refuses_a_count_of_classes_that_is_none(classes, error):
    with pytest.raises(error, match="classes must be") as caught:
        data.one_hot([0, 1], classes)
    one_sentence(caught.value)


@pytest.mark.parametrize("look", [lambda labels: labels, list, np.ma.MaskedArray.tolist])
def test_one_hot_has_no_row_for_a_masked_label(look):
    with pytest.raises(TypeError, match="labels must"):
        data.one_hot(look(np.ma.array([2, 0, 1], mask=[0, 1, 0])))


@given(n=st.integers(0, 50), batch_size=st.integers(1, 60))
def test_batches_have_every_index_once_in_order(n, batch_size):
    order = np.random.default_rng(n).permutation(n)
    pieces = list(data.batches(order, batch_size))
    assert_array_equal(np.concatenate([order[:0], *pieces]), order)
    assert [len(piece) for piece in pieces[:-1]] == [batch_size] * (len(pieces) - 1)
    assert all(0 < len(piece) <= batch_size for piece in pieces)


@pytest.mark.parametrize(
    ("batch_size", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), ("8", TypeError), (None, TypeError)]
)
def test_a_batch_size_that_is_none_is_refused(batch_size, error):
    with pytest.raises(error, match="batch_size must be") as caught:
        list(data.batches(np.arange(5), batch_size))
    one_sentence(caught.value, batch_size)


@given(n=st.integers(1, 100), seed=st.integers(0, 2**40), epoch=st.integers(0, 10**6))
def test_an_epochs_order_is_a_shuffle_of_all_that_seed_and_epoch_decide(n, seed, epoch):
    order = data.epoch_order(n, seed, epoch)
    assert_array_equal(np.sort(order), np.arange(n))
    np.random.default_rng(0).random(3)  # whatever else is drawn
    assert_array_equal(data.epoch_order(n, seed, epoch), order)


def test_another_seed_or_epoch_is_another_order():
    orders = {tuple(data.epoch_order(50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_the_order_is_the_same_next_year():
    """Every engine, machine and version must visit the examples alike, or recorded runs mean nothing."""
    assert_array_equal(data.epoch_order(8, seed=0, epoch=0), [1, 3, 7, 6, 0, 4, 2, 5])
