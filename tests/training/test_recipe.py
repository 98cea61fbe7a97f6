"""A recipe holds every choice, refuses those there are not, and trains the same network twice."""

import json
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import SMALL, dataset, one_sentence

from mlpkit.nn.models import mlp
from mlpkit.nn.network import Network
from mlpkit.optim import BY_NAME, SGD
from mlpkit.optim.schedules import Constant, Cosine, StepDecay, WarmUp
from mlpkit.training.fit import fit
from mlpkit.training.recipe import SCHEDULES, Recipe

DATA = dataset()
RECIPE = Recipe(model=SMALL, batch_size=8, epochs=3, lr=0.3)


def test_a_recipe_comes_back_from_json():
    recipe = RECIPE.but(optimizer="adamw", schedule="cosine", warmup_epochs=0.5, weight_decay=0.1)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


OTHERS = {
    "NumPy's": dict(lr=np.float64(0.3), batch_size=np.int64(8), weight_decay=np.float32(0), dtype=np.float32),
    "of more bits": dict(lr=np.longdouble(0.3), seed=np.uint64(0)),
    "an array": dict(batch_size=np.array(8), epochs=np.array(3)),
    "a fraction": dict(warmup_epochs=Fraction(0), lr=Fraction(0.3)),
    "a flag": dict(seed=False),
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_numbers_may_be_others_than_pythons_own(others):
    assert Recipe.from_dict(json.loads(json.dumps(RECIPE.but(**others).to_dict()))) == RECIPE


@pytest.mark.parametrize(("n", "steps"), [(1, 1), (8, 1), (9, 2), (55_000, 6875)])
def test_an_epoch_counts_its_short_last_batch(n, steps):
    assert RECIPE.steps_an_epoch(n) == steps


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.3, 0.3, 0.3]),
        ("step", [0.3, 0.03, 0.003]),
        ("exponential", [0.3, 0.03, 0.003]),
        ("cosine", [0.3, 0.15, 0.0]),
    ],
)
@pytest.mark.parametrize("warmup_epochs", [0, 1])
def test_a_schedule_spans_the_run(schedule, rates, warmup_epochs):
    """At its first, middle and last step after the warm-up, in three epochs of 30 steps."""
    recipe = RECIPE.but(schedule=schedule, warmup_epochs=warmup_epochs, epochs=3 + warmup_epochs)
    rate, warmup = recipe.make_schedule(240), 30 * warmup_epochs
    first, middle, last = (rate(warmup + step) for step in (0, 45, 89))
    assert_allclose([first, middle], rates[:2], rtol=1e-12)
    assert last == pytest.approx(rates[2], rel=0.1, abs=1e-3)
    assert rate(0) == pytest.approx(0.3 / max(1, warmup))


@pytest.mark.parametrize("epochs", [0.5, 2])
def test_a_warm_up_may_last_as_long_as_the_training_and_ends_at_lr(epochs):
    rate = RECIPE.but(warmup_epochs=epochs, epochs=2).make_schedule(240)
    assert rate(30 * epochs - 1) == pytest.approx(0.3)
    RECIPE.but(warmup_epochs=epochs, epochs=0)  # of the first weights


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", BY_NAME)
def test_the_same_recipe_is_the_same_network(optimizer, schedule):
    recipe = RECIPE.but(optimizer=optimizer, schedule=schedule, lr=0.01)
    one, other = (recipe.train(DATA)[0].theta for _ in range(2))
    assert_array_equal(one, other)
    assert not np.array_equal(one, recipe.but(seed=1).train(DATA)[0].theta)


def test_the_seed_is_that_of_the_first_weights_and_of_the_order():
    network = Network(model=SMALL, seed=7)
    history = fit(network, SGD(network, 0.3), DATA.train, epochs=3, batch_size=8, seed=7)
    assert RECIPE.but(seed=7).train(DATA)[1].loss == history.loss


def test_every_choice_makes_a_difference():
    start = RECIPE.train(DATA)[0].theta
    changes = [
        *(dict(optimizer=name) for name in BY_NAME if name not in ("sgd", "adamw")),  # adamw without decay is adam
        *(dict(schedule=name) for name in SCHEDULES if name != "constant"),
        dict(lr=0.2),
        dict(warmup_epochs=0.5),
        dict(weight_decay=0.1),
        dict(batch_size=9),
        dict(epochs=2),
        dict(init="xavier"),
        dict(seed=1),
        dict(model=mlp(6, 4, 3)),
    ]
    thetas = [start, *(RECIPE.but(**change).train(DATA)[0].theta for change in changes)]
    assert len({theta.tobytes() for theta in thetas}) == len(changes) + 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(optimizer="adma"), ValueError, "sgd, momentum, nesterov, rmsprop, adam, adamw"),
        (dict(schedule="linear"), ValueError, "constant, step, exponential, cosine"),
        (dict(batch_size=0), ValueError, "batch_size must be at least 1"),
        (dict(batch_size="8"), TypeError, "batch_size"),
        (dict(epochs="5"), TypeError, "epochs must be a whole number, not '5'"),
        (dict(epochs=2.5, schedule="cosine"), TypeError, "epochs must be a whole number"),
        (dict(seed=-1), ValueError, "seed must be at least 0"),
        (dict(lr=0), ValueError, "lr must be"),
        (dict(warmup_epochs=-1), ValueError, "warmup_epochs must be"),
        (dict(warmup_epochs=float("nan")), ValueError, "warmup_epochs must be"),
        (
            dict(warmup_epochs=10, epochs=5),
            ValueError,
            "must be at most epochs, 5, to reach the rate lr, not 10",
        ),
        (dict(weight_decay="0.1"), ValueError, "weight_decay must be"),
        (dict(optimizer=["sgd"]), ValueError, "sgd, momentum"),
        (dict(init="hee"), ValueError, "he, xavier"),
        (dict(model=(784, 10)), TypeError, "model must be a Model, such as mlp(784, 128, 10)"),
        (dict(model="mlp"), TypeError, "model must be a Model"),
        (dict(dtype="float23"), ValueError, "float32 or float64"),
        *[(dict(settings=odd), TypeError, "settings must be numbers by name") for odd in (3, "ab", [1], None)],
    ],
)
def test_a_choice_that_there_is_not_is_refused(change, error, words):
    with pytest.raises(error) as caught:
        RECIPE.but(**change)
    one_sentence(caught.value, words)


