"""Every engine computes what the baseline computes, and the baseline computes what the formulas say."""

import inspect
import types
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import ENGINES, LAYOUTS, NUMBA, STANDS, one_sentence, sweep

from mlpkit import engines
from mlpkit.engines import numpy_baseline
from mlpkit.engines.protocol import Engine
from mlpkit.kernels import gpu

FLOATS = (np.float32, np.float64)
INTEGERS = (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64)
# The sums have at most nine terms, so a result is off by a few roundings.
TOLERANCE = {np.float32: dict(rtol=2e-5, atol=2e-5), np.float64: dict(rtol=1e-12, atol=1e-12)}

# The shapes of each operation's arrays, in letters: n examples, k inputs, m outputs, p parameters.
# An array whose name is in WRITTEN is changed in place; every other must stay as it is.
OPERATIONS = {
    "linear": dict(x="nk", W="km", b="m"),
    "linear_backward_weights": dict(x="nk", dz="nm", dW="km", db="m"),
    "linear_backward_input": dict(dz="nm", W="km"),
    "relu": dict(z="nm"),
    "relu_backward": dict(a="nm", da="nm"),
    "softmax_cross_entropy": dict(z="nm", labels="n"),
    "argmax": dict(z="nm"),
    "axpy": dict(x="p", y="p"),
    "sgd_update": dict(theta="p", grad="p"),
    "momentum_update": dict(theta="p", grad="p", velocity="p"),
    "nesterov_update": dict(theta="p", grad="p", velocity="p"),
    "rmsprop_update": dict(theta="p", grad="p", s="p"),
    "adam_update": dict(theta="p", grad="p", m="p", v="p"),
}
WRITTEN = {"dW", "db", "y", "theta", "velocity", "s", "m", "v"}
SETTINGS = {
    "axpy": dict(alpha=-0.3),
    "sgd_update": dict(lr=0.1),
    "momentum_update": dict(lr=0.1, momentum=0.8),
    "nesterov_update": dict(lr=0.1, momentum=0.8),
    "rmsprop_update": dict(lr=0.1, rho=0.7, eps=1e-3),
    "adam_update": dict(t=3, lr=0.1, beta1=0.8, beta2=0.9, eps=1e-3),
}


# The formulas again, in float64, one element at a time where that is short.


def linear(x, W, b):
    return np.array([[sum(x[i] * W[:, j]) + b[j] for j in range(len(b))] for i in range(len(x))])


def linear_backward_weights(x, dz, dW, db):
    return {"dW": np.einsum("nk,nm->km", x, dz), "db": np.einsum("nm->m", dz)}


def linear_backward_input(dz, W):
    return np.einsum("nm,km->nk", dz, W)


def relu(z):
    return np.where(z > 0, z, 0.0)


def relu_backward(a, da):
    return np.where(a > 0, da, 0.0)


def softmax_cross_entropy(z, labels):
    """The definition, in decimal numbers: with an exponent of six digits, no exponential of these overflows."""
    with localcontext(prec=50):
        p = np.array([[Decimal(float(value)).exp() for value in row] for row in z])
        p = p / p.sum(axis=1, keepdims=True)
        rows = np.arange(len(z))
        loss = -sum(value.ln() for value in p[rows, labels]) / len(z)
        p[rows, labels] -= 1
        return float(loss), (p / len(z)).astype(np.float64)


def argmax(z):
    return np.array([sorted(range(len(row)), key=lambda j: (-row[j], j))[0] for row in z])


def axpy(x, y, alpha):
    return {"y": y + alpha * x}


def sgd_update(theta, grad, lr):
    return {"theta": theta - lr * grad}


def momentum_update(theta, grad, velocity, lr, momentum):
    velocity = momentum * velocity + grad
    return {"theta": theta - lr * velocity, "velocity": velocity}


def nesterov_update(theta, grad, velocity, lr, momentum):
    velocity = momentum * velocity + grad
    return {"theta": theta - lr * grad - lr * momentum * velocity, "velocity": velocity}


