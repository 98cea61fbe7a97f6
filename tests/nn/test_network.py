"""A network is one vector and views of it; forward, predict and evaluate agree with a few lines of NumPy."""

import copy
import io
import json
import os
import pickle
import warnings
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import ENGINES, SMALL, blobs, one_sentence, sweep

from mlpkit import engines
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.fold import fold
from mlpkit.nn.initialize import RULES, start
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.models import Model, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import Upsample
from mlpkit.npz import save_npz

SIZES = SMALL.sizes()


def new(engine="numpy_baseline", sizes=SIZES, seed=0):
    """Return a network whose biases are not zero either."""
    network = Network(engine, mlp(*sizes), seed=seed)
    network.theta[network.n_weights :] = network.engine.asarray(np.linspace(-1, 1, sum(sizes[1:]), dtype=np.float32))
    return network


def by_hand(network, X):
    """Return the logits (float64) from the parameters alone."""
    arrays = list(network.views(network.engine.to_numpy(network.theta).astype(np.float64)).values())
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    for W, b in pairs[:-1]:
        X = np.maximum(X @ W + b, 0)
    return X @ pairs[-1][0] + pairs[-1][1]


@pytest.mark.parametrize("name", ["theta", "grad"])
def test_the_vectors_that_the_layers_look_at_stay_where_they_are(name):
    network = Network(model=SMALL)
    before = getattr(network, name)
    with pytest.raises(AttributeError) as caught:
        setattr(network, name, before + 1)
    one_sentence(caught.value, f"network.{name}[:]")
    network.theta -= 0.5  # in place
    network.theta[:] = 2
    assert (network.layers[0].W == 2).all()
    assert getattr(network, name) is before


def test_layers_are_views_of_the_vectors():
    network = Network(model=SMALL)
    for layer in network.layers[::2]:
        assert all(np.shares_memory(view, network.theta) for view in (layer.W, layer.b))
        assert all(np.shares_memory(view, network.grad) for view in (layer.dW, layer.db))
        assert layer.W.flags.c_contiguous  # or a matrix product would copy it
    network.theta[:] = 7
    network.grad[:] = 8
    assert all((layer.W == 7).all() and (layer.b == 7).all() for layer in network.layers[::2])
    assert all((layer.dW == 8).all() and (layer.db == 8).all() for layer in network.layers[::2])


@pytest.mark.parametrize("sizes", [(4, 3), (6, 5, 3), (7, 1, 2, 5), (784, 128, 128, 128, 10)], ids=str)
def test_weights_come_first_and_biases_last_layer_by_layer(sizes):
    network = Network(model=mlp(*sizes))
    assert network.n_weights == sum(a * b for a, b in pairwise(sizes))
    assert network.theta.shape == network.grad.shape == (network.n_weights + sum(sizes[1:]),)
    network.theta[:] = np.arange(len(network.theta))
    weights, biases = ([getattr(layer, name) for layer in network.layers[::2]] for name in "Wb")
    assert [W.shape for W in weights] == list(pairwise(sizes))
    assert [b.shape for b in biases] == [(n,) for n in sizes[1:]]
    assert_array_equal(np.concatenate([a.ravel() for a in weights + biases]), network.theta)


@pytest.mark.parametrize("n", [1, 2, 20])
@pytest.mark.parametrize("engine", ENGINES)
def test_forward_is_the_formula(engine, n):
    network = new(engine, (6, 5, 4, 3), seed=1)
    X = blobs(n).X
    logits = network.engine.to_numpy(network.forward(network.engine.asarray(X)))
    assert (logits.shape, logits.dtype) == ((n, 3), np.float32)
    assert_allclose(logits, by_hand(network, X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 7, 20, 1000])
