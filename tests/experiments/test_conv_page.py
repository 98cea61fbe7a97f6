"""The record of a profiler's pages: what is asked for, and that a machine without the profiler says so."""

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

import experiments
from experiments.conv_ladder import LAYERS, ladder
from mlpkit import kernels

page = experiments.load("conv_page")


def test_the_profiler_looks_at_each_ways_second_call(monkeypatch):
    called = []

    def prepare(name, shape, which, a, b):
        return SimpleNamespace(call=lambda: called.append(name), result=lambda: np.zeros(3))

    monkeypatch.setattr(page, "problem", lambda shape, which: (None, None, None))
    rungs = {name: SimpleNamespace(prepare=lambda *given, name=name: prepare(name, *given)) for name in page.RUNGS}
    monkeypatch.setattr(page.ladder, "RUNGS", rungs)
    page.main()
    words = page.command(page.USUAL)
    skip, count = (int(words[words.index(option) + 1]) for option in ("--launch-skip", "--launch-count"))
    assert called[skip : skip + count] == list(page.RUNGS)


def test_its_kernel_is_the_ways_own():
    for name in page.RUNGS:
        assert f"{page.KERNEL}(" in kernels.source(ladder.RUNGS[name].files[0])
        assert ladder.RUNGS[name].why_not(LAYERS[page.LAYER], page.PASS) is None


def test_what_the_profiler_prints_is_kept_without_paths(monkeypatch):
    long = "  # Warps 1,690 (10; 10;\n            10; 0.5; 10;\n            10; 0)\n"
    said = f"==PROF== python3 (/home/someone/bin/python3)\n{long}  Duration us 8.1\x1b\n"
    done = SimpleNamespace(stdout=said, returncode=0)
    monkeypatch.setattr(subprocess, "run", lambda *given, **more: done)
    run = page._said(page.USUAL)
    assert run["text"] == "==PROF== python3 (python3)\n  # Warps 1,690 (10; 10;\n  Duration us 8.1\n"
    assert run["command"].startswith("ncu --clock-control none")
    assert run["why_not"] is None
    assert page.table({"runs": [run]}) == run["text"]


def test_a_machine_without_the_profiler_says_so(monkeypatch):
    monkeypatch.setattr(page.shutil, "which", lambda *given, **more: None)
    monkeypatch.setenv("PATH", "")
    run = page._said(page.USUAL)
    assert "FileNotFoundError" in run["why_not"]
    assert page.table({"runs": [run]}) == run["why_not"]


@pytest.mark.gpu
def test_a_record_of_this_gpu():
    record = page.measure(lambda record: None, lambda text: None)
    (run,) = record["runs"]
    if run["why_not"]:
        pytest.skip(run["why_not"])
    assert run["text"].count("Duration") >= len(page.RUNGS)