def rmsprop_update(theta, grad, s, lr, rho, eps):
    s = rho * s + (1 - rho) * grad * grad
    return {"theta": theta - lr * grad / (s**0.5 + eps), "s": s}


def adam_update(theta, grad, m, v, t, lr, beta1, beta2, eps):
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad * grad
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    return {"theta": theta - lr * m_hat / (v_hat**0.5 + eps), "m": m, "v": v}


FORMULAS = {name: globals()[name] for name in OPERATIONS}


class Case:
    """The arguments of an operation, each in a layout of its own."""

    def __init__(self, operation, engine, dtype, layouts, sizes, rng, label_dtype):
        self.operation, self.engine = operation, engine
        self.host, self.stores, self.views = {}, {}, {}
        for name, letters in OPERATIONS[operation].items():
            array = rng.normal(size=[sizes[letter] for letter in letters]).astype(dtype)
            if name == "labels":
                array = rng.integers(sizes["m"], size=sizes["n"]).astype(label_dtype)
            if name in ("s", "v"):
                array = array**2  # a mean of squares
            self.put(name, array, layouts[name])
        self.settings = SETTINGS.get(operation, {})

    def put(self, name, array, layout="contiguous"):
        store, look = LAYOUTS[layout]
        self.host[name] = array
        self.stores[name] = self.engine.asarray(store(array)), look
        self.views[name] = look(self.stores[name][0])

    def run(self):
        with np.errstate(all="ignore"):
            return getattr(self.engine, self.operation)(**self.views, **self.settings)

    def baseline(self):
        """Return what the baseline makes of the same numbers: what it returns, and what it writes, by name."""
        copies = {name: array.copy() for name, array in self.host.items()}
        with np.errstate(all="ignore"):
            returned = getattr(numpy_baseline, self.operation)(**copies, **self.settings)
        return returned if returned is not None else {name: copies[name] for name in WRITTEN & copies.keys()}

    def formula(self):
        exact = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in self.host.items()}
        return FORMULAS[self.operation](**exact, **self.settings)


# What is compiled anew for each combination is tested with three: each value comes, but not together with all others.
COMPILED, *OTHERS = [
    (np.float32, "contiguous", np.int64),
    (np.float64, "contiguous", np.int64),
    (np.float32, "strided", np.uint8),
]


def kinds(engine):
    """Draw a dtype, a layout for each argument, and the dtype of labels."""
    if engine in NUMBA:
        return st.just(alike(COMPILED))
    layouts = st.fixed_dictionaries({name: st.sampled_from(sorted(LAYOUTS)) for name in ARGUMENTS})
    return st.tuples(st.sampled_from(FLOATS), layouts, st.sampled_from(INTEGERS))


def alike(kind):
    """Return a kind of which each argument has the same layout."""
    dtype, layout, label_dtype = kind
    return dtype, dict.fromkeys(ARGUMENTS, layout), label_dtype


ARGUMENTS = sorted({name for arguments in OPERATIONS.values() for name in arguments})
SHAPES = st.fixed_dictionaries({letter: st.integers(1, 9) for letter in "nkmp"})


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ENGINES)
@given(sizes=SHAPES, seed=st.integers(0, 2**32 - 1), data=st.data())
def test_an_operation_is_the_formula_and_changes_nothing_else(name, operation, sizes, seed, data):
    is_the_formula(name, operation, sizes, seed, *data.draw(kinds(name)))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", sweep(NUMBA, STANDS))
@given(sizes=SHAPES, seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(OTHERS))
def test_compiled_loops_take_float64_and_arrays_that_lie_apart(name, operation, sizes, seed, kind):
    is_the_formula(name, operation, sizes, seed, *alike(kind))


