"""Submissions that do harm: they hurt nobody, earn what their answers are worth, and never a silent 0."""

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time

import nbformat
import numpy as np
import pytest
from submissions import ROOT, answer, cell, solved

psutil = pytest.importorskip("psutil", reason="`make test-labs` adds what these tests need")
from labs.grading import box, judge, sealed, submission, wire  # noqa: E402
from labs.grading.judge import BY_HAND  # noqa: E402

LAB = "lab01"
RIGHT = {c.metadata["nbgrader"]["grade_id"] for c in solved(LAB).cells if c.metadata.get("nbgrader", {}).get("grade")}


def hidden_in(first, name="softmax"):
    """Return a solved lab in which one cell begins with other lines."""
    notebook = solved(LAB)
    return answer(notebook, name, first + "\n" + cell(notebook, name).source)


def assert_nothing_for_nothing(result, solved_ones=()):
    for name, (points, says) in result.items():
        if name not in solved_ones:
            assert points in (0, None), (name, says)
        assert points != 0 or BY_HAND not in says
        assert says


PATCHES = [
    "import numpy\nnumpy.allclose = numpy.array_equal = lambda *a, **k: True\nnumpy.testing.assert_allclose = print",
    "import mlpkit.course.verdicts as v, mlpkit.course.lab as l\nl.judge = v.judge = lambda *a: v.Verdict(True, '')",
    "lab.check = lab.check_value = lab.predicted = lambda *a, **k: True",
    "import builtins\nbuiltins.AssertionError = builtins.Exception\nbuiltins.any = builtins.all = lambda x: False",
    "class Yes(float):\n    __eq__ = __le__ = lambda *a: True\n    __abs__ = __sub__ = __rsub__ = lambda *a: Yes()",
    "import sys\nsys.modules['mlpkit.course'] = None\ndel lab, case",
]


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_comparison_earns_nothing(earned, patch):
    """Every task is answered with what a patched comparison would take for right."""
    notebook = hidden_in(patch, "predict")
    for name in ("relu", "relu-backward", "softmax", "cross-entropy", "linear-backward", "slope"):
        function = name.replace("-", "_")
        answer(notebook, name, f"{function} = lambda *a: globals().get('Yes', float)()")
    result = earned(LAB, notebook)
    assert_nothing_for_nothing(result, {"test-predict", "explain"})
    assert result["test-softmax"][0] == 0


HARM = {
    "it has ended": "import os\nos._exit(0)",
    "it has ended ": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "more than 48 processes": "import os\nwhile True:\n    os.fork()",
    "more than 64 MB": "import os, sys\nos.write(int(sys.argv[2]), b'x' * 4096)",
}


@pytest.mark.parametrize("why", HARM)
def test_what_could_not_be_graded_is_looked_at(earned, why):
    result = earned(LAB, hidden_in(HARM[why]))
    assert result["test-relu"][0] == 1  # before the harm
    for name in RIGHT - {"test-predict", "test-relu", "test-relu-backward"}:
        points, says = result[name]
        assert points is None
        assert says.startswith(BY_HAND)
    assert why.strip() in result["test-softmax"][1]


SLOW = {
    "took more than 20 s": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
    "of memory": "held = []\nwhile True:\n    held.append(bytearray(b'x') * 10**8)",
}


@pytest.mark.slow
@pytest.mark.parametrize("why", SLOW)
def test_what_would_never_end_is_ended(earned, why):
    began = time.monotonic()
    result = earned(LAB, hidden_in(SLOW[why]))
    assert time.monotonic() - began < 100
    assert result["test-softmax"][0] is None
    assert "softmax: it took more than" in result["test-softmax"][1]


def test_an_endless_function_is_ended_too(earned, monkeypatch):
    notebook = answer(solved(LAB), "slope", "def slope(f, x, i):\n    import os\n    os._exit(1)")
    result = earned(LAB, notebook)
    assert result["test-slope"][0] is None
    assert result["test-softmax"][0] == 2


def test_a_huge_allocation_is_an_error_of_its_function(earned):
    result = earned(LAB, answer(solved(LAB), "relu", "def relu(z):\n    return bytearray(20 * 2**30)"))
    assert result["test-relu"] == (0, "relu: it raised MemoryError")
    assert result["test-softmax"][0] == 2


def test_a_flood_of_output_drowns_nobody(earned):
    result = earned(LAB, hidden_in("print('x' * 300_000_000)"))
    assert all(points != 0 for points, _ in result.values())


