"""What a record of the choice among convolutions says, on any machine; how decisions are kept, and lost."""

import json
import os
import warnings
from dataclasses import asdict

import pytest
from shared import one_sentence

from experiments import conv_choice
from experiments.conv_choice import Plan
from experiments.conv_ladder import choose, ladder
from experiments.conv_ladder.rungs import Rung
from experiments.lab import results
from mlpkit import engines
from mlpkit.kernels.conv import PASSES, Shape

SHAPE = conv_choice.at()


def run(way, precision, us, shape=SHAPE):
    found = {"kind": "pass", "way": way, "pass": "forward", "shape": asdict(shape), "precision": precision}
    return found | {"error": 1e-7, "workspace": 0, "samples_us": [us, us, 9 * us]}


def decision(precision, rung, shape=SHAPE):
    found = {"kind": "decision", "precision": precision, "rung": rung, "why_not": None}
    return found | {"shape": asdict(shape), "pass": "forward"}


RECORD = {
    "runs": [
        run("direct", "float32", 40.0),
        run("winograd2", "float32", 10.0),
        run("tf32", "tf32", 20.0),
        run("cudnn_float32", "float32", 5.0),
        run("direct", "float32", 3.0, conv_choice.at(channels=4)),
        {"kind": "pass", "way": "fft", "pass": "forward", "shape": asdict(SHAPE), "why_not": "no"},
        decision("float32", "direct"),
        decision("tf32", "winograd2"),
        decision("bf16", None),
    ]
}


def test_lines_go_through_the_centre_and_shapes_are_there_once():
    shapes = conv_choice.shapes()
    assert len(set(shapes)) == len(shapes) == 25
    for name, numbers in conv_choice.LINES.items():
        assert conv_choice.CENTRE[name] in numbers
        assert {conv_choice.at(**{name: number}) for number in numbers} <= set(shapes)
    assert conv_choice.at(channels=1).channels_out == 64
    assert conv_choice.at(kernel=7).padding == 2
    assert conv_choice.at() == Shape(128, 64, 64, 28, 28, 3, padding=1)


def test_the_fastest_that_is_precise_enough():
    assert conv_choice.fastest(RECORD, SHAPE, "forward", "tf32") == ("winograd2", 10)
    assert conv_choice.fastest(RECORD, SHAPE, "forward", "float32", ours=False) == ("cudnn_float32", 5)
    assert conv_choice.fastest(RECORD, SHAPE, "forward", "bf16") == (None, None)
    assert conv_choice.fastest(RECORD, SHAPE, "weight_gradient", "tf32") == (None, None)


def test_a_line_and_the_grid_meet_in_the_centre():
    line = conv_choice.line(RECORD, "channels", "forward", "float32")
    assert line[4] == ("direct", 3)
    assert line[64] == conv_choice.grid(RECORD, "forward", "float32")[64, 28] == ("winograd2", 10)
    assert line[256] == (None, None)


def test_a_wrong_decision_costs_its_time():
    assert conv_choice.decisions(RECORD, "float32") == {(SHAPE, "forward"): "direct"}
    assert conv_choice.regret(RECORD, "float32") == {(SHAPE, "forward"): 4}
    assert conv_choice.regret(RECORD, "tf32") == {(SHAPE, "forward"): 1}
    assert conv_choice.regret(RECORD, "bf16") == {}


def test_a_decision_for_a_wrong_result_is_not_left_out():
    runs = [*RECORD["runs"][:5], decision("float32", "planes_fp16x3")]
    assert conv_choice.regret({"runs": runs}, "float32") == {(SHAPE, "forward"): float("inf")}
    assert conv_choice.table({"runs": [*runs, decision("tf32", "winograd2")]})


def test_the_table_shows_a_record():
    text = conv_choice.table(RECORD)
    for words in ("128 images of 28 x 28, 64 to 64 channels", "winograd2", "cuDNN 5.0 us", "4.00 times"):
        assert words in text


def test_no_gpu_is_said_in_a_sentence(monkeypatch):
    def refuse(name):
        raise engines.EngineUnavailable("no NVIDIA driver")

    monkeypatch.setattr(engines, "load", refuse)
    with pytest.raises(engines.EngineUnavailable, match="no NVIDIA driver"):
        conv_choice.measure(save=None, progress=None)


def test_the_published_record_can_be_read():
    record = results.published("conv_choice")
    assert conv_choice.table(record)
    assert conv_choice.fastest(record, SHAPE, "forward", "float32")[0] in ladder.OURS
    assert min(conv_choice.regret(record, "float32").values()) >= 1


# Decisions


RUNGS = {name: Rung(name, (), precision, "nchw", lambda *arguments: None) for name, precision in
         (("slow", "float32"), ("quick", "tf32"), ("half", "bf16"))}  # fmt: skip