def is_the_formula(name, operation, sizes, seed, dtype, layouts, label_dtype):
    engine = engines.load(name)
    case = Case(operation, engine, dtype, layouts, sizes, np.random.default_rng(seed), label_dtype)
    returned = case.run()
    for wanted in (case.baseline(), case.formula()):
        if returned is not None:
            compare(engine, returned, wanted, dtype)
            wanted = {}
        for argument, (store, look) in case.stores.items():
            # The whole store: what lies between the elements of a view must be as before, too.
            expected = LAYOUTS[layouts[argument]][0](case.host[argument])
            look(expected)[...] = wanted.get(argument, case.host[argument])
            tolerance = TOLERANCE[dtype] if argument in wanted else dict(rtol=0)
            assert_allclose(engine.to_numpy(store), expected, **tolerance)
    for array in returned if isinstance(returned, tuple) else (returned,):
        assert not any(np.shares_memory(engine.to_numpy(array), engine.to_numpy(v)) for v in case.views.values())


def compare(engine, found, wanted, dtype):
    """Assert equal numbers, shapes and, for arrays, types."""
    if isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            compare(engine, one, other, dtype)
        return
    found = engine.to_numpy(found)
    assert found.shape == np.shape(wanted)
    assert found.ndim == 0 or found.dtype == dtype or found.dtype.kind == "i"
    assert_allclose(found, wanted, **TOLERANCE[dtype])


HALF = float(np.finfo(np.float32).max) / 2
# name: (logits, label, loss, gradient), from the formula by hand
EXTREME = {
    "all equal": ([7.0, 7, 7, 7], 2, np.log(4), [0.25, 0.25, -0.75, 0.25]),
    "all 10,000": ([1e4] * 4, 0, np.log(4), [-0.75, 0.25, 0.25, 0.25]),
    "all -10,000": ([-1e4] * 4, 0, np.log(4), [-0.75, 0.25, 0.25, 0.25]),
    "sure and right": ([-1e4, 1e4, -1e4], 1, 0, [0, 0, 0]),
    "sure and wrong": ([-1e4, 1e4, -1e4], 0, 2e4, [-1, 1, 0]),
    "one huge, right": ([HALF, 0, 0], 0, 0, [0, 0, 0]),
    "one huge, wrong": ([0, HALF, 0], 2, HALF, [0, 1, -1]),
    "one hugely negative": ([0, -HALF, 0], 1, HALF + np.log(2), [0.5, -1, 0.5]),
    "as far apart as float32 goes": ([-HALF, HALF], 0, 2 * HALF, [-1, 1]),
    "two huge": ([HALF, HALF, -HALF], 0, np.log(2), [-0.5, 0.5, 0]),
    "one class": ([1e4], 0, 0, [0]),
}