@pytest.mark.parametrize("engine", ENGINES)
def test_predict_and_evaluate_agree_with_a_few_lines_of_numpy(engine, batch_size):
    """In batches that divide the 20 examples and in such that don't: a short last batch counts for what it has."""
    network, (X, y) = new(engine, seed=2), blobs(20)
    logits = by_hand(network, X)
    labels = network.predict(X, batch_size)
    assert_array_equal(labels, logits.argmax(axis=1))
    assert labels.dtype.kind == "i"
    found = network.evaluate(X, y, batch_size)
    each = np.log(np.exp(logits).sum(axis=1)) - logits[range(20), y]
    assert found == {"loss": pytest.approx(each.mean(), rel=1e-5), "accuracy": np.mean(labels == y)}
    assert 0 < found["accuracy"] < 1  # a mistake can't hide in all or nothing
    assert {*map(type, found.values())} == {float}


@pytest.mark.parametrize(("call", "changes_grad"), [("loss", False), ("loss_and_grad", True)])
def test_the_loss_of_a_batch_is_its_mean_and_changes_no_parameter(call, changes_grad):
    network, (X, y) = Network(model=SMALL), blobs(20)
    before = network.theta.copy()
    assert getattr(network, call)(X, y) == pytest.approx(network.evaluate(X, y)["loss"], rel=1e-5)
    assert np.any(network.grad != 0) == changes_grad
    assert_array_equal(network.theta, before)


# First weights


def test_all_engines_start_from_the_same_numbers():
    wanted = start(SMALL.layout, SMALL.ones, 3, "he").astype(np.float32)
    assert_array_equal(Network(model=SMALL, seed=3).theta, wanted)
    assert_array_equal(Network("python_lists", SMALL, seed=3).theta, wanted)
    assert not np.array_equal(Network(model=SMALL, seed=4).theta, wanted)


@pytest.mark.parametrize(("init", "variance"), [("he", 2 / 400), ("xavier", 2 / 700)])
def test_first_weights_have_the_variance_of_their_rule_and_biases_are_zero(init, variance):
    theta = start(mlp(400, 300).layout, (), 0, init)
    weights, biases = theta[: 400 * 300], theta[400 * 300 :]
    assert weights.var() == pytest.approx(variance, rel=0.02)
    assert abs(weights.mean()) < 1e-3
    assert_array_equal(biases, 0)


def test_xavier_is_uniform_and_he_is_normal():
    xavier, he = (start(mlp(400, 300).layout, (), 0, init)[: 400 * 300] for init in ("xavier", "he"))
    assert abs(xavier).max() == pytest.approx(np.sqrt(6 / 700), rel=1e-3)
    assert np.mean(abs(he) < he.std()) == pytest.approx(0.6827, abs=0.01)


def test_he_keeps_the_size_of_a_signal_through_many_relu_layers():
    """What the rule is for: 20 layers on, values are of the same size; with half of the variance they vanish."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(200, 256))
    kept, shrunk = start, start
    for _ in range(20):
        W = RULES["he"](rng, (256, 256))
        kept, shrunk = np.maximum(kept @ W, 0), np.maximum(shrunk @ W / np.sqrt(2), 0)
    assert 0.3 < np.sqrt(np.mean(kept**2)) < 3
    assert np.sqrt(np.mean(shrunk**2)) < 0.01


# Files


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_saved_network_comes_back_on_any_engine(engine, dtype, tmp_path):
    network = Network(model=SMALL, seed=5, dtype=dtype)
    network.theta[-1] = 0.5
    network.save(tmp_path / "network.npz")
    found = Network.load(tmp_path / "network.npz", engine)
    assert (found.model, found.dtype) == (SMALL, dtype)
    assert_array_equal(found.engine.to_numpy(found.theta), network.theta)
    found.theta[:] = 0
    assert found.layers[0].W.sum() == 0  # still views


class Trace:
    """Unpickling it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("trace",)


def with_a_pickle():
    """Return a .npz file whose `theta` is a pickle, as somebody could send it."""
    member, file = io.BytesIO(), io.BytesIO()
    np.save(member, np.array([Trace()], object), allow_pickle=True)
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("model", "theta", "statistics"):
            archive.writestr(f"{name}.npy", member.getvalue())
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"not a network", pickle.dumps(Trace()), with_a_pickle()],
    ids=["empty", "text", "pickle", "pickle inside"],
)
def test_what_is_no_network_is_refused_and_never_run(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="other") as caught:
        Network.load(path)
    one_sentence(caught.value, path)
    assert not (tmp_path / "trace").exists()


