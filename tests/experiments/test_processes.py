"""A process of one's own answers, or says in a sentence why not."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from shared import one_sentence

from experiments.lab import processes, results

ANSWERS = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get('ASKED')]))"


@pytest.fixture
def ask(tmp_path):
    """Ask a module that consists of some code."""

    def ask(code, *arguments, **variables):
        (tmp_path / "asked.py").write_text(code)
        return processes.ask("asked", *arguments, env=os.environ | {"PYTHONPATH": str(tmp_path)} | variables)

    return ask


def test_an_answer_is_what_the_module_prints(ask):
    arguments, folder, variable = ask(ANSWERS, "a", "1.5", ASKED="yes")
    assert (arguments, variable) == (["a", "1.5"], "yes")
    assert os.path.samefile(folder, results.ROOT)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('half of it'); raise ValueError('no such layer')", "ValueError: no such layer"),
        ("import sys; sys.stderr.write('mlpkit.x.Error: lost\\n  a hint\\n'); sys.exit(3)", "mlpkit.x.Error: lost"),
        ("raise SystemExit('no such kernels')", "no such kernels"),
        ("import os; os._exit(9)", "the process ended with code 9"),
    ],
)
def test_a_process_that_fails_says_why(code, words, ask):
    with pytest.raises(processes.Failed) as caught:
        ask(code)
    assert str(caught.value) == words
    one_sentence(caught.value)


TALK = """
import os, sys
os.write(1, b"WARNING: loading\\n"), os.write(1, b"\\xff 3 of 4\\n"), os.write(2, b"\\xe9\\n")
"""


def test_what_a_library_says_is_no_answer(ask, waiting):
    """Not where it says it first, not where it says it last, and not in an encoding that is not ours."""
    assert ask(f"{TALK}print([1], flush=True)\n{TALK}") == [1]
    with waiting(before=TALK, after=TALK) as process:
        process.ready()
        assert process.process.poll() is None
        assert process.answer() == 2


@pytest.mark.parametrize(("code", "words"), [("", "an answer"), ("print('[1, 2')", r"an answer; it said '\[1, 2'")])
def test_a_process_without_an_answer_has_failed(code, words, ask):
    with pytest.raises(processes.Failed, match=f"^the process ended without {words}$"):
        ask(code)


def test_half_an_answer_is_none(waiting):
    with waiting(after="print('[1, 2', end='', flush=True); sys.exit()") as process:
        process.ready()
        with pytest.raises(processes.Failed, match="ended with code 0"):
            process.answer()


def test_the_last_error_is_found_beside_another_encoding(ask):
    with pytest.raises(processes.Failed, match=r"^ValueError: lost$"):
        ask(f"{TALK}\nraise ValueError('lost')")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups")
def test_ctrl_c_ends_a_process_and_those_that_it_has_started(ask, tmp_path):
    """Also where they ignore Ctrl-C, which the terminal sends to all of them."""
    nap = "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    nap += f"; open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close()"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {f'{nap}; time.sleep(60)'!r}])"
    interrupt = threading.Thread(target=_interrupt_when, args=(lambda: len(_numbers(tmp_path)) == 2,))
    interrupt.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ask(f"{start}; {nap}; time.sleep(60)")
    assert time.monotonic() - begin < 50
    interrupt.join()
    while any(map(_runs, _numbers(tmp_path))):
        assert time.monotonic() - begin < 50


def _numbers(folder):
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


def _interrupt_when(ready):
    while not ready():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def _runs(number):
    """Say whether a process is there, and not just waiting to be forgotten."""
    try:
        return "zombie" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def test_a_warning_is_no_reason(ask):
    assert ask("import warnings; warnings.warn('old'); print('{}')") == {}


def test_busy_programs_are_gone_afterwards(monkeypatch):
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **o: started.append(popen(*a, **o)) or started[-1])
    with suppress(KeyboardInterrupt), processes.busy_programs(2):
        assert [process.poll() for process in started] == [None, None]
        raise KeyboardInterrupt
    assert None not in [process.poll() for process in started]
    assert len(started) == 2


WAITS = """
import sys
from experiments.lab.processes import wait_to_be_asked
{}
wait_to_be_asked()
{}
print(2)
"""


@pytest.fixture
def waiting(tmp_path):
    """Return a process that runs some code before it says that it is ready, and some after it was asked."""

    def waiting(before="", after="", seconds=None):
        (tmp_path / "waits.py").write_text(WAITS.format(before, after))
        env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{results.ROOT}"}
        return processes.Waiting("waits", env=env, seconds=seconds)

    return waiting


def test_a_process_prepares_and_answers_when_it_is_asked(waiting):
    with waiting() as process:
        process.ready()
        assert process.process.poll() is None
        assert process.answer() == 2
    assert process.process.poll() is not None


def test_a_process_that_fails_says_why_before_it_is_ready_and_after(waiting):
    with waiting(before="raise ValueError('first')") as process, pytest.raises(processes.Failed, match="first"):
        process.ready()
    with waiting(after="sys.exit(7)") as process:
        process.ready()
        with pytest.raises(processes.Failed, match="ended with code 7"):
            process.answer()


def test_a_process_that_is_not_ready_in_time_is_ended(waiting):
    with (
        waiting("import time; time.sleep(60)", seconds=0.3) as process,
        pytest.raises(processes.Failed, match="code -9"),
    ):
        process.ready()
    with waiting(seconds=30) as process:
        process.ready()
        assert process.limit.finished.is_set()  # nobody ends it any more
        assert process.answer() == 2