@pytest.mark.parametrize("dtype", sweep(FLOATS, np.float32))
@pytest.mark.parametrize(("logits", "label", "loss", "gradient"), EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("name", ENGINES)
def test_no_logits_are_too_extreme(name, logits, label, loss, gradient, dtype):
    engine = engines.load(name)
    z, labels = engine.asarray(np.array([logits], dtype)), engine.asarray(np.array([label]))
    found, dz = engine.softmax_cross_entropy(z, labels)
    tolerance = TOLERANCE[dtype] | dict(atol=1e-7)
    assert_allclose(engine.to_numpy(found), loss, **tolerance)
    assert_allclose(engine.to_numpy(dz), [gradient], **tolerance)


@pytest.mark.parametrize("name", ENGINES)
def test_the_first_of_equal_logits_is_the_largest(name):
    engine = engines.load(name)
    z = engine.asarray(np.array([[1, 3, 3], [2, 2, 2], [-1, -3, -1]], np.float32))
    assert_array_equal(engine.to_numpy(engine.argmax(z)), [1, 0, 0])


# `argmax` returns an index, which can't be NaN. `relu_backward` needs no NaN from `a`: the loss has it already.
NAN_CASES = [
    (operation, argument)
    for operation, arguments in OPERATIONS.items()
    for argument in arguments
    if operation != "argmax" and argument not in ("labels", "dW", "db", "a")
]


@pytest.mark.parametrize(("operation", "argument"), NAN_CASES)
@pytest.mark.parametrize("name", ENGINES)
def test_a_nan_is_never_hidden(name, operation, argument):
    engine = engines.load(name)
    sizes = dict(n=3, k=4, m=5, p=6)
    plain = dict.fromkeys(ARGUMENTS, "contiguous")
    # Everywhere in turn: a comparison that loses a NaN loses it in one place and not in another.
    for place in np.ndindex(*[sizes[letter] for letter in OPERATIONS[operation][argument]]):
        case = Case(operation, engine, np.float32, plain, sizes, np.random.default_rng(1), np.int64)
        if "a" in case.host:
            case.put("a", np.ones_like(case.host["a"]))  # a unit that is off stops any gradient
        array = case.host[argument].copy()
        array[place] = np.nan
        case.put(argument, array)
        returned, wanted = case.run(), case.baseline()
        if returned is None:
            returned, wanted = ([d[k] for k in sorted(wanted)] for d in (case.views, wanted))
        found = [engine.to_numpy(a) for a in (returned if isinstance(returned, tuple | list) else [returned])]
        wanted = wanted if isinstance(wanted, tuple | list) else [wanted]
        assert any(np.isnan(a).any() for a in found)
        for one, other in zip(found, wanted, strict=True):
            assert_array_equal(np.isnan(one), np.isnan(other))


@pytest.mark.parametrize("name", ENGINES)
class TestArrays:
    def test_asarray_is_contiguous_and_has_the_type(self, name):
        engine = engines.load(name)
        for layout, (store, look) in LAYOUTS.items():
            host = np.arange(6.0).reshape(2, 3)
            array = engine.asarray(look(store(host)), np.float32)
            assert array.flags.c_contiguous, layout
            assert array.dtype == np.float32
            assert_array_equal(engine.to_numpy(array), host)

    def test_asarray_keeps_the_type_unless_told(self, name):
        engine = engines.load(name)
        for dtype in (np.float32, np.float64, np.uint8, np.int64):
            assert engine.asarray(np.ones(3, dtype)).dtype == dtype

    def test_gather_takes_rows_and_leaves_the_source_alone(self, name):
        engine = engines.load(name)
        host = np.arange(12.0).reshape(4, 3)
        X, index = engine.asarray(host), engine.asarray(np.array([3, 0, 3]))
        rows = engine.gather(X, index)
        assert_array_equal(engine.to_numpy(rows), host[[3, 0, 3]])
        rows[:] = -1
        assert_array_equal(engine.to_numpy(X), host)
        assert_array_equal(engine.to_numpy(engine.gather(X[:, 0], index)), [9, 0, 9])

    def test_losses_of_many_steps_come_to_the_host_as_one_array(self, name):
        engine = engines.load(name)
        z, labels = engine.asarray(np.zeros((2, 3), np.float32)), engine.asarray(np.array([0, 1]))
        losses = [engine.softmax_cross_entropy(z, labels)[0] for _ in range(3)]
        engine.synchronize()
        assert_allclose(engine.to_numpy(losses), [np.log(3)] * 3, rtol=1e-6)

    def test_what_is_fetched_comes_as_it_was_when_it_was_asked_for(self, name):
        engine = engines.load(name)
        losses, finite = engine.asarray(np.ones(3, np.float32)), engine.all_finite(engine.asarray(np.ones(2)))
        wait = engine.fetch(losses, finite, [losses[0], losses[1]])
        found = wait()
        assert isinstance(found, list)
        assert_array_equal(found[0], [1, 1, 1])
        assert bool(found[1])
        assert_array_equal(found[2], [1, 1])

    def test_all_finite_finds_what_is_not(self, name):
        engine = engines.load(name)
        for value, wanted in [(1.0, True), (np.nan, False), (np.inf, False), (-np.inf, False), (3e38, True)]:
            array = engine.asarray(np.array([3e38, value, 3e38], np.float32))
            assert bool(engine.all_finite(array)) == wanted, value

    @pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint64])
    def test_all_labels_finds_what_is_no_class(self, name, dtype):
        engine = engines.load(name)
        for label, wanted in [(0, True), (4, True), (5, False), (127, False), (-1, False), (-128, False)]:
            if label >= np.iinfo(dtype).min:
                labels = engine.asarray(np.array([0, label, 4], dtype))
                assert bool(engine.all_labels(labels, 5)) == wanted, label

    @pytest.mark.parametrize("shape", [(), (1,), (7, 5), (3, 40, 50), (70_000,)])
    def test_count_says_how_many_are_true(self, name, shape):
        engine = engines.load(name)
        for mask in (np.zeros(shape, bool), np.ones(shape, bool), np.random.default_rng(0).random(shape) < 0.3):
            assert int(engine.to_numpy(engine.count(engine.asarray(mask)))) == mask.sum()

    def test_pixels_become_numbers_from_zero_to_one(self, name):
        engine = engines.load(name)
        pixels = np.arange(256, dtype=np.uint8).reshape(16, 1, 4, 4)
        for dtype in FLOATS:
            scaled = engine.scale(engine.asarray(pixels), np.dtype(dtype))
            assert scaled.dtype == dtype
            assert_array_equal(engine.to_numpy(scaled), pixels / dtype(255))

    def test_time_goes_on_between_two_moments(self, name):
        engine = engines.load(name)
        begin, end = engine.now(), engine.now()
        engine.synchronize()
        assert 0 <= engine.elapsed(begin, end) < 60


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_the_functions_of_the_protocol(name):
    """With the same names, since optimizers pass rates by name. mypy sees more, but not names: see test_protocol.py."""
    for function, wanted in inspect.getmembers(Engine, inspect.isfunction):
        if not function.startswith("_"):
            parameters = list(inspect.signature(getattr(engines.load(name), function)).parameters)
            assert parameters == list(inspect.signature(wanted).parameters)[1:], function