def test_a_network_cut_short_is_refused(tmp_path):
    path = tmp_path / "network.npz"
    Network(model=SMALL).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="network"):
            Network.load(path)


def test_a_checkpoint_of_training_is_not_mistaken_for_a_network(tmp_path):
    save_npz(tmp_path / "last.npz", theta=np.zeros(3))
    with pytest.raises(ValueError, match=r"other arrays: model is not") as caught:
        Network.load(tmp_path / "last.npz")
    one_sentence(caught.value, tmp_path / "last.npz")


def test_a_missing_network_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Network.load(tmp_path / "nowhere.npz")


def test_parameters_of_another_network_are_refused(tmp_path):
    save_npz(tmp_path / "n.npz", **FILE | dict(theta=np.zeros(7)))
    with pytest.raises(ValueError, match=r"\(7,\)") as caught:
        Network.load(tmp_path / "n.npz")
    one_sentence(caught.value, "the network's have (53,)")


def model(**changes):
    return json.dumps(SMALL.to_dict() | changes)


THETA = Network(model=SMALL).theta
FILE = dict(model=model(), theta=THETA, statistics=THETA[:0])
OTHERS = {
    "sizes as floats": (dict(model=model(input=[6.0])), "whole number, not 6.0"),
    "no input": (dict(model=model(input=[])), "at least 1 size"),
    "sizes beyond all memory": (dict(model=model(input=[10**6], layers=["Linear(1000000)"])), "(1000001000000,)"),
    "a layer that there is not": (
        dict(model=model(layers=["Magic(3)"])),
        "there is no layer, loss or schedule 'Magic'",
    ),
    "no JSON": (dict(model="hello"), "Expecting value"),
    "JSON of another kind": (dict(model="3"), "this is no model"),
    "nothing but a name": (dict(model='{"loss": "hinge"}'), "this is no model"),
    "a number for a model": (dict(model=3), "this is no model"),
    "integers": (dict(theta=THETA.astype(int)), "not int64"),
    "NaN": (dict(theta=THETA * np.nan), "finite numbers"),
    "a matrix": (dict(theta=THETA[:, None]), "(53, 1)"),
    "statistics of nothing": (dict(statistics=THETA), "these statistics have shape (53,)"),
    "statistics of another type": (dict(statistics=np.zeros(0, complex)), "its statistics complex128"),
}


@pytest.mark.parametrize(("arrays", "words"), OTHERS.values(), ids=OTHERS)
def test_arrays_that_are_no_network_are_refused_and_the_file_is_named(arrays, words, tmp_path):
    path = tmp_path / "n.npz"
    save_npz(path, **FILE | arrays)
    with pytest.raises(ValueError, match="holds no network") as caught:
        Network.load(path)
    one_sentence(caught.value, path, words)


def test_a_file_asks_for_no_variance_below_0_and_no_more_than_there_is_memory(tmp_path):
    path, normed = tmp_path / "n.npz", Network(model=Model((6,), (Linear(5), BatchNorm(), Linear(3))))
    normed.statistics[-1] = -1e-3
    normed.save(path)
    with pytest.raises(ValueError, match="holds no network") as caught:
        Network.load(path)
    one_sentence(caught.value, path, "its 1.variance is below 0")
    wide = Model((1, 2, 2), (Upsample(100_000), GlobalAvgPool()))
    Network(model=wide).save(path)
    with pytest.raises(ValueError, match="holds no network") as caught:
        Network.load(path)
    one_sentence(caught.value, path, "between two layers it has more than 268,435,456 values")


PIECES = [
    "Linear",
    "Conv",
    "Residual",
    "BatchNorm",
    "Dropout",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    ",",
    "=",
    ":",
    "*",
]
PIECES += [
    "3",
    "5",
    "-",
    "0x",
    "1e999",
    "9" * 20,
    "True",
    "null",
    "NaN",
    "units",
    "\\",
    "\\u0000",
    "\n",
    "#",
    "lambda",
    "-" * 999,
]