@pytest.mark.parametrize(
    "choices",
    [{}, {"model": {}}, Recipe().to_dict() | {"color": 1}, None, [], "sgd"],
    ids=["nothing", "model", "more", "none", "list", "text"],
)
def test_what_is_no_recipe_is_refused(choices):
    with pytest.raises(ValueError, match="this is no") as caught:
        Recipe.from_dict(choices)
    one_sentence(caught.value)


def test_a_part_of_a_data_set_and_one_without_images_to_train_on_are_refused():
    with pytest.raises(TypeError, match=r"trains on what .* returns, not on a Split"):
        RECIPE.train(DATA.train)
    with pytest.raises(ValueError, match="there are no examples"):
        RECIPE.train(DATA._replace(train=DATA.train._replace(X=DATA.train.X[:0], y=DATA.train.y[:0])))


# Settings of the optimizer, and schedules of one's own


def test_the_optimizer_gets_its_settings():
    recipe = RECIPE.but(optimizer="adam", settings={"beta2": 0.99, "eps": 1e-6}, lr=0.01)
    network = recipe.make_network()
    optimizer = recipe.make_optimizer(network, 50)
    assert optimizer.settings == {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}
    assert optimizer.describe() == "Adam(lr=Constant(0.01), weight_decay=0.0, beta1=0.9, beta2=0.99, eps=1e-06)"
    found = recipe.train(DATA)[1].loss
    assert found == recipe.but(settings={"eps": 1e-6, "beta2": 0.99}).train(DATA)[1].loss  # in whatever order
    assert found != recipe.but(settings={}).train(DATA)[1].loss


@pytest.mark.parametrize("schedule", [Cosine(0.1, 1000), WarmUp(StepDecay(0.3, 5, factor=0.5), 3), Constant(0.02)])
def test_a_schedule_of_ones_own_gives_the_rates(schedule):
    recipe = RECIPE.but(optimizer="momentum", schedule=schedule, settings={"momentum": 0.95})
    history = recipe.train(DATA)[1]
    assert [epoch.lr for epoch in history.epochs] == pytest.approx([float(schedule(7 * i - 1)) for i in (1, 2, 3)])
    assert recipe.make_optimizer(recipe.make_network(), 50).describe() == (
        f"Momentum(lr={schedule!r}, weight_decay=0.0, momentum=0.95)"
    )
    found = json.loads(json.dumps(recipe.to_dict()))
    assert found["settings"] == {"momentum": 0.95}
    assert found["schedule"] == repr(schedule)
    again = Recipe.from_dict(found)
    assert again == recipe
    assert again.train(DATA)[1].loss == history.loss


def test_a_schedule_of_ones_own_may_be_warmed_up_to():
    rates = RECIPE.but(schedule=Constant(0.5), warmup_epochs=1).make_schedule(50)
    assert_allclose([rates(0), rates(3), rates(6), rates(20)], [0.5 / 7, 2 / 7, 0.5, 0.5])


def test_what_is_left_out_is_not_written():
    assert "settings" not in RECIPE.to_dict()
    assert RECIPE.to_dict()["schedule"] == "constant"


@pytest.mark.parametrize(
    ("optimizer", "name", "words"),
    [
        ("sgd", "momentum", "sgd has no setting 'momentum'; it has none"),
        ("momentum", "beta1", "momentum has no setting 'beta1'; it has momentum"),
        ("adam", "lr", "adam has no setting 'lr'; it has beta1, beta2, eps"),
        ("adam", "reduce", "no setting 'reduce'"),
    ],
)
def test_a_setting_that_the_optimizer_has_not_is_refused(optimizer, name, words):
    with pytest.raises(ValueError, match="no setting") as caught:
        RECIPE.but(optimizer=optimizer, settings={name: 0.5})
    one_sentence(caught.value, words)


def test_a_function_trains_and_can_not_be_written():
    recipe = RECIPE.but(schedule=lambda step: 0.1 / (1 + step))
    assert recipe.train(DATA)[1].stopped == "finished"
    with pytest.raises(ValueError, match="can't be written") as caught:
        recipe.to_dict()
    one_sentence(caught.value)


def test_a_schedule_that_there_is_not_is_no_recipe():
    with pytest.raises(ValueError, match="Ramp") as caught:
        Recipe.from_dict(RECIPE.to_dict() | {"schedule": "Ramp(3)"})
    one_sentence(caught.value, "there is no layer, loss or schedule 'Ramp'")


def test_settings_are_checked_when_they_are_used():
    with pytest.raises(ValueError, match="momentum must be") as caught:
        RECIPE.but(optimizer="momentum", settings={"momentum": 1.5}).train(DATA)
    one_sentence(caught.value)
