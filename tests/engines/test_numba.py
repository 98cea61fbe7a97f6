"""What is particular about the compiled engines: their functions one by one, their caches, their threads."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from shared import sweep

import mlpkit
from mlpkit import engines
from mlpkit.engines import python_loops
from mlpkit.engines.loops import gemm as _gemm

LOOPS = ("python_loops", "numba_serial", "numba_parallel", "numba_fastmath", "numba_blocked")
PACKAGE = Path(mlpkit.__file__).parent


def numbers(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("name", LOOPS)
class TestNamedFunctions:
    """Each explicit loop is its NumPy namesake."""

    def test_dot(self, name):
        u, v = numbers(50), numbers(50, seed=1)
        assert_allclose(engines.load(name).dot(u, v), np.dot(u, v), rtol=1e-5)

    def test_matmul(self, name):
        a, b, out = numbers(5, 7), numbers(7, 3, seed=1), np.empty((5, 3), np.float32)
        engines.load(name).matmul(a, b, out)
        assert_allclose(out, a @ b, rtol=1e-5, atol=1e-6)

    def test_sum_and_mean(self, name):
        values, engine = numbers(99), engines.load(name)
        assert_allclose(engine.sum(values), np.sum(values), rtol=1e-5)
        assert_allclose(engine.mean(values), np.mean(values), rtol=1e-5)

    def test_zeros(self, name):
        for dtype in (np.float32, np.int64):
            found = engines.load(name).zeros(4, dtype)
            assert found.dtype == dtype
            assert_array_equal(found, np.zeros(4, dtype))

    def test_argmax_and_relu(self, name):
        z, engine = numbers(6, 5), engines.load(name)
        assert_array_equal(engine.argmax(z), np.argmax(z, axis=1))
        assert_array_equal(engine.relu(z), np.maximum(z, 0))

    def test_softmax(self, name):
        z, softmax = numbers(6, 5), engines.load(name).softmax
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        assert_allclose(softmax(z), p, rtol=1e-5)
        assert_allclose(softmax(z + np.float32(1e4)).sum(axis=1), np.ones(6), rtol=1e-5)


@pytest.mark.parametrize("name", LOOPS)
def test_an_optimizer_names_the_arguments_of_its_update(name):
    """As `Adam` calls it, whether threads share the loop out or not."""
    theta, grad, state = numbers(7), numbers(7, seed=1), {"m": numbers(7, seed=2), "v": np.ones(7, np.float32)}
    settings = {"t": 3, "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    wanted, kept = theta.copy(), {key: value.copy() for key, value in state.items()}
    engines.load("numpy_baseline").adam_update(wanted, grad, **kept, **settings)
    engines.load(name).adam_update(theta, grad, **state, **settings)
    assert_allclose(theta, wanted, rtol=1e-5)


def test_the_variants_are_the_same_loops_compiled_differently():
    for name in LOOPS[1:-1]:
        engine = engines.load(name)
        assert engine.matmul.py_func.__code__ is python_loops.matmul.__code__
    assert "parallel" not in engines.load("numba_serial").matmul.targetoptions or (
        not engines.load("numba_serial").matmul.targetoptions["parallel"]
    )
    assert engines.load("numba_parallel").matmul.targetoptions["parallel"]
    assert not engines.load("numba_parallel").dot.targetoptions["parallel"]  # it has no loop to share out
    assert engines.load("numba_fastmath").dot.targetoptions["fastmath"] == {"reassoc", "contract", "arcp", "nsz", "afn"}


# The blocked product

SHAPES = st.tuples(*[st.integers(1, 70)] * 3)
STORES = {
    "C": lambda a: a,
    "F": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
}


# Each dtype and each way of lying in memory is compiled anew.
KINDS = [*((np.float32, store) for store in STORES), (np.float64, "reversed")]


@pytest.mark.parametrize(("dtype", "store"), sweep(KINDS, KINDS[0], KINDS[-1]))
@given(shape=SHAPES, apart=st.sampled_from([1, 2]), parallel=st.booleans())
def test_a_blocked_product_is_the_product(dtype, store, shape, apart, parallel):
    n, k, m = shape
    inner = (slice(1, -1), slice(apart, -apart, apart))
    a, b = numbers(n, k, dtype=dtype), numbers(k, m, dtype=dtype, seed=1)
    out = np.full((n + 2, apart * (m + 2) - (apart - 1)), 7, dtype)
    multiply = _gemm.matmul if parallel else _gemm.multiply
    multiply(STORES[store](a), STORES[store](b), out[inner])
    tolerance = {np.float32: 1e-4, np.float64: 1e-12}[dtype]
    assert_allclose(out[inner], a @ b, rtol=tolerance, atol=tolerance)
    out[inner] = 7
    assert (out == 7).all()  # nothing around it was touched


@pytest.mark.parametrize(
    "shape", [(3, _gemm.DEPTH + 5, 20), (_gemm.HEIGHT + 3, 9, 33), (1030, 2 * _gemm.DEPTH + 1, 17)]
)
def test_a_product_larger_than_a_panel(shape):
    n, k, m = shape
    a, b = numbers(n, k), numbers(k, m, seed=1)
    wanted = a.astype(np.float64) @ b
    for multiply in (_gemm.matmul, _gemm.multiply):
        out = np.full((n, m), np.nan, np.float32)  # what was there before does not count
        multiply(a, b, out)
        assert_allclose(out, wanted, rtol=1e-4, atol=1e-3)


def test_a_nan_reaches_its_row_and_no_other():
    a, b, out = numbers(20, 30), numbers(30, 40, seed=1), np.empty((20, 40), np.float32)
    a[13, 29] = np.nan
    _gemm.matmul(a, b, out)
    assert_array_equal(np.isnan(out).any(axis=1), np.arange(20) == 13)
    assert np.isnan(out[13]).all()


# Updates

UPDATES = {
    "momentum_update": {"lr": 0.1, "momentum": 0.9},
    "nesterov_update": {"lr": 0.1, "momentum": 0.9},
    "rmsprop_update": {"lr": 0.1, "rho": 0.9, "eps": 1e-8},
    "adam_update": {"t": 900, "lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", ["numba_hybrid", "numba_step"])
def test_the_state_holds_no_number_that_computes_slowly(name, update, dtype):
    """What is left of an old gradient becomes 0, not subnormal; what is no number stays so."""
    tiny = np.finfo(dtype).tiny
    vectors = 2 if update == "adam_update" else 1
    state = [np.array([tiny, tiny, 3 * tiny, 1, np.nan, 0], dtype) for _ in range(vectors)]
    theta, grad = np.ones(6, dtype), np.zeros(6, dtype)
    getattr(engines.load(name), update)(theta, grad, *state, **UPDATES[update])
    for vector in state:
        assert_array_equal(vector[[0, 5]], 0)  # shrunk by a factor below 1
        assert (np.abs(vector[[2, 3]]) > 0).all()
        assert np.isnan(vector[4])
    assert np.isnan(theta[4])
    assert_array_equal(theta[[0, 5]], 1)


# Caches

STEP = """
    import sys, numpy as np
    from mlpkit.nn.models import mlp
    from mlpkit.nn.network import Network
    from mlpkit.executors import trainer_of
    from mlpkit.optim import SGD
    from mlpkit import engines
    engine = engines.load("numba_serial")
    network = Network(engine, mlp(6, 5, 3))
    x, y = np.ones((4, 6), np.float32), np.arange(4) % 3
    print(float(trainer_of(network, SGD(network, 0.1), x, y, 4).step(x, y)))
    print(sum(engine.linear.stats.cache_hits.values()), sum(engine.linear.stats.cache_misses.values()))
