"""What a record of the convolution ladder says, on any machine; on a GPU, a small one is made."""

import json
from dataclasses import asdict, astuple

import numpy as np
import pytest
from conv_cases import operands, wanted

from experiments import conv_ladder
from experiments.conv_ladder import ERRORS, LAYERS, Plan, asked, ladder
from experiments.conv_ladder.rungs import errors_of, why_too_far
from experiments.lab import processes, results
from mlpkit import engines
from mlpkit.kernels import gpu
from mlpkit.kernels.conv import PASSES, Shape

LAYER, SHAPE = "small", Shape(2, 3, 8, 9, 7, 3, padding=1)
QUICK = Plan(samples=2, sample_ms=0.1, layers={LAYER: SHAPE}, peer_seconds=30)
FLOPS = SHAPE.flops


def run(way, precision, *samples_us, which="forward", **more):
    found = {"kind": "pass", "layer": LAYER, "pass": which, "way": way, "precision": precision, "error": 1e-7}
    return found | {"workspace": 0, "samples_us": list(samples_us)} | more


CHOICE = {"layout": "nhwc", "plan": "eng5_k2=1", "tried": 60, "first_us": 25.0}
KERNEL = {"kernel": "forward", "registers": 96, "occupancy": 0.5}
RECORD = {
    "settings": {"plan": {"layers": {LAYER: asdict(SHAPE)}}},
    "runs": [
        {"kind": "peak", "precision": "float32", "samples_gflops": [50.0, 60.0]},
        {"kind": "peak", "precision": "tf32", "samples_gflops": [400.0]},
        {"kind": "copy", "bytes": 2**31, "samples_gbps": [3900.0]},
        run("direct", "float32", 40.0, 44.0, 9e9, kernels=[KERNEL]),
        run("cudnn_float32", "float32", 22.0, choice=CHOICE),
        run("cudnn_tf32", "tf32", 20.0, choice=CHOICE),
        run("tf32", "tf32", 10.0, workspace=3 * 2**20),
        run("winograd2", "float32", 8.0),
        run("torch_tf32", "tf32", 30.0, layout="nchw"),
        run("torch_tf32", "tf32", 21.0, layout="nhwc"),
        run("jax_tf32", "tf32", 26.0, layout="nhwc"),
        run("jax_bf16", "bf16", 18.0, layout="nhwc", loop_us=[14.0]),
        {"kind": "pass", "layer": LAYER, "pass": "forward", "way": "fft", "why_not": "strides are not for it."},
        {"kind": "peer", "way": "jax", "why_not": None, "versions": {}},
        {"kind": "peer", "way": "torch", "why_not": "No module named 'torch'"},
    ],
}


def test_a_share_is_of_cudnn_in_the_same_class():
    assert conv_ladder.share(RECORD, "direct", LAYER, "forward") == 0.5
    assert conv_ladder.share(RECORD, "tf32", LAYER, "forward") == 2
    assert conv_ladder.share(RECORD, "fft", LAYER, "forward") is None
    assert conv_ladder.share(RECORD, "tf32", LAYER, "input_gradient") is None


def test_of_two_layouts_the_faster_one_counts():
    assert conv_ladder.median_us(RECORD, "torch_tf32", LAYER, "forward") == 21


def test_what_was_timed_by_loops_to_subtract_is_not_read():
    assert conv_ladder.median_us(RECORD, "jax_tf32", LAYER, "forward") == 26
    assert conv_ladder.median_us(RECORD, "jax_bf16", LAYER, "forward") is None
    assert "not read" in conv_ladder.table(RECORD)


def test_the_best_is_at_least_as_precise_as_asked():
    assert conv_ladder.best(RECORD, LAYER, "forward", "float32") == "winograd2"
    assert conv_ladder.best(RECORD, LAYER, "forward", "tf32") == "winograd2"
    assert conv_ladder.best(RECORD, LAYER, "forward", "tf32", ours=False) == "cudnn_tf32"
    assert conv_ladder.best(RECORD, LAYER, "forward", "bf16") is None
    assert conv_ladder.lead(RECORD, LAYER, "forward", "float32") == 22 / 8
    assert conv_ladder.lead(RECORD, LAYER, "input_gradient", "float32") is None


def test_rates_are_of_the_direct_sums():
    assert conv_ladder.gflops(RECORD, "tf32", LAYER, "forward") == FLOPS / 10 / 1e3
    assert conv_ladder.part_of_peak(RECORD, "direct", LAYER, "forward") == FLOPS / 44 / 1e3 / 60
    assert conv_ladder.peak(RECORD, "tf32") == 400


def test_ours_and_others_are_told_apart():
    assert conv_ladder.variants(RECORD) == ["direct", "tf32", "winograd2"]
    assert conv_ladder.variants(RECORD, ours=False) == ["cudnn_float32", "cudnn_tf32", "torch_tf32", "jax_tf32"]
    assert conv_ladder.kernels(RECORD, "direct", LAYER, "forward") == [KERNEL]


