"""Records that are older than the code that they time are listed, and a new one among them is named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

sys.path.append(str(ROOT / "tools"))

import stale_records  # noqa: E402


def a_record(folder, name, commit, engine):
    path = folder / "machine" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"experiment": name, "commit": commit, "runs": [{"engine": engine}]}))


def test_a_record_is_stale_once_its_engine_or_experiment_has_changed(tmp_path, monkeypatch):
    since = {"old": {"mlpkit/kernels/cnn/dense.cu"}, "new": {"README.md"}, "remade": {"experiments/fit/measure.py"}}
    monkeypatch.setattr(stale_records, "changed", since.get)
    for name, commit, engine in (
        ("goal", "old", "cuda_conv_graph"), ("lenet", "old", "numba_conv"), ("busy", "new", "cuda_conv_graph"),
        ("fit", "remade", "numpy_baseline"), ("sweep", "lost", "numpy_baseline"), ("floor", "old", None),
    ):  # fmt: skip
        a_record(tmp_path, name, commit, engine)
    monkeypatch.setitem(since, "kernel", {"mlpkit/kernels/conv/conv_11_blocked.cu"})
    for name, engine in (("conv_ladder", None), ("gpu_frames", "tiles:cuda_conv_graph"), ("peers", "numba_step")):
        a_record(tmp_path, name, "kernel", engine)  # by its own rungs, by whose predictions it times, and not at all
    assert stale_records.stale(tmp_path) == [
        f"machine/{name}" for name in ("conv_ladder", "fit", "goal", "gpu_frames", "sweep")
    ]


@pytest.mark.slow
def test_those_that_are_stale_are_listed():
    known = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if known.stdout.strip() != "false":
        pytest.skip("this copy has no history, and so nobody knows what has changed")
    new = set(stale_records.stale()) - set(stale_records.LIST.read_text(encoding="utf-8").split())
    assert not new, f"older than what they time: {sorted(new)}: make them anew, or run tools/stale_records.py"
