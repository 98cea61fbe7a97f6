"""What several tests share: a small problem, engines made to order, and arrays that lie in memory in odd ways."""

import types

import numpy as np
import pytest
from hypothesis import strategies as st

from mlpkit import engines, executors
from mlpkit.data import Dataset, Split
from mlpkit.data.idx import parts
from mlpkit.engines import numpy_baseline
from mlpkit.kernels import gpu
from mlpkit.nn.models import MLP, mlp

SMALL = mlp(6, 5, 3)
# Kernels of Hopper's own instructions; others take their places on other GPUs, see `kernels.conv.variants`
needs_hopper = pytest.mark.skipif(
    gpu.why_not() is None and not gpu.Needs(90, alone=True).are_met(), reason="needs Hopper's own instructions"
)


def skip_before_ampere(in_bfloat16):
    """Skip a test in bfloat16 where the GPU has none, or stands for one that has none."""
    if in_bfloat16 and gpu.capability() < 80:
        pytest.skip("it multiplies bfloat16, which GPUs before 8.0 do not have")


def _parameter(name, why_not):
    return pytest.param(name, marks=pytest.mark.skip(reason=why_not)) if why_not else name


# An engine that this machine can't run is skipped with its reason, not left out in silence. One that takes all that a
# multilayer perceptron needs from another is tested where it differs.
REASONS = engines.available()
ENGINES = [_parameter(name, REASONS[name]) for name in engines.names(MLP.operations)]
# Numba compiles the same loops for each of its engines, anew for each dtype and layout. Where it is not float32 that
# lies as usual, one engine stands for the others, which are slow.
NUMBA = [name for name in engines.names(MLP.operations) if engines.library(name) == "numba"]
STANDS = "numba_serial"
IN_FLOAT64 = [
    pytest.param(engine, marks=pytest.mark.slow) if engine in NUMBA and engine != STANDS else engine
    for engine in ENGINES
]


def sweep(values, *stay):
    """Return a test's parameters: those that `stay` for `make test` stand for the others, which are slow."""
    return [pytest.param(*_tuple(value), marks=() if value in stay else pytest.mark.slow) for value in values]


def _tuple(value):
    return value if isinstance(value, tuple) else (value,)


def blobs(n=50, seed=0, dtype=np.float32):
    """Return n points (n, 6) around three centres, and the number of the centre of each."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return Split((2 * np.eye(3, 6)[y] + rng.normal(size=(n, 6))).astype(dtype), y)


def dataset():
    return Dataset("blobs", blobs(50, 0), blobs(20, 1), blobs(20, 2), ("left", "right", "top"))


OF_AN_EXECUTOR = ("why_not", "Trainer", "Evaluation", "Prediction")


def engine_like(base=numpy_baseline, **functions):
    """Return a new engine that is `base` but for the given functions; those of an executor are its executor's."""
    engine = types.ModuleType("mlpkit.engines.fake")
    vars(engine).update({name: value for name, value in vars(base).items() if not name.startswith("__")})
    vars(engine).update({name: value for name, value in functions.items() if name not in OF_AN_EXECUTOR})
    own = {name: value for name, value in functions.items() if name in OF_AN_EXECUTOR}
    engine.executor = types.SimpleNamespace(**vars(executors.of(base)) | own)
    return engine


# name: (how an array is stored, how the store is looked at so that the array appears)
LAYOUTS = {
    "contiguous": (lambda a: a.copy(), lambda s: s),
    "transposed": (lambda a: a.T.copy(), lambda s: s.T),
    "strided": (lambda a: np.repeat(a, 2, axis=-1), lambda s: s[..., ::2]),
    "reversed": (lambda a: a[::-1].copy(), lambda s: s[::-1]),
}


def one_sentence(error, *words):
    """Assert that a message is one line, and has all the words."""
    message = str(error)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, f"{word!r} is not in {message!r}"


def damaged(content, draw):
    """Return a file's bytes with one of them changed, or cut short: Hypothesis draws which, and where."""
    content = bytearray(content)
    place = draw(st.integers(0, len(content) - 1))
    if draw(st.booleans()):
        return content[:place]
    content[place] ^= draw(st.integers(1, 255))
    return content


def idx_bytes(array):
    """Return an array as the bytes of an IDX file."""
    return b"".join(parts(array))


def peers_of(experiment):
    """Return an experiment's PEERS as a test's parameters: all but our own need packages that not everybody has."""
    return [who if who == "numba_conv" else pytest.param(who, marks=pytest.mark.peers) for who in experiment.PEERS]


def peer_alone(experiment, who, **settings):
    """Let an experiment measure one peer, once, with a plan of such settings, and check that it is right and timed."""
    if who != "numba_conv":
        pytest.importorskip("onnxruntime" if who == "onnxruntime" else "torch", reason=f"{who} is not installed")
    plan = experiment.Plan(peers=(who,), rounds=1, **settings)
    (run,) = experiment.measure(save=lambda record: None, progress=lambda text: None, plan=plan)["runs"]
    if "onnx" in str(run["why_not"]) or "compiler" in str(run["why_not"]).lower():
        pytest.skip(run["why_not"])
    assert not run["why_not"]
    assert len(run["samples_us"]) == 2
    assert run["difference"] < experiment.MOST