def test_the_table_shows_a_record():
    text = conv_ladder.table(RECORD)
    for words in (
        "50% of cuDNN",
        "200% of cuDNN",
        "3.0 MiB",
        "eng5_k2=1",
        "strides are not for it",
        "3,900 GB/s",
        "nhwc",
    ):
        assert words in text
    assert "torch: No module named 'torch'" in text


def test_a_record_that_lacks_something_is_told_of_in_a_sentence():
    with pytest.raises(results.RecordError, match="can't be read"):
        conv_ladder.table({"runs": [{"kind": "pass", "layer": LAYER, "pass": "forward", "way": "a"}]})


def test_no_gpu_is_said_in_a_sentence(monkeypatch):
    def refuse(name):
        raise engines.EngineUnavailable("no NVIDIA driver")

    monkeypatch.setattr(engines, "load", refuse)
    with pytest.raises(engines.EngineUnavailable, match="no NVIDIA driver"):
        conv_ladder.measure(save=None, progress=None)


def test_every_rung_has_a_name_of_its_own():
    modules = [name for module in ladder.MODULES for name in module.RUNGS]
    assert len(set(modules)) == len(modules) == len(ladder.RUNGS)
    assert {rung.precision for rung in ladder.RUNGS.values()} == {"float32", "tf32", "bf16"}


@pytest.mark.parametrize("capability", ["80", "90", "100"])
@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("which", PASSES)
def test_there_is_a_rung_for_every_layer_and_gpu(which, precision, capability):
    for shape in (*LAYERS.values(), SHAPE):
        rung = ladder.RUNGS[ladder.best(shape, which, precision, capability)]
        assert ERRORS[rung.precision] <= ERRORS[precision]
        assert ladder.fits(rung, capability)
        assert rung.why_not(shape, which) is None


def test_what_there_is_not_is_refused():
    with pytest.raises(ValueError, match="pass"):
        ladder.best(SHAPE, "backward", "tf32")
    with pytest.raises(ValueError, match="precision"):
        ladder.best(SHAPE, "forward", "fp8")


def test_the_published_record_can_be_read_and_can_be_true():
    record = results.published("conv_ladder")
    assert "of cuDNN" in conv_ladder.table(record)
    for layer in LAYERS:
        for which in PASSES:
            assert conv_ladder.best(record, layer, which, "float32")
            for way in (*conv_ladder.variants(record), *conv_ladder.variants(record, ours=False)):
                part = conv_ladder.part_of_peak(record, way, layer, which)
                if part and conv_ladder.precision_of(record, way) == "bf16":  # where nobody transforms
                    assert part < 1.05, (way, layer, which)


# On a GPU


@pytest.mark.gpu
def test_a_small_record_has_what_the_chapter_reads(tmp_path):
    saved = []
    record = conv_ladder.measure(save=saved.append, progress=lambda what: None, plan=QUICK)
    again = results.load(results.save(record, folder=tmp_path))
    assert len(saved) == len(record["runs"])
    for which in PASSES:
        assert conv_ladder.median_us(again, "direct", LAYER, which) > 0
        assert all(kernel["registers"] for kernel in conv_ladder.kernels(again, "direct", LAYER, which))
    assert "small, forward" in conv_ladder.table(again)


@pytest.mark.peers
@pytest.mark.parametrize("peer", ["torch", "jax"])
def test_a_peer_computes_all_passes(peer, tmp_path):
    pytest.importorskip(peer)
    if peer == "torch" and gpu.why_not():
        pytest.skip(gpu.why_not())
    for which in PASSES:
        a, b = operands(SHAPE, which)
        asked.keep(tmp_path, SHAPE, which, a, b, wanted(SHAPE, which, a, b))
    layers = json.dumps({LAYER: astuple(SHAPE)})
    module = f"experiments.conv_ladder.{peer}_peer"
    answer = processes.ask(module, f"--layers={layers}", "--samples=2", f"--folder={tmp_path}")
    assert len(answer["runs"]) == 2 * 3 * 3
    for run in answer["runs"]:
        assert run["error"] < ERRORS[run["precision"]]
        assert len(run["samples_us"]) == 2


def test_a_row_that_is_off_is_found_beside_one_that_is_large():
    right = np.random.default_rng(0).normal(size=(4, 3, 5, 5))
    right[0] *= 1e6
    whole, row = errors_of(right * (1 + 3e-8), right)
    assert row == pytest.approx(whole, rel=1e-6)
    found = right.copy()
    found[2] *= 1 + 1e-3
    whole, row = errors_of(found, right)
    assert whole < 1e-8 < row == pytest.approx(1e-3)
    assert why_too_far((whole, row), "float32") == "a row of its result is off by 1.0e-03 of its norm."
    assert why_too_far((whole, row), "tf32") is None
    assert "its result is off by 2.0e-05" in why_too_far((2e-5, 2e-5), "float32")
    found[3] = np.nan
    assert "off by nan" in why_too_far(errors_of(found, right), "bf16")