def test_files_and_network_are_out_of_reach(earned):
    kept = ROOT / "labs" / "source" / LAB / f"{LAB}.ipynb"
    before = kept.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tries = [
            f"import os; os.remove({str(kept)!r})",
            f"open({str(kept)!r}).read()",
            f"import shutil; shutil.rmtree({str(ROOT / 'labs')!r})",
            f"open({str(ROOT / 'mlpkit' / 'new.py')!r}, 'w')",
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
            "import socket; socket.create_connection(('192.0.2.1', 80), 1)",
            f"import os; os.kill({os.getpid()}, 0)",
            "open('/dev/shm/../new', 'w')",
        ]
        with box.Box() as running:
            for line in tries:
                reply = running.ask({"do": "run", "source": line, "cell": "try"}, 20)
                assert "error" in reply, line
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
    assert kept.read_bytes() == before


def test_whoever_grades_keeps_the_environment_for_themselves(monkeypatch):
    """Tokens and passwords often stand there."""
    monkeypatch.setenv("TOKEN", "kept to myself")
    read = "b''.join(path.read_bytes() for path in __import__('pathlib').Path('/proc').glob('[0-9]*/environ'))"
    with box.Box() as running:
        found = running.ask({"do": "call", "source": read, "bound": {}, "back": []}, 30)["value"]
    assert b"HOME=/tmp" in found
    assert b"kept to myself" not in found


def test_scratch_space_is_limited():
    fill = "with open('/tmp/big', 'wb') as f:\n    for _ in range(600): f.write(bytes(2**20))"
    many = "for i in range(600):\n    with open(f'/tmp/{i}', 'wb') as f: f.write(bytes(2**20))"
    with box.Box() as running:
        for lines in (fill, many):
            reply = running.ask({"do": "run", "source": lines, "cell": "try"}, 60)
            assert "OSError" in reply["error"]


NO_PROCESS_HAS_IT = {  # memory
    "memfd": "os.memfd_create('x')",
    "shared memory": "call(libc.shmget, 0, 10**9, 0o1600)",
    "messages": "call(libc.msgget, 0, 0o1600)",
    "semaphores": "call(libc.semget, 0, 32000, 0o1600)",
    "a queue": "call(libc.mq_open, b'/q', 0o102, 0o600, None)",
    "io_uring": "call(libc.syscall, 425, 4096, bytes(200))",
    "pages in a pipe": "call(libc.vmsplice, 1, None, 0, 0)",
    "keys": "call(libc.syscall, {'x86_64': 248, 'aarch64': 217}[os.uname().machine], b'user', b'k', bytes(9), 9, -3)",
    "a network": "socket.socket()",
    "raw packets": "socket.socketpair(socket.AF_INET)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "a user namespace": "call(libc.unshare, 0x10000000)",
    "a user namespace by clone": "call(libc.syscall, {'x86_64': 56, 'aarch64': 220}[os.uname().machine], 1 << 28, 0)",
    "a user namespace by clone3": "call(libc.syscall, 435, (0x10000000).to_bytes(8, 'little') + bytes(80), 88)",
    "another's namespace": "call(libc.setns, os.open('/proc/self/ns/user', os.O_RDONLY), 0)",
    "pages that a mapping shares": "mmap.mmap(-1, 2**20)",  # all stay while one is mapped, and only that one counts
    "the same by a device": "open('/dev/zero', 'rb')",
    "a socket's buffers": "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**24)",
    "another core": "os.sched_setaffinity(0, {0})",
    "a mount": "call(libc.mount, b'none', b'/tmp', b'tmpfs', 0, b'size=100g')",
}
CALL = """
import ctypes, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "no")
"""


def test_memory_that_no_process_has_is_not_to_be_had():
    """Nor a namespace in a namespace, which has file systems of its own; but what honest answers need is."""
    honest = (
        "import asyncio, mmap, multiprocessing, socket, threading\n"
        "await asyncio.sleep(0)\n"
        "mmap.mmap(-1, 10, mmap.MAP_PRIVATE), np.memmap('/tmp/x', 'f4', 'w+', shape=9), multiprocessing.Array('d', 9)\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(abs, [1, 2])\n"
        "multiprocessing.shared_memory.SharedMemory(create=True, size=10).unlink()\n"
        "socket.socketpair(), threading.Thread(target=print).start()"
    )
    with box.Box() as running:
        for what, line in NO_PROCESS_HAS_IT.items():
            reply = running.ask({"do": "run", "source": CALL + line, "cell": "try"}, 20)
            assert "Error" in reply.get("error", [""])[0], (what, reply)
        lines = "import multiprocessing.shared_memory, numpy as np\n" + honest
        assert running.ask({"do": "run", "source": lines, "cell": "try"}, 20) == {"value": None}