@pytest.fixture
def timed(monkeypatch):
    """Count what is timed, on a machine that is told to have a GPU."""
    asked = []

    def times(shape, which, precision, rungs=None):
        asked.append((shape, which, precision))
        return {name: us for name, us in (("quick", 1.0), ("slow", 2.0)) if name in choose.able(*asked[-1], rungs)}

    monkeypatch.setattr(choose, "times", times)
    monkeypatch.setattr(choose, "here", lambda: "a GPU")
    return asked


def test_a_decision_is_taken_once(timed, tmp_path):
    path = tmp_path / "folder" / "kept.json"
    for _ in range(2):
        assert choose.fastest(SHAPE, "forward", "tf32", path, RUNGS) == "quick"
        assert choose.fastest(SHAPE, "forward", "float32", path, RUNGS) == "slow"
    assert len(timed) == 2


def test_another_gpu_decides_anew(timed, tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    choose.fastest(SHAPE, "forward", "tf32", path, RUNGS)
    monkeypatch.setattr(choose, "here", lambda: "another GPU")
    choose.fastest(SHAPE, "forward", "tf32", path, RUNGS)
    assert len(timed) == 2
    assert set(json.loads(path.read_text())) == {"a GPU", "another GPU"}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a GPU": 3}', '{"a GPU": {"x": 3}}', "\xff", "null", "[" * 5000])
def test_a_damaged_file_is_told_of_and_replaced(timed, tmp_path, text):
    path = tmp_path / "kept.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.warns(UserWarning, match="timed again") as told:
        assert choose.fastest(SHAPE, "forward", "tf32", path, RUNGS) == "quick"
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
    with warnings.catch_warnings(action="error"):
        assert choose.fastest(SHAPE, "forward", "tf32", path, RUNGS) == "quick"
    assert len(timed) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.filterwarnings("ignore:the decision is not kept")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)], ids=["folder", "pipe"])
def test_what_is_no_file_is_told_of_and_not_waited_for(make, timed, tmp_path):
    make(tmp_path / "kept.json")
    with pytest.warns(UserWarning, match="can't be read") as told:
        assert choose.fastest(SHAPE, "forward", "tf32", tmp_path / "kept.json", RUNGS) == "quick"
    for warning in told:
        one_sentence(warning.message, "kept.json")


def test_a_name_that_no_rung_has_any_more_is_decided_again(timed, tmp_path):
    path = tmp_path / "kept.json"
    choose.fastest(SHAPE, "forward", "tf32", path, RUNGS)
    path.write_text(path.read_text().replace("quick", "gone"))
    assert choose.fastest(SHAPE, "forward", "tf32", path, RUNGS) == "quick"


def test_where_nothing_can_be_written_it_is_decided_all_the_same(timed, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not kept"):
        assert choose.fastest(SHAPE, "forward", "tf32", tmp_path / "file" / "kept.json", RUNGS) == "quick"


def test_what_there_is_not_is_refused_in_a_sentence(timed, tmp_path):
    with pytest.raises(ValueError, match="no rung"):
        choose.fastest(SHAPE, "forward", "bf16", tmp_path / "kept.json", RUNGS)
    with pytest.raises(ValueError, match="pass"):
        choose.fastest(SHAPE, "backward", "bf16", tmp_path / "kept.json", RUNGS)
    with pytest.raises(ValueError, match="precision"):
        choose.fastest(SHAPE, "forward", "fp8", tmp_path / "kept.json", RUNGS)


def test_the_place_can_be_told(monkeypatch, tmp_path):
    monkeypatch.setenv("MLPKIT_CONVOLUTIONS", str(tmp_path / "here.json"))
    assert choose.default_path() == tmp_path / "here.json"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("MLPKIT_CONVOLUTIONS", "~/here.json")
    assert choose.default_path() == tmp_path / "here.json"


# On a GPU


@pytest.mark.gpu
def test_a_small_record_can_be_read(tmp_path):
    plan = Plan(shapes=(Shape(2, 3, 8, 9, 7, 3, padding=1),), rungs=("direct", "shared"))
    record = conv_choice.measure(save=lambda record: None, progress=lambda what: None, plan=plan)
    again = results.load(results.save(record, folder=tmp_path))
    for which in PASSES:
        assert conv_choice.fastest(again, plan.shapes[0], which, "float32")[0] in plan.rungs
    assert "3 to 8 channels" in conv_choice.table(again)


@pytest.mark.gpu
def test_a_decision_on_this_gpu(tmp_path):
    shape, path = Shape(2, 3, 8, 9, 7, 3, padding=1), tmp_path / "kept.json"
    name = choose.fastest(shape, "forward", "float32", path)
    assert ladder.RUNGS[name].precision == "float32"
    assert choose.fastest(shape, "forward", "float32", path) == name
