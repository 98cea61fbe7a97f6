"""A process of one's own answers, or says in a sentence why not."""

import os
import subprocess
from contextlib import suppress

import pytest
from shared import one_sentence

from mlpkit.lab import processes, results

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
