"""What the record "inside" says, on small ones that are made up; and a small run."""

import numpy as np
import pytest
from shared import one_sentence

from experiments import inside
from experiments.inside.measure import TOOLS, _said
from experiments.lab import results
from mlpkit import engines

NO_CALLS = dict(save=lambda record: None, progress=lambda text: None)
SMALL = inside.Plan(
    samples=2, rows=64, columns=(40,), ways=(1, 2), rounds=10, blocks=4, labels=5000, classes=(3,), runs=3, seconds=30
)


def tool(name, text="", why_not=""):
    return {"kind": "tool", "name": name, "command": "" if why_not else f"{name} ./faulty", "text": text} | {
        "why_not": why_not
    }


def test_what_a_tool_says_is_found_by_its_lines():
    record = {"runs": [tool("other", "x"), tool("ncu", "one\ntwo  \nthree\ntwo\n")]}
    assert inside.says(record, "ncu") == "one\ntwo\nthree\ntwo"
    assert inside.says(record, "ncu", "two") == "two\nthree\ntwo"
    assert inside.says(record, "ncu", "tw", "th") == "two\nthree"
    assert inside.says(record, "ncu", "two", "two") == "two"


@pytest.mark.parametrize("lines", [("four", ""), ("three", "one"), ("four", "one")])
def test_lines_that_are_not_there_are_refused(lines):
    with pytest.raises(ValueError, match="no lines from") as caught:
        inside.says({"runs": [tool("ncu", "one\ntwo\nthree")]}, "ncu", *lines)
    one_sentence(caught.value, "ncu", *lines)


def test_a_tool_that_did_not_run_says_why():
    record = {"runs": [tool("ncu", why_not="FileNotFoundError: no nvcc")]}
    with pytest.raises(ValueError, match="no nvcc") as caught:
        inside.says(record, "ncu")
    one_sentence(caught.value)
    assert inside.table(record).split() == ["ncu", "FileNotFoundError:", "no", "nvcc"]


def test_every_kind_of_run_has_a_line_in_the_table():
    samples = {"samples_us": [1.0, 2.0, 9.0]}
    runs = [
        {"kind": "sum", "name": "sum_shared", "columns": 32} | samples,
        {"kind": "orders", "name": "sum_atomic", "runs": 100, "sums": [1.0, 1.5], "exact": 1.2},
        {"kind": "ways", "name": "part_lanes", "ways": 2} | samples,
        {"kind": "count", "name": "count_global", "classes": 1000} | samples,
        tool("memcheck"),
    ]
    lines = inside.table({"runs": runs}).splitlines()
    assert len(lines) == len(runs)
    assert lines[0].split() == ["sum_shared", "32", "columns", "2.00", "us"]
    assert "2 different sums in 100 runs" in lines[1]
    assert lines[4].endswith("memcheck ./faulty")


def test_the_published_record_has_all_that_the_plan_asks_for():
    record = results.published("inside")
    assert len(inside.table(record).splitlines()) == len(record["runs"])
    assert [run["name"] for run in results.runs(record, kind="tool")] == list(TOOLS)
    for name in TOOLS:
        assert inside.says(record, name)
    assert "faulty.cu:17" in inside.says(record, "padded", "Invalid", "block")


def test_a_tool_that_is_missing_leaves_a_reason_and_not_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = _said((), ("right",), (), tmp_path, path=str(tmp_path), seconds=5)
    assert found["text"] == found["command"] == ""
    assert "FileNotFoundError" in found["why_not"]


def test_without_a_gpu_there_is_a_reason(monkeypatch):
    def refuse(name):
        raise engines.EngineUnavailable("no NVIDIA GPU was found.")

    monkeypatch.setattr(engines, "load", refuse)
    with pytest.raises(engines.EngineUnavailable, match="no NVIDIA GPU"):
        inside.measure(**NO_CALLS)


@pytest.mark.gpu
def test_a_small_record():
    record = inside.measure(plan=SMALL, **NO_CALLS)
    assert {run["kind"] for run in record["runs"]} == {"sum", "orders", "ways", "count", "tool"}
    for run in record["runs"]:
        if "samples_us" in run:
            assert len(run["samples_us"]) == 2
            assert np.min(run["samples_us"]) > 0
        if run["kind"] == "tool":
            assert run["text"] or run["why_not"]
    (shuffled, _) = results.runs(record, kind="orders")
    assert len(shuffled["sums"]) == 1
    assert len(inside.table(record).splitlines()) == len(record["runs"])