@given(st.data())
def test_a_changed_model_is_another_model_of_that_size_or_refused(tmp_path_factory, data):
    path, text = tmp_path_factory.getbasetemp() / "changed.npz", model()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 6))
        text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[end:]
    save_npz(path, **FILE | dict(model=text))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of text that looks like a mistake
        try:
            assert Network.load(path).model.layout.size == len(THETA)
        except ValueError as error:
            one_sentence(error, path)


# Bad input

X, Y = blobs(5)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Network(model=(784, 10)), TypeError, "model must be a Model, such as mlp(784, 128, 10)"),
        (lambda: Network(model="mlp"), TypeError, "not 'mlp'"),
        (lambda: Network(model=SMALL, init=["he"]), ValueError, "he, xavier"),
        (lambda: Network(model=SMALL, dtype="float23"), ValueError, "float23"),
        (lambda: Network(model=SMALL, dtype=None), ValueError, "None"),
        (lambda: Network(model=SMALL, init="zero"), ValueError, "he, xavier"),
        (lambda: Network(model=SMALL, dtype=np.float16), ValueError, "float16"),
        (lambda: Network(model=SMALL, dtype=np.int64), ValueError, "int64"),
        (lambda: Network(model=SMALL, seed=-1), ValueError, "seed must be at least 0"),
        (lambda: Network(model=SMALL, seed=0.5), TypeError, "seed must be a whole number"),
        (lambda: Network("numpi", SMALL), ValueError, "numpy_baseline"),
    ],
)
def test_what_makes_no_network_is_refused(make, error, words):
    with pytest.raises(error) as caught:
        make()
    one_sentence(caught.value, words)


@pytest.mark.parametrize("units", [10**7, 10**12, 10**30])
def test_a_model_beyond_all_memory_is_refused(units):
    with pytest.raises(ValueError, match="parameters do not fit into memory") as caught:
        Network(model=mlp(6, units, units, 3))
    one_sentence(caught.value)


@pytest.mark.parametrize("call", ["forward", "predict", "evaluate", "loss", "loss_and_grad"])
@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (X[:0], ValueError, "n at least 1, not (0, 6)"),
        (X[0], ValueError, "(n, 6)"),
        (X[:, :5], ValueError, "(n, 6) with n at least 1, not (5, 5)"),
        (np.stack([X, X], axis=2), ValueError, "(n, 6) with n at least 1, not (5, 6, 2)"),
        (X.astype(np.float64), TypeError, "float64 but the network computes in float32"),
        (X.astype(np.int8), TypeError, "int8"),
    ],
    ids=["empty", "one row", "too narrow", "three dimensions", "float64", "int8"],
)
def test_inputs_of_another_form_are_refused(call, x, error, words):
    network = Network(model=SMALL)
    labels = [np.zeros(len(x), int)] if call not in ("forward", "predict") else []
    with pytest.raises(error) as caught:
        getattr(network, call)(x, *labels)
    one_sentence(caught.value, words)


@pytest.mark.parametrize("call", ["forward", "predict", "evaluate", "loss", "loss_and_grad"])
@pytest.mark.parametrize(
    "x", [None, X[0, 0], X.tolist(), np.ma.array(X), X.view(np.matrix)], ids=lambda x: type(x).__name__
)
def test_inputs_that_are_no_array_of_rows_are_refused(call, x):
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(Network(model=SMALL), call)(x, *([Y] if call not in ("forward", "predict") else []))
    one_sentence(caught.value, "inputs must ")