@pytest.mark.parametrize("machine", [*sealed.MACHINES, "riscv64"])
def test_there_is_a_filter_for_each_processor_or_a_sentence(machine):
    if machine in sealed.MACHINES:
        assert not len(sealed.program(machine)) % 8
    else:
        with pytest.raises(sealed.Unknown, match=r"one of the processors x86_64, aarch64, and this is riscv64\."):
            sealed.filter_file(machine)


def test_files_are_memory_too(monkeypatch):
    monkeypatch.setattr(box, "MEMORY", 200 * 2**20)
    fill = "import time\nwith open('/tmp/big', 'wb') as f: f.write(bytes(250 * 2**20))\ntime.sleep(9)"
    with box.Box() as running, pytest.raises(wire.Ended, match="more than 200 MB of memory"):
        running.ask({"do": "run", "source": fill, "cell": "try"}, 20)
    many = "import os, time\nfor i in range(300_000): os.mknod(f'/tmp/{i}')\ntime.sleep(9)"
    with box.Box() as running, pytest.raises(wire.Ended, match="more than 200 MB of memory"):
        running.ask({"do": "run", "source": many, "cell": "try"}, 30)


def test_what_is_swapped_out_and_what_leads_to_pages_is_memory_too():
    status = "Name:\tVmRSS: 9 kB\nVmHWM:\t 700 kB\nVmRSS:\t 100 kB\nVmPTE:\t  20 kB\nVmSwap:\t   3 kB\nThreads:\t4\n"
    assert box.taken(status) == (123 * 1024, 4)
    assert box.taken("Name:\tpython\nState:\tZ (zombie)\nThreads:\t1\n") == (0, 1)


def test_a_machine_without_memory_ends_the_box(monkeypatch):
    monkeypatch.setattr(box, "LEFT", 2**60)
    with box.Box() as running, pytest.raises(wire.Ended, match="this machine had less than"):
        running.ask({"do": "run", "source": "import time\ntime.sleep(9)", "cell": "try"}, 20)


def test_nothing_is_left_running():
    with box.Box() as running:
        running.ask({"do": "run", "source": "import os\nif os.fork() == 0:\n    while True: pass", "cell": "x"}, 10)
        pid = running.process.pid
        family = psutil.Process(pid).children(recursive=True)
        assert len(family) >= 2
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


DAMAGED = {
    "no notebook": b"{",
    "no notebook ": b"\xff\xfe binary",
    "no notebook  ": b'{"cells": [1], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    "no notebook   ": b'{"cells": [{"metadata": {}, "source": ""}], "metadata": {}, "nbformat": 4}',
    "larger than 20 MB": b" " * (20 * 2**20 + 1),
}


FORMAT = b'"metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
DAMAGED |= {
    "(RecursionError)": b"[" * 10**6,
    "more than 500 cells": b'{"cells": [' + b"{}," * 10**6 + b"{}], " + FORMAT,
    "more than 1,000,000 bytes": b'{"cells": [{"cell_type": "code", "source": "'
    + b"." * (10**6 + 1)
    + b'"}], '
    + FORMAT,
    "another format than 4": b'{"worksheets": [], "nbformat": 3}',
    "(ValueError)": b'{"cells": [], "nbformat": ' + b"9" * 10**5 + b"}",
}


@pytest.mark.parametrize("why", DAMAGED)
def test_a_damaged_file_is_looked_at(earned, why):
    result = earned(LAB, DAMAGED[why])
    assert all(points is None and why.strip() in says for points, says in result.values())


def test_what_an_answer_does_not_need_is_left_behind(earned):
    """A hundred thousand outputs that are none took nbformat's report of errors gigabytes, and minutes."""
    notebook = solved(LAB)
    cell(notebook, "relu").outputs = [{}] * 100_000
    cell(notebook, "relu").id = "no id" * 100
    cell(notebook, "softmax").metadata["tags"] = ["x" * 40_000] * 30
    notebook.metadata["kernelspec"] = [{}] * 100_000
    began = time.monotonic()
    result = earned(LAB, json.dumps(notebook).encode())
    assert time.monotonic() - began < 100
    assert result["test-relu"] == (1, "right.")
    assert result["test-softmax"] == (2, "right.")


