"""A file is either whole or as it was, whenever the program is killed; and no file makes it run code."""

import contextlib
import errno
import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from shared import one_sentence

from mlpkit import files
from mlpkit.files import check_writable, only_one, write_atomically
from mlpkit.npz import load_npz, save_npz

# Two megabytes of one number, which counts up: half a file, or a mixture of two, can't look like a whole one.
SAVE_IN_A_LOOP = """
import sys
from itertools import count
import numpy as np
from mlpkit.npz import save_npz
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


def temporary(path):
    """Return the names that a process which writes `path` gives its temporary files."""
    with files._temporary(path) as (_, name):
        return Path(name)


def test_what_killed_processes_left_is_removed_before_the_next_run_and_nothing_else_is(tmp_path):
    path = tmp_path / "a [1].npz"
    dead = temporary(path), temporary(path)
    others = [temporary(tmp_path / "b.npz"), tmp_path / ".a [1].npz.backup", tmp_path / "a [1].npz.mlpkit"]
    for each in (*dead, *others, path):
        each.write_bytes(b"half")
    with files._temporary(path) as (_, alive):
        check_writable(path)
        assert set(tmp_path.iterdir()) == {*others, path, Path(alive)}
    assert path.read_bytes() == b"half"


def test_a_write_is_not_stopped_by_what_a_killed_one_left(tmp_path):
    temporary(tmp_path / "a").write_bytes(b"half")
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
        with pytest.raises(type(error)) as caught:
            save_npz(tmp_path / "b.npz", a=2)
    if isinstance(error, OSError):
        one_sentence(caught.value, f"{tmp_path / 'b.npz'} can't be written ({error.strerror})")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert load_npz(tmp_path / "a.npz", ["a"])["a"] == 1


@pytest.mark.parametrize("write", [check_writable, lambda path: save_npz(path, a=1)])
def test_a_file_in_the_place_of_a_folder_is_named_so(write, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="a file stands where its folder should be") as caught:
        write(tmp_path / "file" / "a.npz")
    one_sentence(caught.value, tmp_path / "file" / "a.npz")


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


# Places that are none

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other kinds of files")


@pytest.fixture
def waits_for_nobody():
    """Let a test that waits for a pipe's other end fail."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def in_the_way(kind, path):
    """Make what is no regular file, and no way to one."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "below a file":
        path.parent.rmdir()
        path.parent.write_bytes(b"")
    else:
        path.symlink_to({"a link to a device": "/dev/null", "a link to itself": path}[kind])


@posix
@pytest.mark.usefixtures("waits_for_nobody")
@pytest.mark.parametrize("kind", ["a pipe", "a folder", "below a file", "a link to a device", "a link to itself"])
def test_what_is_no_file_is_neither_replaced_nor_read(kind, tmp_path):
    path = tmp_path / "folder" / "a.npz"
    path.parent.mkdir()
    in_the_way(kind, path)
    before = os.lstat(path.parent if kind == "below a file" else path)
    for write in (check_writable, lambda path: write_atomically(path, b""), lambda path: save_npz(path, a=1)):
        with pytest.raises(OSError, match="can't be written") as caught:
            write(path)
        one_sentence(caught.value, path)
    with pytest.raises(OSError, match=r"a\.npz"):
        load_npz(path, ["a"])
    assert os.lstat(path.parent if kind == "below a file" else path).st_ino == before.st_ino
    assert len([*tmp_path.rglob("*")]) == (1 if kind == "below a file" else 2)


@posix
def test_a_device_is_not_replaced():
    """Root may rename a file over one; and then every program writes into that file."""
    for path in ("/dev/null", "/dev/zero"):
        for write in (check_writable, lambda path: write_atomically(path, b"")):
            with pytest.raises(OSError, match="no regular file") as caught:
                write(path)
            one_sentence(caught.value, path)
        with pytest.raises(OSError, match="no regular file"):
            load_npz(path, ["a"])
        assert not Path(path).is_file()


@posix
@pytest.mark.parametrize("there", [True, False])
def test_of_a_link_the_file_that_it_leads_to_is_written(there, tmp_path):
    link, file = tmp_path / "link.npz", tmp_path / "elsewhere" / "file.npz"
    if there:
        save_npz(file, a=1)
    link.symlink_to(file)
    check_writable(link)
    save_npz(link, a=2)
    assert link.is_symlink()
    assert load_npz(file, ["a"])["a"] == load_npz(link, ["a"])["a"] == 2
    assert [path.name for path in file.parent.iterdir()] == ["file.npz"]


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("protected", ["folder", "folder/a.npz"])
def test_what_is_write_protected_is_refused_in_time(protected, tmp_path):
    save_npz(tmp_path / "folder" / "a.npz", a=1)
    (tmp_path / protected).chmod(0o500)
    try:
        for write in (check_writable, lambda path: save_npz(path, a=2)):
            with pytest.raises(PermissionError, match="can't be written") as caught:
                write(tmp_path / "folder" / "a.npz")
            one_sentence(caught.value)
    finally:
        (tmp_path / protected).chmod(0o700)


def test_a_name_too_long_for_a_temporary_file_is_refused_in_time(tmp_path):
    with pytest.raises(OSError, match="can't be written"):
        check_writable(tmp_path / ("a" * 250))


# A folder for one run at a time

HOLD = """
import sys, time
from mlpkit.files import only_one
with only_one(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_run_until_it_ends_or_is_killed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(OSError, match="another run is at work in") as caught, only_one(tmp_path):
        pass
    one_sentence(caught.value, tmp_path)
    child.kill()
    child.communicate()
    with only_one(tmp_path), pytest.raises(OSError, match="another run"), only_one(tmp_path):
        pass  # in the same process, too
    with contextlib.suppress(ZeroDivisionError), only_one(tmp_path):
        raise ZeroDivisionError
    with only_one(tmp_path):
        pass
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [(".lock", 0)]


@pytest.mark.skipif(os.name != "nt" and os.geteuid() == 0, reason="root may write everywhere")
def test_a_lock_that_another_user_has_made_is_refused_in_a_sentence(tmp_path):
    (tmp_path / ".lock").touch(0o444)
    with pytest.raises(PermissionError, match="can't be written") as caught, only_one(tmp_path):
        pass
    one_sentence(caught.value, tmp_path / ".lock")


@posix
def test_what_is_set_aside_keeps_its_content_and_gets_a_name_of_its_own(tmp_path):
    path, names = tmp_path / "a.npz", set()
    for content in (b"one", b"two", b"three"):
        path.write_bytes(content)
        aside = files.set_aside(path)
        names.add(aside)
        assert aside.name.startswith("a 20")
        assert aside.name.endswith(".npz.previous")
        assert aside.read_bytes() == content
        assert not path.exists()
    assert len(names) == 3


def test_a_clock_that_is_wrong_keeps_nothing_from_being_set_aside(tmp_path):
    path = tmp_path / "a.npz"
    for content in (b"one", b"two", b"three"):
        path.write_bytes(content)
        try:
            os.utime(path, (2**38, 2**38))  # the year 10,680
        except OSError:
            pytest.skip("this file system knows no such year")
        assert files.set_aside(path).read_bytes() == content
    assert len(list(tmp_path.glob("a *.npz.previous"))) == 3  # of one time, each has its own name


CHECK_AND_WRITE = """
import sys, time
from mlpkit.files import check_writable, write_atomically
end = time.monotonic() + 2
while time.monotonic() < end:
    check_writable(sys.argv[1])
    write_atomically(sys.argv[1], bytes(1000))
"""


@pytest.mark.slow
def test_processes_that_write_one_file_leave_each_others_temporary_files_alone(tmp_path):
    command = [sys.executable, "-c", CHECK_AND_WRITE, tmp_path / "a.npz"]
    writing = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [each.communicate()[1] for each in writing] == [""] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_where_there_is_nothing_to_set_aside_or_another_has_just_done_so_all_is_well(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    assert files.set_aside(path) is None

    def moved(path, target):
        raise FileNotFoundError(path)

    path.write_bytes(b"one")
    monkeypatch.setattr(Path, "replace", moved)
    assert files.set_aside(path) is None


def test_where_the_file_system_has_no_locks_files_are_written_all_the_same(tmp_path, monkeypatch):
    def no_locks(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    left = temporary(tmp_path / "a.npz")
    left.write_bytes(b"of whom nobody knows whether it lives")
    with only_one(tmp_path):
        check_writable(tmp_path / "a.npz")
        save_npz(tmp_path / "a.npz", a=1)
    assert left.exists()


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


def npz(*more, packed=zipfile.ZIP_STORED, **members):
    """Return a .npz file of .npy files. more: pairs of a name and a file, where a name may come again."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", packed) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that comes again
        for name, data in (*members.items(), *more):
            file.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def headed(text, data=b""):
    """Return a .npy file with a header of any text."""
    return b"\x93NUMPY\x01\x00" + len(text.encode()).to_bytes(2, "little") + text.encode() + data


def boast(shape, dtype="<f4"):
    """Return a .npy file whose header promises more than there is."""
    return headed(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n")


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
    "an array twice": npz(("a", npy(np.zeros(5, int))), a=npy(np.arange(5))),
    "packed by zlib": npz(packed=zipfile.ZIP_DEFLATED, a=npy(np.arange(5))),
    "packed by bzip2": npz(packed=zipfile.ZIP_BZIP2, a=npy(np.arange(5))),
    "packed by LZMA": npz(packed=zipfile.ZIP_LZMA, a=npy(np.arange(5))),
    "a megabyte in a kilobyte": npz(packed=zipfile.ZIP_LZMA, a=npy(np.zeros(2**17))),
    "more than there is": npz(a=npy(np.arange(5))[:-1]),
    "less than there is": npz(a=npy(np.arange(5)) + b"!"),
    "less than nothing": npz(a=boast((-1, -1)) + b"0000"),
    "nothing, as often as can't be counted": npz(a=boast((0, 10**30))),
    "a deep header": npz(a=headed("(" * 5000)),
    "a long header": npz(a=headed("{" + " " * 60_000)),
    "no dict": npz(a=headed("3")),
    "unfinished text": npz(a=headed("'''")),
    "an unfinished line": npz(a=headed("{\\")),
    "keys that can't be sorted": npz(a=headed("{1: 2, 'descr': 3}")),
    "a dtype that there is not": npz(a=boast((5,), "<f3")),
    "a later version": npz(a=npy(np.arange(5)).replace(b"NUMPY\x01", b"NUMPY\x02")),
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


@pytest.mark.slow
def test_a_changed_byte_is_never_read_as_something_else(tmp_path):
    """Also where the header then ends earlier: NumPy reads no further, and so far zip's checksum was not compared."""
    array = np.arange(1200, dtype=np.float32)  # more than zip reads at a time
    path, refused, whole = tmp_path / "changed.npz", 0, npz(a=npy(array))
    path.write_bytes(whole)
    ends = [*range(190), *range(len(whole) - 80, len(whole))]  # all but the numbers
    with open(path, "r+b", buffering=0) as file:
        for position in ends:
            for value in set(range(256)) - {whole[position]}:
                file.seek(position)
                file.write(bytes([value]))
                try:
                    found = load_npz(path, ["a"])["a"]
                    assert (found.dtype, found.tobytes()) == (np.float32, array.tobytes())
                except ValueError as error:
                    one_sentence(error, path)
                    refused += 1
            file.seek(position)
            file.write(whole[position : position + 1])
    assert refused > 0.7 * 255 * len(ends)  # the others are in fields of the zip format that nobody reads


def test_a_file_cut_short_is_refused_at_any_length(tmp_path):
    path = tmp_path / "cut.npz"
    for length in range(len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        with pytest.raises(ValueError, match=r"cut\.npz") as caught:
            load_npz(path, ["a"])
        one_sentence(caught.value)


HEADERS = ["{", "}", "(", ")", "'descr'", "'shape'", "'fortran_order'", ":", ",", "'<f4'", "'O'", "'<U0'", "True", "1"]
HEADERS += [
    "-1",
    "10**9",
    "'",
    '"',
    "\\",
    "\n",
    " ",
    "#",
    "...",
    "lambda",
    "[",
    "]",
    "L",
    "9" * 30,
    "\0",
    "é",
    "'<f4,<i4'",
]


@given(st.lists(st.sampled_from(HEADERS), max_size=12).map("".join), st.binary(max_size=9))
def test_a_header_of_any_text_is_an_array_or_refused(tmp_path_factory, text, data):
    path = tmp_path_factory.getbasetemp() / "header.npz"
    for each in (text, f"{{'descr': {text}, 'fortran_order': False, 'shape': ()}}", boast(text)[10:].decode()):
        path.write_bytes(npz(a=headed(each, data)))
        try:
            assert load_npz(path, ["a"])["a"].nbytes == len(data)
        except ValueError as error:
            one_sentence(error, path)


@pytest.mark.parametrize("data", OTHER.values(), ids=OTHER)
def test_no_file_takes_more_memory_than_some_of_its_size(data, tmp_path):
    path = tmp_path / "other.npz"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"other\.npz"):
        load_npz(path, ["a"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(data) + 2**21


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


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    """Where no shell has put it there: else there would soon be a folder called ~."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    check_writable("~/deep/a.npz")
    save_npz("~/deep/a.npz", a=np.arange(3))
    assert_array_equal(load_npz("~/deep/a.npz", ("a",))["a"], np.arange(3))
    with only_one("~/deep"):
        assert files.set_aside(Path("~/deep/a.npz")).parent == tmp_path / "home" / "deep"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