@pytest.mark.parametrize("dtype", sweep([np.float32, np.float64], np.float32))
@pytest.mark.parametrize("name", ENGINES)
def test_pixels_are_fractions_of_255(name, dtype):
    network = Network(name, SMALL, dtype=dtype)
    pixels = np.arange(30, dtype=np.uint8).reshape(5, 6) * 8
    logits, wanted = (network.forward(network.engine.asarray(x)) for x in (pixels, pixels.astype(dtype) / dtype(255)))
    assert_array_equal(network.engine.to_numpy(logits), network.engine.to_numpy(wanted))
    assert_array_equal(network.predict(pixels), network.predict(pixels.astype(dtype) / dtype(255)))


LABELS = {
    "too many": (np.zeros(6, int), ValueError, "(5,), not (6,)"),
    "one-hot": (np.eye(3)[Y], ValueError, "argmax"),
    "floats": (Y.astype(float), TypeError, "float64"),
    "booleans": (Y > 0, TypeError, "bool"),
    "too large": (np.array([0, 1, 2, 3, 0]), ValueError, "from 0 to 2, but these go from 0 to 3"),
    "big-endian": (Y.astype(">i4"), TypeError, "byte order, not >i4"),
    "masked": (np.ma.array(Y, mask=[0, 1, 0, 0, 0]), TypeError, "labels must have no mask"),
    "rows of a masked array": ([*np.ma.array(Y[:, None])], TypeError, "labels must have no mask"),
    "negative": (np.array([0, 1, 2, -1, 0]), ValueError, "from 0 to 2, but these go from -1 to 2"),
}


@pytest.mark.parametrize("call", ["evaluate", "loss", "loss_and_grad"])
@pytest.mark.parametrize(("labels", "error", "words"), LABELS.values(), ids=LABELS)
def test_labels_of_another_form_are_refused(labels, error, words, call):
    with pytest.raises(error) as caught:
        getattr(Network(model=SMALL), call)(X, labels)
    one_sentence(caught.value, words)


@pytest.mark.parametrize(("batch_size", "error"), [(0, ValueError), (-5, ValueError), (1.5, TypeError)])
def test_a_batch_size_that_is_none_is_refused(batch_size, error):
    for call, arguments in (("predict", [X]), ("evaluate", [X, Y])):
        with pytest.raises(error, match="batch_size"):
            getattr(Network(model=SMALL), call)(*arguments, batch_size)


@pytest.mark.parametrize("engine", [None, 5, Network], ids=["none", "number", "class"])
def test_what_is_no_engine_is_refused(engine):
    with pytest.raises((TypeError, ValueError)) as caught:
        Network(engine, SMALL)
    one_sentence(caught.value, "engine")


@pytest.mark.parametrize("name", ["inputs", "labels", "parameters"])
def test_a_list_is_no_array(name):
    network, (X, y) = Network(model=SMALL), blobs(4)
    calls = {
        "inputs": lambda: network.predict(X.tolist()),
        "labels": lambda: network.evaluate(X, y.tolist()),
        "parameters": lambda: network.set_theta(network.theta.tolist()),
    }
    with pytest.raises(TypeError) as caught:
        calls[name]()
    one_sentence(caught.value, f"{name} must be an array, not list", "np.asarray")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("call", ["predict", "evaluate"])
def test_of_no_number_there_is_no_answer(call, bad):
    network, (X, y) = Network(model=SMALL), blobs(4)
    X = np.where(np.arange(6) == 2, np.float32(bad), X)
    with pytest.raises(ValueError, match="inputs must be finite") as caught:
        network.predict(X) if call == "predict" else network.evaluate(X, y)
    one_sentence(caught.value)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("name", ["parameters", "statistics", "inputs"])
def test_of_outputs_that_are_no_numbers_there_is_no_answer(name):
    """As of a network that diverged in a loop of the reader's own: each row would be of class 0."""
    network, X = Network(model=Model((6,), (BatchNorm(), Linear(5), ReLU(), Linear(3)))), blobs(4).X
    spoiled = {"parameters": network.theta, "statistics": network.statistics[6:], "inputs": X}
    spoiled[name][:] = {"parameters": np.nan, "statistics": -1, "inputs": 3e38}[name]
    with pytest.raises(ValueError, match="the network's outputs must be finite numbers") as caught:
        network.predict(X)
    one_sentence(caught.value)