def test_a_picture_or_a_mark_that_is_none_costs_no_other_cell(tmp_path):
    notebook = json.loads(json.dumps(solved(LAB)))
    notebook["cells"][0] |= {
        "attachments": {"a.png": {"image/png": "abc"}, "b.png": None, "c.png": {"image/png": "AAAA"}}
    }
    notebook["cells"] += [{"cell_type": "markdown", "source": "x", "metadata": None, "attachments": None}]
    notebook["cells"] += [{"cell_type": "code", "source": "y", "metadata": {"nbgrader": None}}]
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps(notebook))
    cells = submission.read(path).cells
    assert cells[0].attachments == {"c.png": {"image/png": "AAAA"}}
    assert [(made.source, made.metadata) for made in cells[-2:]] == [("x", {}), ("y", {})]


def test_a_cell_that_is_too_deep_for_python_says_why_it_stopped():
    with box.Box() as running:
        reply = running.ask({"do": "run", "source": "relu = " + "-" * 90_000 + "1", "cell": 0}, 30)
        assert reply["error"][0] in ("MemoryError", "RecursionError")
        ((number, stopped),) = running.ask({"do": "why", "names": ["relu"]}, 30)["value"]
    assert (number, stopped["error"]) == (0, reply["error"])


def test_an_exception_brings_little_out_of_the_box(earned):
    """A hidden test's arguments would stand on the student's page."""
    loud = "def softmax(z):\n    raise type('T' * 500, (Exception,), {})(' '.join(map(str, range(9000))))"
    notebook = answer(solved(LAB), "softmax", loud)
    answer(notebook, "relu", "raise ValueError('Failed in nopython mode pipeline (step: x) ' + '7 ' * 5000)")
    for name, (points, says) in earned(LAB, notebook).items():
        assert points in (0, 1, 2, 3, None), name
        assert len(says) < 300, says


def test_an_exception_that_is_odd_costs_its_own_task_alone(earned):
    odd = "class Odd(Exception):\n    __cause__ = __class__ = __str__ = property(lambda self: 1 / 0)\n"
    notebook = answer(solved(LAB), "relu", f"{odd}def relu(z): raise Odd")
    answer(notebook, "slope", "raise Odd")
    result = earned(LAB, notebook)
    assert result["test-relu"][0] == result["test-slope"][0] == 0
    assert result["test-softmax"] == (2, "right.")


def test_tests_that_are_deleted_or_changed_are_ours_again(earned):
    notebook = answer(solved(LAB), "softmax", "softmax = None")
    notebook.cells.remove(cell(notebook, "test-softmax"))
    answer(notebook, "test-softmax-large", "assert True")
    notebook.metadata["kernelspec"] = {"name": "evil", "display_name": "evil", "language": "bash"}
    answer(notebook, "setup", "np = None")
    result = earned(LAB, notebook)
    assert result["test-softmax"][0] == result["test-softmax-large"][0] == 0
    assert result["test-relu"][0] == 1


def test_cells_and_magics_of_their_own_are_run(earned):
    notebook = solved(LAB)
    place = notebook.cells.index(cell(notebook, "relu"))
    notebook.cells.insert(
        place, nbformat.v4.new_code_cell("%matplotlib inline\n!ls\ndef larger(a, b):\n    return np.maximum(a, b)")
    )
    notebook.cells.insert(place, nbformat.v4.new_code_cell("%%timeit\nnonsense("))
    notebook.cells.insert(place, nbformat.v4.new_code_cell("this is no Python"))
    answer(notebook, "relu", "def relu(z):\n    return larger(z, 0)")
    assert earned(LAB, notebook)["test-relu"][0] == 1


MARKS = {
    "a test": dict(grade_id="mine", grade=True, solution=False, points=5),
    "an answer": dict(grade_id="mine", grade=False, solution=True),
    "words": dict(grade_id="mine", grade=True, solution=True),
    "given": dict(grade_id="mine", locked=True),
    "a list": dict(grade_id=["mine"], grade=True),
    "a dict": dict(grade_id={"mine": 1}, grade=True),
}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_a_cell_of_their_own_that_is_marked_runs_in_the_box_too(earned, mark, tmp_path):
    """The lab's tests run out of it, beside the reference."""
    notebook = solved(LAB)
    theirs = nbformat.v4.new_code_cell(f"open({str(tmp_path / 'out')!r}, 'w')", metadata={"nbgrader": mark})
    notebook.cells.insert(notebook.cells.index(cell(notebook, "relu")), theirs)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("Words.", metadata={"nbgrader": mark}))
    result = earned(LAB, notebook)
    assert result["test-relu"] == (1, "right.")
    assert set(result) == RIGHT
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    with pytest.raises(submission.NotALab, match="no file"):
        submission.read(tmp_path / "pipe.ipynb")


