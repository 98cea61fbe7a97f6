"""Random numbers that a counter and a key decide: NumPy's, cuRAND's and the kernels' are the same, to the bit."""

import emulator
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import one_sentence

from experiments.philox import philox
from mlpkit import kernels
from mlpkit.engines import numpy_baseline
from mlpkit.kernels.cnn import dropout
from mlpkit.nn.layers import key_of

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")

# Counter, key and result: the authors' own numbers, of their file kat_vectors (Random123). pi's digits are the third.
PI = "243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89452821e638d01377be5466cf34e90c6c"
KNOWN = {
    64: [
        ("0" * 96, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        ("f" * 96, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
        (PI, "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6"),
    ],
    32: [
        ("0" * 48, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("f" * 48, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (PI[:48], "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
}
KNOWN_CASES = [
    pytest.param(bits, *known, id=f"{bits}-{known[0][0]}") for bits, several in KNOWN.items() for known in several
]


def words_of(text, bits):
    """Return the words of a text of hexadecimal digits, as integers."""
    digits = bits // 4
    return [int(text[i : i + digits], 16) for i in range(0, len(text), digits)]


@pytest.fixture
def cupy(folder):
    """NumPy in the place of CuPy, and the emulator in that of the GPU."""
    dropout._kernel.cache_clear()
    with emulator.with_cupy(folder):
        import cupy

        yield cupy
    dropout._kernel.cache_clear()


def words(cupy, bits, counter, key, n):
    """Return the words (n, 4) of the counters that follow, from the kernel."""
    dtype = np.dtype(f"u{bits // 8}")
    counter, key = (cupy.asarray(np.array(numbers, dtype)) for numbers in (counter, key))
    out = cupy.empty((n, 4), dtype)
    kernels.load("philox").get_function(f"words_{bits}")((-(-n // 64),), (64,), (counter, key, out, np.int32(n)))
    return out


# The words


@pytest.mark.parametrize(("bits", "given", "wanted"), KNOWN_CASES)
def test_the_definition_gives_the_authors_numbers(bits, given, wanted):
    numbers = words_of(given, bits)
    assert philox(bits, numbers[:4], numbers[4:]) == tuple(words_of(wanted.replace(" ", ""), bits))


@pytest.mark.parametrize(("given", "wanted"), KNOWN[64], ids=["zeros", "ones", "pi"])
def test_numpys_are_the_authors_numbers_too_of_the_counter_after_its_own(given, wanted):
    counter = sum(word << 64 * i for i, word in enumerate(words_of(given, 64)[:4]))
    bit_generator = np.random.Philox(counter=(counter - 1) % 2**256, key=np.array(words_of(given, 64)[4:], np.uint64))
    assert bit_generator.random_raw(4).tolist() == words_of(wanted.replace(" ", ""), 64)


@needs_compiler
@pytest.mark.parametrize(("bits", "given", "wanted"), KNOWN_CASES)
def test_the_kernel_gives_the_authors_numbers(cupy, bits, given, wanted):
    check_known(cupy, bits, given, wanted)


def check_known(cupy, bits, given, wanted):
    numbers = words_of(given, bits)
    found = words(cupy, bits, numbers[:4], numbers[4:], 1)
    assert found.tolist() == [words_of(wanted.replace(" ", ""), bits)]


@needs_compiler
@pytest.mark.parametrize("bits", [64, 32])
def test_the_kernel_is_the_definition(cupy, bits):
    check_words(cupy, bits)


def check_words(cupy, bits):
    rng = np.random.default_rng(bits)
    counter, key = (rng.integers(2**bits - 1, size=size, dtype=f"u{bits // 8}").tolist() for size in (4, 2))
    counter[0] >>= 1  # no carry
    found = words(cupy, bits, counter, key, 100)
    assert found.tolist() == [list(philox(bits, [counter[0] + i, *counter[1:]], key)) for i in range(100)]


# Dropout

SHAPES = [(1,), (7,), (8,), (9,), (3, 5), (2, 128), (128, 17), (1, 2047), (2049,), (4, 3, 5, 7), (2, 2, 1, 9)]
STEPS = [0, 1, 429, 2**31 - 1, 2**40]
RATES = [0.0, 0.1, 0.25, 0.5, 0.999]


def bits_of(array):
    return np.asarray(array).view(f"u{array.dtype.itemsize}")


def check_dropout(cupy, to_numpy, shape, dtype, case):
    """Compare a kernel's result with the baseline's: which step, key and rate, the number of the case decides."""
    rng = np.random.default_rng(case)
    x = rng.normal(size=shape).astype(dtype)
    step, rate, key = STEPS[case % 5], RATES[case // 5 % 5], key_of(case, (case % 3, 1))
    wanted = numpy_baseline.dropout(x, rate, key, step)
    steps = [step, np.int64(step), cupy.asarray(np.array([step]))]
    steps += [cupy.asarray(np.array(step, np.int32))] if step < 2**31 else []
    for each in steps:
        found = dropout.dropout(cupy.asarray(x), rate, key, each)
        assert_array_equal(bits_of(to_numpy(found)), bits_of(wanted))


CASES = [(shape, dtype, i) for i, shape in enumerate(SHAPES * 3) for dtype in ("f4", "f8")]


@needs_compiler
@pytest.mark.parametrize(("shape", "dtype", "case"), CASES)
def test_the_kernel_drops_what_the_baseline_drops(cupy, shape, dtype, case):
    check_dropout(cupy, np.asarray, shape, dtype, case)


@needs_compiler
def test_an_array_may_begin_anywhere_and_lie_in_any_order(cupy):
    x = cupy.asarray(np.random.default_rng(0).normal(size=(40, 31)).astype(np.float32))
    for view in (x[1:], x[:, 1:], x.T, x[::2, ::-1]):
        found = dropout.dropout(view, 0.5, (3, 4), 5)
        assert_array_equal(found, numpy_baseline.dropout(np.array(view), 0.5, (3, 4), 5))


@needs_compiler
def test_a_step_of_another_type_is_refused(cupy):
    for x, step in ((np.ones(3, np.float32), np.ones(1, np.uint8)), (np.ones(3, np.float16), np.ones(1, np.int32))):
        with pytest.raises(TypeError, match="float32 or float64") as caught:
            dropout.dropout(cupy.asarray(x), 0.5, (1, 2), cupy.asarray(step))
        one_sentence(caught.value, str(step.dtype))


def test_a_key_is_the_one_that_numpy_makes_of_seed_and_path():
    for seed, path in ((0, (0,)), (7, (3, 1)), (2**70, (4,))):
        state = np.random.Philox((seed, *path, 2)).state["state"]
        assert key_of(seed, path) == tuple(state["key"].tolist())
        assert not state["counter"].any()


def test_an_examples_numbers_do_not_depend_on_the_others():
    x = np.ones((9, 5), np.float32)
    whole = numpy_baseline.dropout(x, 0.5, (1, 2), 3)
    for n in range(1, 9):
        assert_array_equal(numpy_baseline.dropout(x[:n], 0.5, (1, 2), 3), whole[:n])


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("bits", "given", "wanted"), KNOWN_CASES)
def test_a_gpu_gives_the_authors_numbers(bits, given, wanted):
    import cupy as cp

    check_known(cp, bits, given, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [64, 32])
def test_a_gpu_is_the_definition(bits):
    import cupy as cp

    check_words(cp, bits)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "dtype", "case"), [*CASES, ((128, 64, 28, 28), "f4", 7), ((128, 256), "f8", 11)])
def test_a_gpu_drops_what_the_baseline_drops(shape, dtype, case):
    import cupy as cp

    check_dropout(cp, cp.asnumpy, shape, dtype, case)


@pytest.mark.gpu
def test_a_graph_drops_others_each_time():
    """The step lies on the GPU, and the graph reads it anew."""
    import cupy as cp

    x, step, stream = cp.ones((50, 40), "f"), cp.zeros(1, "i4"), cp.cuda.Stream(non_blocking=True)
    dropout.dropout(x, 0.5, (1, 2), step)  # compiled before
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        y = dropout.dropout(x, 0.5, (1, 2), step)
        step += 1
        graph = stream.end_capture()
        for each in range(3):
            graph.launch(stream)
            wanted = numpy_baseline.dropout(np.ones((50, 40), np.float32), 0.5, (1, 2), each)
            assert_array_equal(cp.asnumpy(y), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 12345])
def test_the_words_of_32_bits_are_curands(seed):
    """cuRAND's generator: the seed is the key, the thread is the counter's upper half, and four draws are one count."""
    import cupy as cp

    threads, draws = 512, 9
    found = cp.random.Philox4x3210(seed, size=threads).random_raw((draws, threads)).get().astype(np.uint32)
    key = int(np.random.SeedSequence(seed).generate_state(1)[0])  # as CuPy makes it
    for thread in (0, 1, 77, 511):
        wanted = words(cp, 32, [0, 0, thread, 0], [key, 0], -(-draws // 4)).get().ravel()[:draws]
        assert_array_equal(found[:, thread], wanted)
