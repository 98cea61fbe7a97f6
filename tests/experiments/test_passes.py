"""The ways to update that are compared do the same, and what is written down of a step adds up to it."""

from functools import partial

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_allclose

from experiments import passes
from experiments.lab.bench import Stepper
from experiments.lab.products import of_step
from experiments.passes import Plan, pages, profile, quiet_step
from experiments.passes.calls import samples_us
from experiments.passes.parts import StepRecorder
from experiments.passes.updates import LADDER, STATE, UPDATES, roots, vectors
from mlpkit import engines, executors
from mlpkit.training.recipe import Recipe

RNG = np.random.default_rng(0)
TRAIN = RNG.random((300, 784), dtype=np.float32), RNG.integers(10, size=300)
QUICK = Plan(samples=2, sample_seconds=1e-5, sizes=(50,), batch_sizes=(16,), settle=0.0, turns=2, steps=3, processes=1)
SETTINGS = {
    "sgd": dict(lr=0.1),
    "momentum": dict(lr=0.1, momentum=0.8),
    "rmsprop": dict(lr=0.1, rho=0.7, eps=1e-3),
    "adam": dict(t=3, lr=0.1, beta1=0.8, beta2=0.9, eps=1e-3),
}


@pytest.fixture(scope="module")
def record():
    return passes.measure(lambda record: None, lambda text: None, QUICK, TRAIN)


def updated(function, name, *more):
    arrays = vectors(1000, 2 + len(STATE[name]))
    function(*arrays, *SETTINGS[name].values(), *more)
    return arrays


@pytest.mark.parametrize("name", UPDATES)
def test_out_computes_what_the_baseline_computes(name):
    with_out, settings = UPDATES[name]
    assert list(settings) == list(SETTINGS[name])
    wanted = updated(getattr(engines.load("numpy_baseline"), f"{name}_update"), name)
    found = updated(with_out, name, *vectors(1000, 2 if "eps" in settings else 1))
    for a, b in zip(found, wanted, strict=True):
        assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rung", LADDER)
def test_every_rung_computes_what_the_baseline_computes(rung):
    function, error_model = LADDER[rung]
    wanted = updated(engines.load("numpy_baseline").adam_update, "adam")
    for a, b in zip(updated(njit(error_model=error_model)(function), "adam"), wanted, strict=True):
        assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("offset", [0, 16])
def test_vectors_begin_where_they_should_and_do_not_overlap(offset):
    made = vectors(100, 4, offset)
    assert all(vector.ctypes.data % 64 == offset for vector in made)
    assert len({vector.ctypes.data % 4096 for vector in made}) == 4
    assert not any(np.shares_memory(a, b) for a in made for b in made if a is not b)
    assert all((vector > 0).all() and vector.shape == (100,) for vector in made)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("\tvsqrtps\t%zmm1, %zmm2\n\tvsqrtss\t%xmm1, %xmm2, %xmm3\n\tsqrtsd\t%xmm1, %xmm2\n", (1, 2)),
        ("\tfsqrt\tv0.4s, v1.4s\n\tfsqrt\ts0, s1\n", (1, 1)),
        ("\tfsqrt.4s\tv0, v1\n\tfsqrt\td0, d1\n", (1, 1)),
        ("\tret\n", (0, 0)),
    ],
)
def test_roots_tells_vector_instructions_from_scalar_ones(code, wanted):
    class Compiled:
        inspect_asm = staticmethod(lambda: {"signature": code})

    assert roots(Compiled) == wanted


def test_the_products_of_a_step_are_those_that_the_chapters_count():
    found = of_step(128)
    assert round(sum(product.flops for product in found) / 1e6, 1) == 77.5
    assert len({product.name for product in found}) == 11


def test_the_operands_lie_in_memory_as_in_a_step():
    for product in of_step(16):
        a, b, out = product.arrays()
        assert (a.shape, b.shape, out.shape) == (
            (product.n, product.k),
            (product.k, product.m),
            (product.n, product.m),
        )
        assert [not x.flags.c_contiguous for x in (a, b)] == [product.turned == "a", product.turned == "b"]


@pytest.mark.parametrize("engine", passes.ENGINES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_watched_step_computes_what_an_unwatched_one_does(engine, optimizer):
    recipe = Recipe(optimizer=optimizer, lr=0.01, batch_size=32)
    line = StepRecorder(engine, recipe, TRAIN)
    names, spans = line.settled(0, 3)
    plain = Stepper(engine, recipe, TRAIN)
    plain.take(line.stepper.optimizer.steps)
    assert_allclose(line.stepper.network.theta, plain.network.theta, rtol=1e-5, atol=1e-6)
    assert names[:2] == (["first_products", "backpropagate"] if engine == "numba_step" else ["gather", "gather"])
    assert names[-1] == f"{optimizer}_update"
    assert all(span == sorted(span) and len(span) == 2 * len(names) + 1 for span in spans)


def test_watching_ends():
    before = {engine: vars(executors.of(engines.load(engine))).copy() for engine in passes.ENGINES}
    line = StepRecorder("numba_step", Recipe(batch_size=32), TRAIN)
    with pytest.raises(ZeroDivisionError), line.watching():
        raise ZeroDivisionError
    for engine, names in before.items():
        assert all(vars(executors.of(engines.load(engine)))[name] is value for name, value in names.items())


def test_profile_takes_quick_steps_and_adds_up():
    spans = [[0, 1, 2, 5, 5, 9, 10], *[[0, 100, 200, 500, 500, 900, 1000]] * 4]
    run = {"parts": ["gather", "relu", "relu"], "spans_us": spans}
    assert quiet_step(run) == ([("gather", 0, 1), ("relu", 2, 5), ("relu", 5, 9)], 10)
    assert profile(run) == {"gather": 1, "relu": 7, "rest": 2}


def test_the_record_has_everything_and_its_table_a_line_each(record):
    kinds = {run["kind"] for run in record["runs"]}
    assert kinds == {"ladder", "root", "update", "layer", "products", "parts", "busy", "pages"}
    assert len(passes.table(record).splitlines()) == len(record["runs"])
    steps = {len(run["spans_us"]) for run in record["runs"] if run["kind"] == "parts"}
    assert steps == {QUICK.turns * QUICK.steps}
    for run in record["runs"]:
        if run["kind"] in ("ladder", "update", "layer", "products"):
            assert len(run["samples_us"]) == QUICK.samples
            assert min(run["samples_us"]) > 0


def test_variants_take_turns():
    calls: list[str] = []
    variants = {name: partial(calls.append, name) for name in "ab"}
    samples_us(variants, Plan(samples=3, sample_seconds=0.0))
    assert "".join(calls[-12:]) == "aabb" * 3


def test_another_allocator_is_a_reason_and_no_error(monkeypatch):
    monkeypatch.setattr(pages.platform, "libc_ver", lambda: ("", ""))
    run = pages.in_new_process()
    assert "glibc" in run["why_not"]
    assert "not glibc" in passes.table({"runs": [run | {"kind": "pages", "large": False}]})
