"""A file is either whole or as it was, whenever the program is killed; and no file makes it run code."""

import contextlib
import errno
import io
import os
import pickle
import random
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import one_sentence

from mlpkit.files import load_npz, save_npz, write_atomically

# Two megabytes of one number, which counts up: half a file, or a mixture of two, can't look like a whole one.
SAVE_IN_A_LOOP = """
import sys
from itertools import count
import numpy as np
from mlpkit.files import save_npz
for n in count():
    save_npz(sys.argv[1], a=np.full(2**18, n), n=n)
    if n == 0:
        print("saved", flush=True)
"""


def test_a_checkpoint_killed_while_it_is_written_is_whole(tmp_path):
    path, moments, latest = tmp_path / "last.npz", random.Random(0), []
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", SAVE_IN_A_LOOP, path], stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"saved\n"
        time.sleep(moments.uniform(0, 0.1))
        child.kill()
        child.communicate()
        arrays = load_npz(path, ("a", "n"))
        assert_array_equal(arrays["a"], np.full(2**18, arrays["n"]))
        latest.append(int(arrays["n"]))
        # What a killed process was writing may be left over, but under a name that nothing takes for a checkpoint.
        assert [p.name for p in tmp_path.glob("*.npz")] == ["last.npz"]
        assert all(p.name.startswith(".last.npz.") for p in tmp_path.iterdir() if p != path)
    assert max(latest) > 0  # the loop was in full swing


def test_the_next_write_is_not_stopped_by_what_a_killed_one_left(tmp_path):
    (tmp_path / ".a.left-over").write_bytes(b"half")
    write_atomically(tmp_path / "a", b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"


FAILURES = {
    "disk full": ("fsync", OSError(errno.ENOSPC, "No space left on device")),
    "rename refused": ("replace", PermissionError(errno.EACCES, "Permission denied")),
    "Ctrl-C": ("fsync", KeyboardInterrupt()),
}


@pytest.mark.parametrize(("function", "error"), FAILURES.values(), ids=FAILURES)
def test_a_write_that_fails_keeps_the_old_file(function, error, tmp_path, monkeypatch):
    def fails(*arguments):
        raise error

    save_npz(tmp_path / "a.npz", a=1)
    with monkeypatch.context() as patched:
        patched.setattr(os, function, fails)
        with pytest.raises(type(error)):
            save_npz(tmp_path / "a.npz", a=2)
        with pytest.raises(type(error)):
            save_npz(tmp_path / "b.npz", a=2)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert load_npz(tmp_path / "a.npz", ["a"])["a"] == 1


def test_the_data_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """Else a power cut leaves a new name with nothing behind it."""
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (calls.append(name), real(*a)))
    write_atomically(tmp_path / "a", b"data")
    assert calls == ["fsync", "replace"]


def test_folders_are_made(tmp_path):
    save_npz(tmp_path / "a" / "b" / "c.npz", x=3)
    assert load_npz(tmp_path / "a" / "b" / "c.npz", ["x"])["x"] == 3


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_others_may_read_what_the_umask_lets_them(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "a", b"")
        assert os.umask(mask) == mask  # unchanged
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = dict(a=np.arange(6, dtype=np.float32).reshape(2, 3), text="später", n=7)
    save_npz(tmp_path / "no suffix", **arrays)
    found = load_npz(tmp_path / "no suffix", list(arrays))
    assert_array_equal(found["a"], arrays["a"])
    assert found["a"].dtype == np.float32
    assert (str(found["text"]), int(found["n"])) == ("später", 7)


# Files that are none


class Bomb:
    """Unpickling it leaves a trace."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npz(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def boast(shape):
    """Return a .npy file whose header promises more than there is."""
    return npy(np.zeros(0, np.float32)).replace(b"(0,), }" + b" " * 45, f"{shape}, }}".encode().ljust(52))


WHOLE = npz(a=npy(np.arange(5)))
OTHER = {
    "empty": b"",
    "text": b"hello, world",
    "a .npy": npy(np.arange(5)),
    "a pickle": pickle.dumps(Bomb()),
    "a pickle as .npy": npy(np.array([Bomb()], object)),
    "a pickle in a .npz": npz(a=npy(np.array([Bomb()], object))),
    "an empty .npz": npz(),
    "another array": npz(b=npy(np.arange(5))),
    "text in a .npz": npz(a=b"hello"),
    "nothing in a .npz": npz(a=b""),
    "more than there is memory": npz(a=boast((10**15,))),
    "more than NumPy can count": npz(a=boast((10**30,))),
    "half of it": WHOLE[: len(WHOLE) // 2],
}


@pytest.mark.parametrize("data", OTHER.values(), ids=OTHER)
def test_another_file_is_refused_and_nothing_in_it_is_run(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the bomb would leave its trace
    path = tmp_path / "other.npz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"other\.npz") as caught:
        load_npz(path, ["a"])
    one_sentence(caught.value, path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_flipped_byte_is_never_read_as_something_else(tmp_path):
    path, refused = tmp_path / "flipped.npz", 0
    for position in range(len(WHOLE)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(WHOLE)
            data[position] ^= flip
            path.write_bytes(data)
            try:
                assert_array_equal(load_npz(path, ["a"])["a"], np.arange(5))
            except ValueError as error:
                one_sentence(error, path)
                refused += 1
    assert refused > 1.5 * len(WHOLE)  # the others are in fields of the zip format that nobody reads


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path):
    for path in (tmp_path / "missing.npz", tmp_path):
        with pytest.raises(OSError, match=path.name):
            load_npz(path, ["a"])


def test_a_file_is_closed_after_it_was_read(tmp_path):
    """So that Windows lets the next checkpoint replace it, also when the first was damaged."""
    path = tmp_path / "a.npz"
    for data in (WHOLE, WHOLE[:50], OTHER["a .npy"]):
        path.write_bytes(data)
        with contextlib.suppress(ValueError):
            load_npz(path, ["a"])
        assert not any(str(path) in name for name in open_files())


def open_files():
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list a process's open files under /proc")
    for link in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(link.path)
