"""The records of chapter 23: a network is trained and judged, frames are timed, and tables say what records have."""

import json

import numpy as np
import pytest
from PIL import Image
from shared import peer_alone, peers_of

from experiments import frames, gpu_frames, sharpen
from experiments.sharpen.measure import OWN, bicubic, looked_at
from experiments.sharpen.train import SOURCES, UNSEEN, data_for, detail, recipe_for, train
from mlpkit.data.pictures import pictures
from mlpkit.nn.network import Network

SMALL = sharpen.Choice(channels=2, depth=1, engine="numpy_baseline", data="t91")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two pictures to train on."""
    made = tmp_path_factory.mktemp("t91")
    for name in ("chelsea", "coffee"):
        picture = pictures(longest=120)[name].transpose(1, 2, 0)
        Image.fromarray(picture).save(made / f"{name}.png")
    return made


def test_our_own_are_three_seeds_of_at_most_12_000_parameters_on_both_sets():
    assert len(OWN) == len({choice.name for choice in OWN}) == 18
    assert max(choice.model(30).layout.size for choice in OWN) <= 12_000
    assert {(choice.scale, choice.data) for choice in OWN} == {(s, d) for s in (2, 3, 4) for d in ("t91", "photos")}


@pytest.mark.parametrize("kind", ["own", "espcn", "srcnn915", "srcnn955"])
@pytest.mark.parametrize("scale", [2, 3])
def test_every_kind_gets_patches_that_fit_it(folder, kind, scale):
    choice = sharpen.Choice(kind, scale, channels=2, depth=1)
    X, y = data_for(choice, folder)
    model = recipe_for(choice, X).model
    assert X.shape[1:] == model.input
    assert y.shape[1:] == model.output
    assert len(X) == len(y) > 4
    assert (X.dtype, y.dtype) == (np.float32, np.uint8)


def test_a_network_is_trained_saved_and_judged(folder, tmp_path):
    X, y = data_for(SMALL, folder)
    waited = []
    path = train(SMALL, X[:8], y[:8], tmp_path, epochs=2, wait=lambda: waited.append(1))
    seen = json.loads(path.with_suffix(".json").read_text())
    assert (seen["steps"], seen["examples"], waited) == (4, 64, [1])
    assert Network.load(path).model == SMALL.model(X.shape[-1])
    found = {"cat": pictures(longest=100)["chelsea"]}
    made = looked_at(path, SMALL, found, "numpy_baseline")
    plain = bicubic(found, 2)
    assert abs(made["psnr"]["cat"] - plain["psnr"]["cat"]) < 1  # it begins as bicubic
    assert 0.5 < made["ssim"]["cat"] < 1


def test_nobody_trains_on_what_the_chapter_looks_at(monkeypatch):
    monkeypatch.setattr("experiments.sharpen.train.pictures", lambda *_, **__: dict.fromkeys([*UNSEEN, "other"]))
    monkeypatch.setattr("experiments.sharpen.train.patches", lambda found, *_: (np.zeros((len(found), 1, 2, 2)),) * 2)
    assert len(data_for(sharpen.Choice(data="photos"), "nowhere")[0]) == 1


def test_of_photographs_the_patches_with_most_detail_are_taken():
    _, y = data_for(sharpen.Choice(scale=4, data="photos"), "nowhere")
    of = detail(y)
    assert len(y) == SOURCES["photos"][1]
    assert (np.diff(of) <= 0).all()
    assert of[-1] > 10  # where all count, some are flat: 0
    plain, stripes = np.zeros((1, 1, 4, 4), np.uint8), np.tile(np.uint8([0, 255]), (1, 1, 4, 2))
    assert detail(np.concatenate([plain, stripes])).tolist() == [0, 255**2]


def test_the_table_has_means_over_pictures_and_seeds():
    runs = [{"kind": "bicubic", "scale": 2, "data": None, "psnr": {"a": 20.0, "b": 30.0}}]
    runs += [{"kind": "own", "scale": 2, "data": "t91", "psnr": {"a": 21.0 + seed, "b": 31.0}} for seed in (0, 2)]
    record = {"experiment": "sharpen", "runs": runs}
    assert sharpen.mean(record, "bicubic", 2, "photos").tolist() == [25]
    assert sharpen.mean(record, "own", 2).tolist() == [26, 27]
    assert len(sharpen.mean(record, "own", 2, "photos")) == 0
    assert "26.50 ±0.71" in sharpen.table(record)
    assert sharpen.published("FSRCNN", 4) == 27.59


def test_the_median_of_all_rounds_is_a_peers_time_and_a_refusal_is_told():
    about = {"model": "x2", "why_not": None}
    runs = [{**about, "engine": "one", "samples_us": [1000.0, 3000.0]}, {**about, "engine": "one", "samples_us": [5e3]}]
    runs += [{**about, "engine": "other", "samples_us": [], "why_not": "it is not here"}]
    record = {"experiment": "frames", "runs": runs}
    assert frames.ms(record, "one", "x2") == 3
    assert frames.ms(record, "other", "x2") is None
    assert "it is not here" in frames.table(record)


@pytest.mark.slow
@pytest.mark.parametrize("who", peers_of(frames))
def test_frames_are_the_baselines_and_timed(who):
    peer_alone(frames, who, scales=(3,), frame=(96, 120), frames=2)


def test_without_a_gpu_frames_on_one_are_refused_in_a_sentence():
    from mlpkit import engines
    from mlpkit.kernels import gpu

    if gpu.why_not() is None:
        pytest.skip("there is a GPU")
    with pytest.raises(engines.EngineUnavailable):
        gpu_frames.measure(save=lambda record: None, progress=lambda text: None)


def test_whoever_is_slower_and_more_exact_has_a_line_on_the_gpu():
    about = {"model": "x2", "n": 1, "way": "graph", "difference": 1e-7, "why_not": None}
    runs = [
        {
            **about,
            "engine": "tiles:cuda_conv_graph",
            "precision": "float32",
            "device_us": [500.0],
            "waited_us": [900.0],
        }
    ]
    record = {"experiment": "gpu_frames", "runs": runs}
    assert "x2 cuda_conv_graph float32" in gpu_frames.table(record)
    assert "0.500    0.900" in gpu_frames.table(record)