"""
RELU = """
    import numpy as np
    from mlpkit import engines
    relu = engines.load("numba_serial").relu
    print(relu(np.full((1, 1), 0.1))[0, 0], sum(relu.stats.cache_hits.values()), sum(relu.stats.cache_misses.values()))
"""
WHOLE_STEP = """
    import numpy as np
    from mlpkit.nn.models import mlp
    from mlpkit.nn.network import Network
    from mlpkit.optim import SGD
    from mlpkit.engines import numba_step
    from mlpkit.executors import trainer_of
    network = Network(numba_step, mlp(6, 5, 4, 4, 3))  # of as many layers as others' here, who may have compiled it
    x, y = np.ones((4, 6), np.float32), np.arange(4) % 3
    trainer_of(network, SGD(network, 0.1), x, y, 4).step(x, y)
    step = numba_step.step
    for function in (step.first_products, step.backpropagate, step.parameter_gradients, numba_step.sgd_update):
        print(sum(function.stats.cache_hits.values()), sum(function.stats.cache_misses.values()))
"""


def python(script, folder=PACKAGE.parent, limit=300, **settings):
    """Return what a script printed, run in a process of its own, in `folder`, with these environment variables."""
    options = settings.pop("options", {})
    known = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = {**known, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | settings
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(
        command, cwd=folder, env=environment, text=True, timeout=limit, capture_output=True, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


COMPILED = shutil.ignore_patterns("*.nb[ci]")  # by Numba: Python's own files save each process half a second


@pytest.fixture
def installation():
    """A copy of the package for which nothing has been compiled, in a folder that everybody may read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    shutil.copytree(PACKAGE, folder / "mlpkit", ignore=COMPILED)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def relu_once(tmp_path_factory):
    """What RELU prints where it has never been run, and the copy of the package that has its code now."""
    folder = tmp_path_factory.mktemp("used")
    shutil.copytree(PACKAGE, folder / "mlpkit", ignore=COMPILED)
    return python(RELU, folder), folder