def test_an_unknown_engine_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match="numpi") as caught:
        engines.load("numpi")
    one_sentence(caught.value, *engines.names())


def test_an_engine_that_cannot_run_here_says_why(monkeypatch):
    def fails(module):
        raise ImportError("there is no sand in this machine")

    monkeypatch.setattr(engines, "names", lambda: ("abacus",))
    monkeypatch.setattr(engines, "import_module", fails)
    with pytest.raises(engines.EngineUnavailable) as caught:
        engines.load("abacus")
    one_sentence(caught.value, "abacus", "there is no sand in this machine")
    assert engines.available() == {"abacus": str(caught.value)}


@pytest.mark.parametrize(
    "error",
    [OSError("libLLVM.so: cannot open\nshared object file"), ValueError("Number of threads"), SyntaxError("here")],
)
def test_whatever_an_engine_raises_when_it_is_imported_is_its_reason(error, monkeypatch):
    def fails(module):
        raise error

    monkeypatch.setattr(engines, "names", lambda: ("abacus",))
    monkeypatch.setattr(engines, "import_module", fails)
    with pytest.raises(engines.EngineUnavailable) as caught:
        engines.load("abacus")
    one_sentence(caught.value, "abacus", type(error).__name__, str(error).split("\n")[0])
    assert engines.available() == {"abacus": str(caught.value)}


def test_a_cupy_that_cannot_be_imported_is_said_once_for_all_of_its_engines(monkeypatch):
    def fails(module):
        raise PermissionError(13, "Permission denied", "/home/me/.cupy")

    monkeypatch.setattr(engines, "import_module", fails)
    monkeypatch.setattr(gpu, "why_not", lambda: "CuPy can't make its folder")
    with pytest.raises(engines.EngineUnavailable, match=r"machine: CuPy can't make its folder$"):
        engines.load("cupy_fused")


def test_an_engine_is_imported_only_when_it_is_loaded(monkeypatch):
    asked = []
    monkeypatch.setattr(engines, "import_module", lambda name: asked.append(name) or types.ModuleType(name))
    assert engines.load("python_lists").__name__ == "mlpkit.engines.python_lists"
    assert asked == ["mlpkit.engines.python_lists"]