def test_a_model_without_layers_can_be_evaluated():
    X, y = blobs(4)
    found = Network(model=Model((6,), ())).evaluate(X, y)
    assert found["loss"] == pytest.approx(np.mean(np.log(np.exp(X).sum(axis=1)) - X[range(4), y]), rel=1e-5)
    assert found["accuracy"] == np.mean(X.argmax(axis=1) == y)


def test_a_model_nested_beyond_measure_is_damage(tmp_path):
    network = Network(model=SMALL)
    save_npz(tmp_path / "deep.npz", model="[" * 100_000, theta=network.theta, statistics=network.statistics)
    with pytest.raises(ValueError, match="holds no network") as caught:
        Network.load(tmp_path / "deep.npz")
    one_sentence(caught.value)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda network: pickle.loads(pickle.dumps(network))])
def test_a_copy_has_the_numbers_of_now_and_arrays_of_its_own(copied):
    model = Model((6,), (Linear(5), BatchNorm(), ReLU(), Linear(3)))
    network = Network(model=model, seed=3, dtype=np.float64)
    network.forward(X.astype(np.float64), training=True)
    found = copied(network)
    assert (found.model, found.mode.seed, found.dtype) == (model, 3, np.float64)
    for name in ("theta", "statistics"):
        assert_array_equal(getattr(found, name), getattr(network, name))
        assert not np.shares_memory(getattr(found, name), getattr(network, name))


@pytest.mark.parametrize(("wrong", "error"), [(np.nan, ValueError), (1e300, ValueError), (1j, TypeError)])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_parameters_that_are_no_finite_numbers_are_not_taken(wrong, error):
    network = Network(model=Model((6,), (Linear(5), BatchNorm(), ReLU(), Linear(3))))
    for name in ("theta", "statistics"):
        before = getattr(network, name).copy()
        with pytest.raises(error):
            getattr(network, f"set_{name}")(np.full(len(before), wrong))
        assert_array_equal(getattr(network, name), before)


def test_images_where_an_engine_takes_rows_are_refused():
    model, rows = Model((1, 4, 4), (ReLU(), Flatten(), Linear(3))), 0
    for name in filter(lambda name: not engines.on_gpu(name), engines.names()):
        if not hasattr(engines.load(name), "conv"):
            rows += 1
            with pytest.raises(ValueError, match="computes rows") as caught:
                Network(name, model)
            one_sentence(caught.value, "put Flatten() before it")
        else:
            assert Network(name, model).predict(np.zeros((2, 16), np.float32)).shape == (2,)
    assert rows > 5


@pytest.mark.parametrize("bias", [True, False])
def test_a_folded_network_is_saved_and_loaded_and_the_first_one_stays(bias, tmp_path):
    """A norm behind a convolution and a linear layer, in both branches of a Residual, and in a Concat."""
    norm = Conv(3, 1, bias=bias), BatchNorm()
    layers = (*norm, ReLU(), Residual((*norm, ReLU()), norm), Concat(norm, ()), Flatten(), Linear(4), BatchNorm())
    network, rng = Network(model=Model((2, 3, 3), layers), dtype=np.float64), np.random.default_rng(0)
    network.theta[:] += rng.normal(0, 0.3, len(network.theta))
    network.statistics[:] = rng.uniform(0.5, 2, len(network.statistics))
    kept = [vector.copy() for vector in (network.theta, network.statistics, network.grad)]
    x, model = rng.normal(size=(5, 2, 3, 3)), network.model
    folded = fold(network)
    assert not len(folded.statistics)
    assert_allclose(folded.forward(x), network.forward(x), rtol=1e-12, atol=1e-12)
    folded.save(tmp_path / "n.npz")
    found = Network.load(tmp_path / "n.npz")
    assert found.model == folded.model != model
    assert_array_equal(found.forward(x), folded.forward(x))
    folded.theta[:] = 0
    for vector, copied in zip((network.theta, network.statistics, network.grad), kept, strict=True):
        assert_array_equal(vector, copied)
    assert network.model is model