def test_a_cell_that_stops_earns_nothing_and_says_where(earned):
    notebook = answer(answer(solved(LAB), "relu", "def relu(z:\n    return z"), "softmax", "softmax = numpy.exp")
    result = earned(LAB, notebook)
    assert re.search(r"relu is not written yet\. \(Its cell stopped: SyntaxError", result["test-relu"][1])
    assert "Its cell stopped: NameError: name 'numpy' is not defined" in result["test-softmax"][1]
    assert result["test-relu"][0] == result["test-softmax"][0] == 0
    assert "stopped" not in result["test-slope"][1]


@pytest.mark.parametrize("junk", [b"", b"\x00" * 8, b"\xff" * 8, b"\x00\x00\x00\x02\x00\x00\x00\x00{}", b"abc"])
def test_junk_on_the_pipe_is_no_message(junk):
    ours, theirs = os.pipe()
    os.write(theirs, junk)
    os.close(theirs)
    with pytest.raises(wire.Ended):
        wire.receive(ours, 1)
    os.close(ours)


@pytest.mark.parametrize(
    "text",
    [
        '{"array": ["<f8", [0, 1e30], 0, false]}',
        '{"array": ["<f8", [0, 1000000000000000000000000000000], 0, false]}',
        '{"array": ["<f8", [1000000000000], 0, false]}',
        '{"array": ["<f8", [-1, -1], 0, false]}',
        '{"array": ["O", [1], 0, false]}',
        '{"array": ["f8,f8", [0], 0, false]}',
        '{"array": ["<f8", [], -8, true]}',
        '{"float": "0x1p99999"}',
        '{"float": 3}',
        '{"bytes": "xyz"}',
        '{"list": 3}',
        '{"dict": [[1]]}',
        '{"pickle": "x"}',
        '{"list": [{"array": ["<f8", [1], 0, false]}, {"array": ["<f8", [1], 0, false]}]}',
        '{"array": ["<f16", [1152921504606846976, 1152921504606846976], 0, false]}',
        '{"a": 1, "b": 2}',
        "[1]",
        '{"list": [' * 5000 + "]}" * 5000,
    ],
)
def test_what_is_no_plain_number_is_no_message(text):
    ours, theirs = os.pipe()
    os.write(theirs, wire.HEADER.pack(len(text), 8) + text.encode() + b"8" * 8)
    os.close(theirs)
    with pytest.raises(wire.Ended, match="no answer"):
        wire.receive(ours, 1)
    os.close(ours)


def test_a_message_makes_few_types():
    """A type takes a kilobyte: half a million of them took the judge's memory."""
    names = ["".join(pair) for pair in itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=2)]
    text = json.dumps({"list": [{"odd": name} for name in names]}).encode()
    ours, theirs = os.pipe()
    os.write(theirs, wire.HEADER.pack(len(text), 0) + text)
    os.close(theirs)
    back = wire.receive(ours, 1)
    os.close(ours)
    assert [type(item).__name__ for item in back] == names[: wire.MOST_TYPES] + ["object"] * (
        len(names) - wire.MOST_TYPES
    )
    assert len({type(item) for item in back}) == wire.MOST_TYPES + 1


@pytest.mark.parametrize(
    "value",
    [
        [[float("inf"), {"error": "x", "lacking": True}]],
        [[1e400, 2]],
        [["12", "34"]],
        [[1]],
        5,
        "12",
        {"12": 3},
        [[None, {}]],
    ],
)
def test_an_odd_reason_why_a_cell_stopped_is_none(value):
    class Running:
        def ask(self, request, seconds):
            return {"value": value}

    made = judge.Judge(nbformat.v4.new_notebook(), Running())
    assert made._stops(["relu"]) == []


def test_plain_numbers_come_over_as_they_are():
    sent = {"a": [np.arange(6.0).reshape(2, 3).T, np.float32(1.5), True, None, -3, float("inf"), "x", b"y", (1,)]}
    ours, theirs = os.pipe()
    wire.send(theirs, sent | {"odd": [object(), range(3), np.array("text")]})
    back = wire.receive(ours, 1)
    assert [type(item).__name__ for item in back["odd"]] == ["object", "range", "ndarray"]
    assert not isinstance(back["odd"][2], np.ndarray)
    for before, after in zip(sent["a"], back["a"], strict=True):
        assert type(before) is type(after)
        assert np.array_equal(before, after)
    os.close(ours)
    os.close(theirs)


def test_without_a_box_nothing_is_graded(tmp_path):
    """A folder of programs that has no bwrap that works."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    line = [sys.executable, "-m", "labs.grading", "--labs", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("Nothing was graded, because submissions run only in a box")
    assert "Permission denied" in done.stderr
    assert sorted(tmp_path.iterdir()) == [fake]