@pytest.fixture(scope="module")
def step_once(relu_once):
    """What STEP prints there at first; the copy has its code then."""
    return python(STEP, relu_once[1])


@pytest.fixture
def used(relu_once, tmp_path):
    """A copy of the package in which RELU has been run, and STEP, where a test wants `step_once` first."""
    shutil.copytree(relu_once[1], tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.slow
def test_a_second_process_compiles_nothing(step_once, used):
    first = step_once
    assert first[1:] == ["0", "1"]
    assert python(STEP, used) == [first[0], "1", "0"]


@pytest.mark.slow
def test_a_whole_step_is_kept_with_all_that_it_calls():
    python(WHOLE_STEP)
    assert python(WHOLE_STEP) == ["1", "0"] * 4


@pytest.mark.slow
def test_a_changed_source_is_compiled_anew_where_it_is_called_too(step_once, used):
    source = used / "mlpkit" / "engines" / "numba_serial.py"
    source.write_text(source.read_text() + "\n# another version of what an engine calls\n")
    assert python(STEP, used)[1:] == ["0", "1"]
    assert python(STEP, used) == [step_once[0], "1", "0"]


def test_a_source_that_is_not_compiled_may_change(relu_once, used):
    for name in ("engines/numpy_baseline", "engines/cuda_graph", "engines/cuda/kernel", "executors/numba_step"):
        source = used / "mlpkit" / f"{name}.py"
        source.write_text(source.read_text() + "\n# another version of what is none of Numba's business\n")
    assert python(RELU, used) == [relu_once[0][0], "1", "0"]


@pytest.mark.slow
def test_an_installation_that_cannot_be_written_to_works(installation, tmp_path):
    """Compiled code goes to the user's own folder; where there is none, it is compiled in each process."""
    folder = installation / "mlpkit" / "engines" / "__pycache__"
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("a file, so that no folder can be made: not even by root")
    nowhere = str(tmp_path / "file" / "home")
    (tmp_path / "file").write_text("")
    own = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / "cache")}
    answers = [python(RELU, installation, **own) for _ in range(2)]
    assert [answer[1:] for answer in answers] == [["0", "1"], ["1", "0"]]
    homeless = python(RELU, installation, HOME=nowhere, XDG_CACHE_HOME=nowhere)
    assert homeless[0] == answers[0][0]
    assert not list(installation.rglob("*.nbi"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("kept", sweep([0, 0.5], 0.5), ids=["empty", "half"])
def test_compiled_code_that_was_cut_short_is_made_anew(suffix, kept, relu_once, used):
    """As when the power fails: the name of a file can be on the disk before what stands in it."""
    for path in used.rglob(f"*.{suffix}"):
        path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    first = relu_once[0]
    assert python(RELU, used) == first
    assert python(RELU, used) == [first[0], "1", "0"]


@pytest.mark.slow
def test_code_of_another_signature_is_not_taken(installation):
    """Two processes that save at once may choose the same name for a file; only one of them finds its code there."""
    script = """
        import numpy as np
        from mlpkit import engines
        relu = engines.load("numba_serial").relu
        for dtype in (np.float32, np.float64):
            print(relu(np.full((1, 1), 0.1, dtype))[0, 0])
        print(sum(relu.stats.cache_hits.values()))
    """
    first = python(script, installation)
    assert first == ["0.1", "0.1", "0"]
    one, *others = installation.rglob("*numba_serial.relu.*.nbc")
    for other in others:
        other.write_bytes(one.read_bytes())
    assert python(script, installation) == ["0.1", "0.1", "1"]
    assert python(script, installation) == ["0.1", "0.1", "2"]


def test_a_disk_that_is_full_does_not_stop_an_engine(installation):
    script = """
        import os
        from numba.core import caching
        def full(*arguments):
            raise OSError(28, "No space left on device")
        caching.IndexDataCacheFile.save = full
    """
    assert python(textwrap.dedent(script) + textwrap.dedent(RELU), installation)[1:] == ["0", "1"]


def test_ctrl_c_that_the_compiler_has_swallowed_is_ctrl_c(installation):
    script = """
        import numpy as np
        from numba.core import caching
        from mlpkit import engines
        def swallowed(*arguments):
            raise RuntimeError("no compiled object yet for <Library 'relu'>")
        caching.IndexDataCacheFile.save = swallowed
        relu = engines.load("numba_serial").relu
        try:
            relu(np.ones((1, 1)))
        except KeyboardInterrupt:
            print("interrupted")
        print(relu(np.ones((1, 1)))[0, 0])
    """
    assert python(script, installation) == ["interrupted", "1.0"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 here")
def test_a_folder_whose_name_is_not_utf8_does_not_stop_an_engine(installation, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(installation) + b"/Gr\xfc\xdfe"))
    folder.mkdir()
    shutil.move(installation / "mlpkit", folder / "mlpkit")
    assert python(STEP, folder, NUMBA_CACHE_DIR=str(tmp_path))[1:] == ["0", "1"]


# Threads

AGREE = """
    import numba, numpy as np
    from mlpkit.nn.models import mlp
    from mlpkit.nn.network import Network
    from mlpkit.executors import trainer_of
    from mlpkit.optim import Adam
    def losses(name, threads, inputs, *features):
        network = Network(name, mlp(inputs, *features))
        optimizer, rng = Adam(network), np.random.default_rng(0)
        X, y = rng.normal(size=(64, inputs)).astype(np.float32), rng.integers(10, size=64)
        trainer = trainer_of(network, optimizer, X, y, 64)
        found = [float(loss) for loss in trainer.epoch(rng.permutation(64)[:50])]
        for n in (1, 2, 3, 7, 32, 33, 64):
            numba.set_num_threads(threads if n % 3 else 1)
            x, y = rng.normal(size=(n, inputs)).astype(np.float32), rng.integers(10, size=n)
            found.append(float(trainer.step(x, y)))
        return found
    threads = numba.config.NUMBA_NUM_THREADS
    for sizes in ((20, 16, 10), (3, 16, 10)):  # more threads than inputs; of other layers it would be compiled anew
        for name in ("numba_parallel", "numba_step"):
            np.testing.assert_allclose(losses(name, threads, *sizes), losses("numpy_baseline", 1, *sizes), rtol=1e-5)
    print(threads, numba.threading_layer())
"""


@pytest.mark.parametrize("threads", sweep(["1", "2", "5"], "2"))
def test_any_number_of_threads_on_any_number_of_cores(threads):
    assert python(AGREE, NUMBA_NUM_THREADS=threads)[0] == threads


@pytest.mark.slow
def test_the_layer_that_numba_brings_along_is_enough():
    assert python(AGREE, NUMBA_NUM_THREADS="2", NUMBA_THREADING_LAYER="workqueue")[1] == "workqueue"


INTERRUPTED = """
    import os, signal, threading, numpy as np
    from mlpkit.engines.loops import gemm as _gemm
    a = np.ones((1500, 1500), np.float32)
    out = np.empty_like(a)
    _gemm.matmul(a[:8], a, out[:8])  # compiled: what is interrupted is the loop
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            _gemm.matmul(a, a, out)
    except KeyboardInterrupt:
        print("interrupted")
    out[:] = 0
    _gemm.matmul(a, a, out)
    print((out == 1500).all())
"""


posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")


@posix
@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_an_interrupted_parallel_loop_leaves_the_threads_fit_for_work(layer):
    try:
        answer = python(INTERRUPTED, NUMBA_NUM_THREADS="2", NUMBA_THREADING_LAYER=layer)
    except AssertionError as error:
        if "No threading layer could be loaded" in str(error):
            pytest.skip(f"Numba has no {layer} layer here")
        raise
    assert answer == ["interrupted", "True"]


@posix
def test_an_interrupted_training_keeps_what_it_has():
    script = """
        import os, signal, threading, numpy as np
        from mlpkit.nn.models import mlp
        from mlpkit.nn.network import Network
        from mlpkit.training.fit import fit
        from mlpkit.optim import SGD
        signal.signal(signal.SIGINT, signal.default_int_handler)
        rng = np.random.default_rng(0)
        train = rng.normal(size=(3000, 20)).astype(np.float32), rng.integers(10, size=3000)
        network = Network("numba_step", mlp(20, 16, 10))
        fit(network, SGD(network, 0.01), train, epochs=1)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        history = fit(network, SGD(network, 0.01), train, epochs=10**6)
        print(history.stopped, np.isfinite(history.loss).all())
    """
    assert python(script, NUMBA_NUM_THREADS="2") == ["interrupted", "True"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("name", ["numba_hybrid", "numba_step"])
def test_permission_to_reorder_loses_no_small_loss_beside_large_numbers(name, dtype):
    """Several logits of a row are its largest: the loss is the logarithm of their number, however large they are."""
    rng = np.random.default_rng(0)
    for exponent in range(36):
        z = (rng.normal(size=(5, 10)) * 10.0**exponent).astype(dtype)
        z = np.where(rng.random(z.shape) < 0.5, z.max(axis=1, keepdims=True), z)
        b = (rng.normal(size=10) * 10.0 ** rng.integers(36)).astype(dtype)
        labels = (z + b).argmax(axis=1)
        wanted, dz = engines.load(engines.BASELINE).softmax_cross_entropy(z + b, labels)
        loss = engines.load(name).fused.cross_entropy(z, b, labels, len(z))
        np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(z, dz, atol=1e-6)


FORKED = """
    import multiprocessing, numpy as np
    from mlpkit import engines
    from mlpkit.nn.models import mlp
    from mlpkit.nn.network import Network
    network = Network("numba_parallel", mlp(20, 16, 10))
    X = np.ones((300, 20), np.float32)
    def ask(name):
        return len(Network(name, mlp(20, 16, 10)).predict(X))
    with multiprocessing.get_context("fork").Pool(1) as before:
        print(before.apply(ask, ["numba_parallel"]))  # before there are threads, a fork may have its own
    network.predict(X)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.apply(ask, ["numpy_baseline"]))
        for again in range(2):
            try:
                print(pool.apply_async(ask, ["numba_parallel"]).get(60))
            except engines.EngineUnavailable as error:
                print("spawn" in str(error))
    print(len(network.predict(X)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP is Linux's")
def test_a_process_forked_from_one_with_threads_says_that_it_can_have_none():
    """Numba would end it, and a pool would wait for ever."""
    answer = python(FORKED, NUMBA_NUM_THREADS="2")
    assert answer in (["300", "300", "True", "True", "300"], ["300"] * 5)  # the latter without OpenMP


TWO_AT_ONCE = """
    import threading, numba, numpy as np
    from mlpkit.nn.models import mlp
    from mlpkit.nn.network import Network
    from mlpkit.training.fit import fit
    from mlpkit.optim import SGD
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 20)).astype(np.float32), rng.integers(10, size=600)
    losses = []
    def train():
        network = Network("numba_parallel", mlp(20, 16, 10))
        losses.append(tuple(fit(network, SGD(network, 0.01), (X, y), (X, y), epochs=5).loss))
    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(numba.threading_layer(), len(losses), len(set(losses)))
"""


def test_threads_that_train_at_once_take_turns_where_numba_has_threads_for_one():
    assert python(TWO_AT_ONCE, NUMBA_NUM_THREADS="2", NUMBA_THREADING_LAYER="workqueue") == ["workqueue", "3", "1"]
