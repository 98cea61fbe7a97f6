"""Every kernel compiles for old and new chips with no GPU; on one, every rung multiplies matrices that fill no tile."""

from importlib import import_module

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import sweep

from experiments import matmul_ladder
from experiments.lab import lines, ptxas, results
from experiments.matmul_ladder import ERRORS, OTHERS, RUNGS, Plan, others, rungs
from mlpkit import engines, kernels

measuring = import_module("experiments.matmul_ladder.measure")  # the package has a function of that name

SHAPES = [(1, 1, 1), (3, 5, 2), (5, 1, 7), (17, 33, 31), (128, 784, 128), (130, 132, 260), (129, 67, 257), (4, 1000, 8)]
QUICK = Plan(samples=2, sample_ms=0.1, shapes=((5, 9, 7),), cubes=(64,), fused=((5, 9, 7),), transposed=100)


def why_no_compiler():
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
        kernels.ptxas()
    except (ImportError, FileNotFoundError, RuntimeError) as error:
        return f"no CUDA compiler: {error}"
    return None


needs_compiler = pytest.mark.skipif(why_no_compiler() is not None, reason=str(why_no_compiler()))


# With no GPU


@needs_compiler
@pytest.mark.parametrize("arch", sweep(matmul_ladder.ARCHITECTURES, "sm_90"))
@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_compiles_and_spills_nothing(name, arch):
    if arch < kernels.chip(RUNGS[name].file).rstrip("a"):
        pytest.skip(f"it is for {kernels.chip(RUNGS[name].file)}")
    found = matmul_ladder.resources(RUNGS[name], arch)
    assert found["spilled_bytes"] == 0
    assert 0 < found["registers"] * found["threads"] <= 65536
    assert found["shared_bytes"] <= (227 if kernels.chip(RUNGS[name].file) == "sm_90a" else 163) * 1024


@needs_compiler
@pytest.mark.parametrize("arch", sweep(matmul_ladder.ARCHITECTURES, "sm_90"))
@pytest.mark.parametrize("name", ["transpose", "roofs"])
def test_the_other_kernels_compile(name, arch):
    assert all(found.spilled_bytes == 0 for found in ptxas.resources(name, arch).values())


def test_the_rungs_are_the_files_in_their_order():
    files = [name for name in kernels.names() if name.startswith("matmul_")]
    assert [rung.file for rung in RUNGS.values()] == sorted(files, key=lambda name: int(name.split("_")[1]))


