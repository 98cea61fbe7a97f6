"""The first step of a process compiles where the cache is empty, and only reads where it is filled."""

import json
import os
import subprocess
import sys

import pytest
from shared import engine_like

from experiments import compile as compiling
from experiments import gpu_compile
from experiments.compile import Plan
from experiments.lab import results
from mlpkit import engines
from mlpkit.nn.models import MLP


def fake(monkeypatch, seconds):
    """Let a process find a cache empty once, and take so many seconds then; return the folders that it was given."""
    folders = []

    def in_new_process(name, cache):
        assert os.path.isdir(cache)
        first = 0.25 if cache in folders else seconds[name]
        folders.append(cache)
        return {"import": 0.5, "prepare": 1.0, "first": first, "later": 0.125}

    monkeypatch.setattr(sys.modules[Plan.__module__], "in_new_process", in_new_process)
    return folders


def run(saved, *names, processes=1, **options):
    plan = Plan(names, processes)
    return compiling.measure(lambda record: saved.append(json.dumps(record)), lambda text: None, plan, **options)


def test_each_engine_starts_with_an_empty_folder_and_then_with_the_same_one(monkeypatch):
    folders = fake(monkeypatch, {"numba_serial": 2.0, "numba_step": 8.0})
    saved = []
    record = run(saved, "numba_serial", "numba_step", processes=2)
    assert len(folders) == 8
    assert folders[::2] == folders[1::2]
    assert len(set(folders)) == 4
    assert not any(os.path.exists(folder) for folder in folders)
    for name, seconds in (("numba_serial", 2.0), ("numba_step", 8.0)):
        assert compiling.median_s(record, name, "empty") == seconds
        assert compiling.median_s(record, name, "filled") == 0.25
        assert compiling.median_s(record, name, "filled", "later") == 0.125
    assert len(saved) == 4
    assert json.loads(saved[-1]) == json.loads(json.dumps(record))


def test_the_table_shows_every_engine_and_an_interrupted_record(monkeypatch):
    fake(monkeypatch, {"numba_serial": 2.0})
    record = run([], "numba_serial")
    record["runs"] += [{"engine": "numba_step", "cache": cache, "samples_s": []} for cache in compiling.CACHES]
    lines = compiling.table(record).splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["numba_serial", "2.00", "0.250", "0.12500"]


def test_all_engines_that_compile_are_measured():
    others = {"numpy_baseline", "python_lists", "python_loops"}
    assert set(Plan().engines) | set(gpu_compile.NAMES) == set(engines.names(MLP.operations)) - others
    assert not set(Plan().engines) & set(gpu_compile.NAMES)


def test_a_reader_waits_for_the_import_the_preparation_and_the_first_step(monkeypatch):
    fake(monkeypatch, {"numba_serial": 2.0})
    record = run([], "numba_serial", experiment="gpu_compile")
    assert record["experiment"] == "gpu_compile"
    assert compiling.wait_s(record, "numba_serial", "empty") == 3.5
    assert compiling.wait_s(record, "numba_serial", "filled") == 1.75
    for case in record["runs"]:
        del case["samples_s"][0]["prepare"]  # a record of an older version
    assert compiling.wait_s(record, "numba_serial", "empty") == 2.5


def test_no_process_is_started_for_an_engine_that_can_t_run(monkeypatch):
    fake(monkeypatch, {})
    monkeypatch.setattr(engines, "import_module", lambda name: (_ for _ in ()).throw(ImportError("no GPU")))
    with pytest.raises(engines.EngineUnavailable, match="can't run on this machine"):
        run([], "cuda_graph")


def test_an_engine_that_can_t_train_so_has_its_reason_and_the_others_have_times(monkeypatch):
    load, refusing = engines.load, engine_like(why_not=lambda model, optimizer, batch_size: "it trains what sees.")
    monkeypatch.setattr(engines, "load", lambda name: refusing if name == "python_lists" else load(name))
    fake(monkeypatch, {"numba_serial": 2.0})
    record = run([], "python_lists", "numba_serial")
    assert [(case["engine"], case["why_not"], len(case["samples_s"])) for case in record["runs"]] == [
        ("python_lists", "it trains what sees.", 0), ("python_lists", "it trains what sees.", 0),
        ("numba_serial", None, 1), ("numba_serial", None, 1),
    ]  # fmt: skip
    _, timed, reason = compiling.table(record).splitlines()
    assert timed.split()[0] == "numba_serial"
    assert reason == "not run: python_lists: it trains what sees."


def test_a_record_can_be_read_back(monkeypatch, tmp_path):
    fake(monkeypatch, {"numba_serial": 2.0})
    record = run([], "numba_serial")
    assert results.load(results.save(record, folder=tmp_path)) == json.loads(json.dumps(record))


def test_a_reader_who_times_one_engine_sees_the_times_alone():
    command = [sys.executable, "-m", compiling.__name__, "numpy_baseline"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=results.ROOT)
    assert json.loads(found.stdout).keys() == {"import", "prepare", "first", "later"}
    assert not found.stderr


@pytest.mark.slow
def test_a_filled_cache_saves_the_compiler_s_time(tmp_path):
    empty, filled = (compiling.in_new_process("numba_serial", tmp_path) for _ in range(2))
    assert any(tmp_path.rglob("*.nbc"))
    assert 0 < filled["later"] < empty["first"]
    assert filled["first"] < empty["first"]
