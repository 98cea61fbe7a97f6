"""What a study's file says, and what is wrong with one that says it wrongly."""

import pytest

pytest.importorskip("optuna", reason="the extra `search` adds what these tests need")
from mlpkit.search.study import read
from mlpkit.training.recipe import Recipe

RATES = "lr = { low = 0.001, high = 1.0, log = true, points = 4 }"
KINDS = 'optimizer = { choices = ["sgd", "adam"] }'


def written(folder, head="", search=f"{RATES}\n{KINDS}", recipe="epochs = 9"):
    path = folder / "rates.toml"
    path.write_text(f"{head}\n[recipe]\n{recipe}\n[search]\n{search}\n", encoding="utf-8")
    return path


def test_a_study_says_what_is_fixed_and_what_is_tried(tmp_path):
    study = read(written(tmp_path, "trials = 7\nseeds = 2", recipe='epochs = 9\nmodel = "mlp"\nseed = 5'))
    assert (study.name, study.trials, study.sampler, study.storage) == ("rates", 7, "tpe", "studies.db")
    recipe = study.recipe_of({"lr": 0.1, "optimizer": "adam"}, 1)
    assert recipe == Recipe(optimizer="adam", lr=0.1, epochs=9, seed=6)
    assert "trials" not in study.settings()
    assert study.settings()["search"]["lr"]["high"] == 1.0


@pytest.mark.parametrize(("epochs", "rungs"), [(1, (1,)), (2, (1, 2)), (9, (1, 3, 9)), (20, (1, 3, 9, 20))])
def test_hyperband_looks_at_powers_of_three_and_at_the_end(tmp_path, epochs, rungs):
    assert read(written(tmp_path, recipe=f"epochs = {epochs}")).rungs() == rungs
    assert read(written(tmp_path, 'pruner = "none"', recipe=f"epochs = {epochs}")).rungs() == (epochs,)


def test_a_grid_has_all_its_points_within_the_range(tmp_path):
    batches = "batch_size = { low = 16, high = 64, points = 3 }"
    study = read(written(tmp_path, 'sampler = "grid"', search=f"{RATES}\n{batches}"))
    assert study.grid("lr") == pytest.approx([0.001, 0.01, 0.1, 1.0])
    assert study.grid("batch_size") == [16, 40, 64]
    assert max(study.grid("lr")) <= 1.0
    assert len(study.points()) == 12


WRONG = {
    "no TOML": ("= 3", {}, "Invalid statement"),
    "another key": ("trails = 3", {}, "a study has no 'trails'; it may have name, search"),
    "no trials": ("trials = 0", {}, "trials must be at least 1"),
    "half a trial": ("trials = 2.5", {}, "trials must be a whole number"),
    "another sampler": ('sampler = "best"', {}, "there is no sampler 'best'; choose from tpe, random, grid"),
    "another engine": ('engine = "fast"', {}, "there is no engine 'fast'"),
    "a list of names": ("name = []", {}, "name must be a text"),
    "no storage": ('storage = ""', {}, "storage must be a text"),
    "another cluster": ('cluster = "cloud"', {}, "cluster must be local, ssh, slurm or an address"),
    "hosts in one text": ('hosts = "one, two"', {}, "hosts must be a list"),
    "nothing to search": ("", {"search": ""}, "search must be a table, such as lr"),
    "no recipe's choice": ("", {"search": "rate = {low = 1, high = 2}"}, "'rate' can't be set there"),
    "epochs searched for": ("", {"search": "epochs = {low = 1, high = 2}"}, "'epochs' can't be set there"),
    "a number alone": ("", {"search": "lr = 0.1"}, "lr needs choices = [...], or numbers low < high"),
    "upside down": ("", {"search": "lr = {low = 1.0, high = 0.1}"}, "lr needs choices"),
    "from NaN": ("", {"search": "lr = {low = nan, high = 0.1}"}, "lr needs choices"),
    "for ever": ("", {"search": "lr = {low = 0.1, high = inf}"}, "lr needs choices"),
    "the logarithm of 0": ("", {"search": "lr = {low = 0.0, high = 0.1, log = true}"}, "log = true (above 0)"),
    "a logarithm that is no flag": ("", {"search": "lr = {low = 0.1, high = 0.2, log = 3}"}, "lr needs choices"),
    "settings that are none": ("", {"recipe": "settings = 3"}, "settings must be numbers by name"),
    "a word too many": ("", {"search": "lr = {low = 0.1, high = 0.2, step = 3}"}, "lr needs choices"),
    "no choices": ("", {"search": "lr = {choices = []}"}, "lr needs choices"),
    "a choice that is none": ("", {"search": 'optimizer = {choices = ["sgd", "best"]}'}, "optimizer 'best'"),
    "a rate below 0": ("", {"search": "lr = {low = -1.0, high = 0.1}"}, "lr must be a finite number above 0"),
    "no epochs": ("", {"recipe": "epochs = 0"}, "epochs must be at least 1"),
    "another model": ("", {"recipe": 'model = "gpt"'}, "there is no model 'gpt'"),
    "more trials than time": ("trials = 99_999_999_999", {}, "trials must be at most 1,000,000"),
    "a heartbeat in ages": ("heartbeat = 10_000_000_000_000", {}, "heartbeat must be at most"),
    "a choice that is a list": ("", {"search": "lr = {choices = [[0.1]]}"}, "lr needs choices"),
    "more than 64 bits": ("", {"search": f"batch_size = {{low = 1, high = {10**20}}}"}, "batch_size needs choices"),
    "a grid of terabytes": (
        'sampler = "grid"', {"search": "lr = {low = 0.1, high = 0.2, points = 999_999_999_999}"}, "at most 1,000,000"),
    "a grid of too many points": (
        'sampler = "grid"',
        {"search": "lr = {low = 0.1, high = 1, points = 2000}\nweight_decay = {low = 0.1, high = 1, points = 2000}"},
        "the product of all points must be at most 1,000,000, not 4,000,000",
    ),
    "a grid without points": ('sampler = "grid"', {"search": "lr = {low = 0.1, high = 0.2}"}, "lr's points must be"),
}  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("head", "parts", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path, head, parts, said):
    with pytest.raises((ValueError, TypeError)) as caught:
        read(written(tmp_path, head, **parts))
    sentence = str(caught.value)
    assert said in sentence
    assert "rates.toml: " in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_missing_file_and_a_binary_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.toml")
    (tmp_path / "odd.toml").write_bytes(b"\xff\x00")
    with pytest.raises(ValueError, match=r"odd\.toml: "):
        read(tmp_path / "odd.toml")


def test_a_file_as_windows_writes_it_is_read(tmp_path):
    path = written(tmp_path, "seed = 20_261_128")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read(path).seed == 20261128