@pytest.mark.parametrize("rung", RUNGS.values(), ids=RUNGS)
def test_blocks_cover_the_product(rung):
    for m, n in [(1, 1), (128, 128), (129, 257), (1000, 3)]:
        tiles = np.prod(rung.blocks(m, n))
        assert tiles * np.prod(rung.tile) >= m * n
        assert tiles == -(-m // rung.tile[0]) * -(-n // rung.tile[1])


def test_a_number_is_fetched_less_often_the_larger_the_tile():
    fetched = {name: rung.fetched_bytes(4096, 4096, 4096) for name, rung in RUNGS.items()}
    assert fetched["naive"] == fetched["coalesced"] == 4 * 2 * 4096**3
    assert fetched["shared"] == 4 * 2 * 4096**3 / 32
    assert fetched["registers"] == 4 * 2 * 4096**3 / 128
    assert fetched["bf16"] == fetched["tf32"] / 2
    assert min(fetched.values()) > matmul_ladder.least_bytes(4096, 4096, 4096)


def test_no_gpu_is_said_in_a_sentence(monkeypatch):
    def refuse(name):
        raise engines.EngineUnavailable("no NVIDIA driver")

    monkeypatch.setattr(engines, "load", refuse)
    with pytest.raises(engines.EngineUnavailable, match="no NVIDIA driver"):
        matmul_ladder.measure(save=None, progress=None)


@pytest.fixture
def small_gpu(monkeypatch):
    """A GPU that gives a block 99 KiB of shared memory, as a GeForce does."""
    pretend(monkeypatch, "89", 99)


def pretend(monkeypatch, capability, kib):
    monkeypatch.setattr(rungs, "_capability", lambda: capability)
    monkeypatch.setattr(rungs, "_most_shared", lambda: kib * 1024)


NEEDS_MORE = ("tf32", "bf16", "wgmma")


def test_a_rung_that_does_not_fit_is_left_out_with_a_sentence(small_gpu):
    said = []
    assert list(matmul_ladder.fitting(RUNGS, said.append)) == [n for n in RUNGS if n not in NEEDS_MORE]
    assert [sentence.split()[0] for sentence in said] == [RUNGS[name].file for name in NEEDS_MORE]
    assert "need 133 KiB of shared memory and may have 99." in said[0]


@pytest.mark.parametrize("name", NEEDS_MORE)
def test_the_product_of_a_rung_that_does_not_fit_is_refused(name, small_gpu):
    with pytest.raises(ValueError, match=r"does not fit on this GPU|no older and no newer one"):
        matmul_ladder.matmul(name, None, None)


def test_a_record_goes_on_without_rungs_that_do_not_fit(small_gpu, monkeypatch):
    monkeypatch.setattr(measuring, "occupancy", lambda rung: {"registers": 32})
    said = []
    runs = list(measuring._resources(QUICK, said.append))
    assert [run["rung"] for run in runs] == [n for n in RUNGS if n not in NEEDS_MORE]
    assert [sentence for sentence in said if "matmul_8_bf16 does not fit" in sentence]


def test_on_turing_the_rungs_that_copy_in_the_background_are_left_out_with_a_sentence(monkeypatch):
    pretend(monkeypatch, "75", 64)
    said = []
    assert RUNGS.keys() - matmul_ladder.fitting(RUNGS, said.append).keys() == {"pipelined", *NEEDS_MORE}
    assert said[0] == "matmul_6_pipelined needs compute capability 8.0, or newer, and this GPU has 7.5."


@pytest.mark.parametrize(("capability", "kib"), [("80", 163), ("90", 227), ("100", 227), ("120", 227)])
def test_hoppers_own_rung_is_refused_on_older_and_on_newer_chips(capability, kib, monkeypatch):
    pretend(monkeypatch, capability, kib)
    assert matmul_ladder.fitting(RUNGS, lambda reason: None).keys() - {"wgmma"} == RUNGS.keys() - {"wgmma"}
    reason = matmul_ladder.why_not(RUNGS["wgmma"])
    if capability == "90":
        assert reason is None
    else:
        assert reason.startswith("matmul_10_wgmma needs compute capability 9.0, no older and no newer one")
        assert reason.endswith(f"this GPU has {int(capability) / 10}.")


def test_what_is_not_installed_is_left_out_with_a_sentence(monkeypatch):
    monkeypatch.setattr(others, "find_spec", lambda name: None)
    said = []
    assert matmul_ladder.available(progress=said.append) == {}
    assert len(said) == 2
    assert "Numba" in said[0]
    assert "torch and triton" in said[1]


def test_numba_that_only_plays_a_gpu_is_left_out(monkeypatch):
    monkeypatch.setattr("numba.config.ENABLE_CUDASIM", True)
    assert "NUMBA_ENABLE_CUDASIM" in others.why_no_numba()


def test_numba_that_fits_nothing_else_here_is_left_out(monkeypatch):
    def jit(signature):
        raise AttributeError("module 'numpy' has no\nattribute 'row_stack'")

    monkeypatch.setattr("numba.cuda.is_available", lambda: True)
    monkeypatch.setattr("numba.cuda.jit", jit)
    assert others.why_no_numba().endswith("compiles nothing here (module 'numpy' has no attribute 'row_stack').")


def test_the_table_shows_a_record():
    taken = {"registers": 40, "shared_bytes": 8192, "spilled_bytes": 0, "threads": 256, "blocks": 2, "occupancy": 0.25}
    size = {"m": 4096, "n": 4096, "k": 4096, "error": 1e-6}
    runs = [
        {"kind": "resources", "rung": "naive"} | taken,
        {"kind": "peak", "samples_gflops": [60e3, 62e3]},
        {"kind": "copy", "bytes": 2**31, "samples_gbps": [3900.0]},
        {"kind": "product", "way": "cublas_float32", "samples_us": [3000.0]} | size,
        {"kind": "product", "way": "naive", "samples_us": [6000.0]} | size,
        {"kind": "loop", "way": "numba_naive", "cost": 21.75},
        {"kind": "fused", "way": "triton, one kernel", "samples_us": [200.0]} | size,
        {"kind": "transpose", "way": "direct", "samples_gbps": [900.0]},
    ]
    text = matmul_ladder.table({"runs": runs})
    for words in (
        "62.0 TFLOP/s",
        "3,900 GB/s",
        "40 registers",
        "25% of its threads",
        "50.0% of cuBLAS",
        "900 GB/s",
        "one kernel",
    ):
        assert words in text


LOOP = """$L__BB0_4:
    // in the loop
    .pragma "nounroll";
	ld.global.f32 	%f12, [%rd44];
	fma.rn.f32 	%f14, %f13, %f12, %f29;
	@%p6 bra 	$L__BB0_4;

$L__BB0_5:
	ret;
"""


def test_the_instructions_of_the_busiest_loop_are_counted_for_a_multiply_add():
    assert others.loop_cost(LOOP) == 3
    assert others.loop_cost("ld.global.f32 %f1, [%rd1];\n" + LOOP) == 3  # not those before it


@needs_compiler
def test_a_loop_without_shared_memory_has_more_to_do():
    naive, shared = (others.loop_cost(kernels.ptx(RUNGS[name].file)) for name in ("naive", "shared"))
    assert 3 < shared < naive < 6


def test_lines_are_those_of_a_function_or_a_file_and_its_rooms_headers():
    assert matmul_ladder.source("numba_naive").splitlines()[:2] == ["@cuda.jit", "def naive(a, b, c):"]
    counted = {name: matmul_ladder.code_lines(name) for name in (*RUNGS, *OTHERS)}
    assert counted["numba_naive"] == 8  # the docstring is free
    assert counted["naive"] == counted["coalesced"] < counted["shared"] < counted["registers"]
    assert counted["triton"] < counted["registers"]
    assert counted["wgmma"] > lines.count(kernels.place("matmul_10_wgmma"))


def test_shares_are_those_of_cublas_in_the_same_precision():
    times = {"tf32": 30.0, "cublas_tf32": 15.0, "cublas_float32": 60.0}
    size = {"m": 4, "n": 4, "k": 4}
    runs = [{"kind": "product", "way": way, "samples_us": [us, us, 9e9]} | size for way, us in times.items()]
    assert matmul_ladder.share({"runs": runs}, "tf32", **size) == 0.5
    assert matmul_ladder.share({"runs": runs}, "naive", **size) is None
    assert matmul_ladder.gflops({"runs": runs}, "tf32", **size) == 2 * 4**3 / 30 / 1e3


def test_the_published_record_can_be_read():
    record = results.published("matmul_ladder")
    assert matmul_ladder.share(record, "pipelined", 8192, 8192, 8192) > 0.9
    assert matmul_ladder.share(record, "wgmma", 4096, 4096, 4096) > 0.85
    assert all(matmul_ladder.gflops(record, way, 4096, 4096, 4096) for way in OTHERS)
    assert set(RUNGS) == {run["rung"] for run in results.runs(record, kind="resources")}
    assert "of cuBLAS" in matmul_ladder.table(record)


# On a GPU


@pytest.fixture(autouse=True)
def skip_what_does_not_fit(request):
    """Skip a test on the GPU whose rung asks for more shared memory than this one has."""
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name and request.node.get_closest_marker("gpu") and (reason := matmul_ladder.why_not(RUNGS[name])):
        pytest.skip(reason)


def matrices(m, k, n, seed=0):
    import cupy

    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return cupy.asarray(a), cupy.asarray(b), a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_multiplies(name):
    for m, k, n in SHAPES:
        a, b, wanted = matrices(m, k, n)
        found = matmul_ladder.matmul(name, a, b).get()
        assert_allclose(found, wanted, rtol=0, atol=4 * ERRORS[RUNGS[name].precision] * k**0.5, err_msg=f"{m} {k} {n}")


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
def test_small_integers_are_multiplied_exactly(name):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 8, shape).astype(np.float32) for shape in ((131, 77), (77, 141)))
    import cupy

    assert_array_equal(matmul_ladder.matmul(name, cupy.asarray(a), cupy.asarray(b)).get(), a @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize("shape", [(131, 77, 141), (132, 76, 140)], ids=["odd", "aligned"])
def test_nan_and_inf_stay_where_they_belong(name, shape):
    m, k, n = shape
    a, b, _ = matrices(m, k, n)
    a[5, 7], a[130, k - 1], b[k - 1, 9] = np.nan, np.inf, -np.inf
    found = matmul_ladder.matmul(name, a, b).get()
    wanted = a.get().astype(np.float64) @ b.get().astype(np.float64)
    assert_array_equal(np.isnan(found), np.isnan(wanted))
    assert_array_equal(found == np.inf, wanted == np.inf)
    assert_array_equal(found == -np.inf, wanted == -np.inf)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
def test_nothing_is_written_beside_the_product(name):
    import cupy

    for m, k, n in SHAPES:
        a, b, _ = matrices(m, k, n)
        room = cupy.full(m * n + 512, 7, np.float32)
        call, c = matmul_ladder.prepare(RUNGS[name], a, b, out=room[256:-256].reshape(m, n))
        call()
        assert not (c == 7).any()
        assert (room[:256] == 7).all()
        assert (room[-256:] == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
def test_views_are_multiplied_as_what_they_show(name):
    a, _, _ = matrices(40, 41, 42)
    wanted = a.get().astype(np.float64).T @ a.get().astype(np.float64)
    assert_allclose(matmul_ladder.matmul(name, a.T, a).get(), wanted, atol=0.1)
    flat = a.ravel()[1 : 1 + 32 * 32].reshape(32, 32)  # rows in one piece, but not at a multiple of 16 bytes
    wanted = flat.get().astype(np.float64) @ flat.get().astype(np.float64)
    assert_allclose(matmul_ladder.matmul(name, flat, flat).get(), wanted, atol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RUNGS)
def test_the_same_product_has_the_same_bits(name):
    a, b, _ = matrices(130, 784, 132)
    first = matmul_ladder.matmul(name, a, b).get()
    for _ in range(5):
        assert_array_equal(matmul_ladder.matmul(name, a, b).get(), first)


@pytest.mark.gpu
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_is_written_in_python_multiplies_too(other):
    if reason := other.why_not():
        pytest.skip(reason)
    for m, k, n in SHAPES:
        a, b, wanted = matrices(m, k, n)
        call, c = other.prepare(a, b)
        c.fill(np.nan)
        call()
        assert_allclose(c.get(), wanted, rtol=0, atol=4 * ERRORS[other.precision] * k**0.5, err_msg=f"{m} {k} {n}")


@pytest.mark.gpu
def test_a_layer_of_tritons_adds_its_bias_and_cuts_below_zero():
    import cupy

    if reason := OTHERS["triton"].why_not():
        pytest.skip(reason)
    a, b, wanted = matrices(130, 77, 141)
    bias = cupy.linspace(-1, 1, 141, dtype=np.float32)
    call, c = others.triton(a, b, bias)
    call()
    assert_allclose(c.get(), np.maximum(wanted + bias.get(), 0), rtol=0, atol=0.4)


@pytest.mark.gpu
def test_what_does_not_fit_is_refused():
    a, b, _ = matrices(3, 4, 5)
    for wrong in [(a, a), (a, b.astype(np.float64)), (a, b[0]), (a[:0], b)]:
        with pytest.raises(ValueError, match="no product of"):
            matmul_ladder.matmul("naive", *wrong)


@pytest.mark.gpu
def test_cublas_multiplies_in_each_precision():
    a, b, wanted = matrices(64, 100, 72)
    for precision, error in ERRORS.items():
        call, c = matmul_ladder.cublas(precision, a, b)
        call()
        off = np.linalg.norm(c.get() - wanted) / np.linalg.norm(wanted)
        assert off < error
        assert precision == "float32" or off > 1e-5  # it did round


@pytest.mark.gpu
def test_the_record_has_what_the_chapter_reads(tmp_path):
    saved = []
    record = matmul_ladder.measure(save=saved.append, progress=lambda what: None, plan=QUICK)
    assert len(saved) == len(record["runs"])
    kinds = {"resources", "peak", "copy", "product", "loop", "fused", "transpose"}
    assert {run["kind"] for run in record["runs"]} - {"loop"} == kinds - {"loop"}  # that, only where Numba is
    again = results.load(results.save(record, folder=tmp_path))
    assert matmul_ladder.share(again, "naive", 64, 64, 64) > 0
    assert "of cuBLAS" in matmul_ladder.table(again)
    assert all(run["spilled_bytes"] == 0 for run in results.runs(again, kind="resources"))
