"""Products of bytes on the GPU are those of NumPy, bit for bit: on the emulator, and on a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("cupy")

import emulator
from emulator import needs_compiler
from shared import one_sentence, sweep

from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.engines import BASELINE
from mlpkit.executors.cuda import integers
from mlpkit.kernels import gpu, overlap
from mlpkit.kernels.conv import blocked
from mlpkit.kernels.int8 import conv, dense, filters_in_pieces, in_order, in_pieces
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.fused import operations
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5, RESIDUAL, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.quantize import quantize, requantize
from mlpkit.nn.residual import Residual

SMALL = {
    "rows": mlp(37, 70, 19, 5),
    "pixels": Model((1, 6, 5), (Flatten(), Linear(9), ReLU(), Linear(4))),
    "lenet": Model((1, 12, 12), (
        Conv(6, 5, padding=2), ReLU(), MaxPool(2), Conv(16, 3), ReLU(), MaxPool(2), Flatten(), Linear(21), ReLU(),
        Linear(3),
    )),
    "colours": Model((3, 9, 8), (
        Conv(70, 3, stride=2, padding=1), ReLU(), Conv(5, 1, bias=False), Flatten(), ReLU(), Linear(4),
    )),
    "pooled": Model((2, 11, 11), (Conv(65, 4), MaxPool(2), ReLU(), Conv(7, 3, padding=2), Flatten(), Linear(3))),
    "residual": Model((1, 8, 8), (
        Conv(8, 3, padding=1), Residual((Conv(8, 3, padding=1), ReLU(), Conv(8, 3, padding=1))), ReLU(),
        MaxPool(2), Residual((Conv(9, 3, 2, 1),), (Conv(9, 1, 2),)), Flatten(), Linear(3),
    )),
    "images out": Model((1, 6, 6), (Conv(20, 3), ReLU(), Conv(2, 3, padding=1))),
    "alone": Model((5, 7, 9), (Conv(33, 2), MaxPool(2))),
}  # fmt: skip
SMALL["alone"] = Model((5, 7, 9), (*SMALL["alone"].layers, Residual((Conv(33, 1),)), Conv(3, 2)))
MIXED = Model((1, 14, 13), (
    Conv(40, 3), MaxPool(2), ReLU(), Conv(100, 3, padding=1), ReLU(), Conv(130, 3), Flatten(), Linear(3),
))  # fmt: skip
TILINGS = [conv.Tiling(*map(int, each)) for each in ("4421", "4171", "2232", "1321", "4153", "1426")]


def network_of(model, engine=BASELINE):
    network = Network(engine, model, seed=1)
    rng = np.random.default_rng(0)
    theta = network.engine.to_numpy(network.theta)
    network.set_theta(theta + rng.normal(0, 0.1, len(theta)).astype("f4"))
    return network


def inputs_of(model, n, dtype=np.uint8):
    pixels = np.random.default_rng(2).integers(0, 256, (n, *model.input)).astype(np.uint8)
    return pixels if dtype == np.uint8 else (pixels / np.float32(128) - 1).astype("f4")


@pytest.fixture
def cupy(folder, monkeypatch):
    """Put NumPy in the place of CuPy, and the emulator in that of a GPU of four multiprocessors."""
    with emulator.with_blocked(folder) as found:
        monkeypatch.setattr(overlap, "is_possible", lambda: False)
        monkeypatch.setattr(gpu, "_device", lambda: found.cuda.Device())
        monkeypatch.setattr(gpu, "is_restricted", lambda: False)
        monkeypatch.setattr(integers, "cp", found)
        yield found


def predicted(model, n, dtype, cupy, tiling=None):
    """Return the outputs of n examples, and those of `Quantized`."""
    x = inputs_of(model, n, dtype)
    quantized = quantize(network_of(model), inputs_of(model, 50, dtype))
    runs = integers.Integers(quantized, n)
    for block in runs.blocks:
        if tiling and isinstance(block, conv.Conv):
            block.tiling = tiling
    z = cupy.empty((n, *model.output), np.float32)
    runs(cupy.asarray(x), z)
    return np.asarray(z), quantized(x)


@needs_compiler
@pytest.mark.parametrize("name", sweep(SMALL, "rows", "lenet", "colours", "residual"))
@pytest.mark.parametrize("dtype", sweep([np.uint8, np.float32], np.uint8))
def test_a_network_has_the_bits_of_numpy(name, dtype, cupy):
    found, wanted = predicted(SMALL[name], 5, dtype, cupy)
    assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 4


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("model", "n"), [(FASHION_CNN, 1), (FASHION_CNN, 13), (LENET5, 9)])
def test_the_workbooks_networks_have_the_bits_of_numpy(model, n, cupy):
    found, wanted = predicted(model, n, np.uint8, cupy)
    assert_array_equal(found, wanted)


@needs_compiler
@pytest.mark.parametrize("tiling", sweep(TILINGS, TILINGS[2]))
def test_every_tiling_gives_the_same(tiling, cupy):
    found, wanted = predicted(MIXED, 7, np.uint8, cupy, tiling)
    assert_array_equal(found, wanted)


def test_a_lane_has_the_weights_of_its_units_and_inputs():
    W = np.random.default_rng(0).integers(-127, 128, (40, 3, 16)).astype(np.int8)
    found = in_order(W)
    assert found.shape == (8, 2, 32, 16)
    for unit, k in ((0, 0), (5, 19), (39, 47), (22, 31)):
        of_32, tile, half, lane = unit // 32, unit // 2 % 2, unit % 2, unit % 32 // 4 * 4 + k % 16 // 4
        word = k // 16 % 2 * 2 + half
        assert found[2 * of_32 + tile, k // 32, lane, 4 * word + k % 4] == W[unit, k // 16, k % 16]
    assert not found[4:].any()


def test_weights_lie_as_blocked_images_do():
    W = np.arange(2 * 20 * 6).reshape(2, 120).astype(np.int16)  # of images (20, 2, 3)
    found = in_pieces(W, 6)
    assert found.shape == (2, 12, 16)
    assert_array_equal(found[1, 6 + 4, :4], W[1].reshape(20, 6)[16:, 4])
    filters = np.arange(2 * 20 * 9).reshape(2, 20, 3, 3)
    assert_array_equal(filters_in_pieces(filters)[1, 2 * 5 + 1, :4], filters[1, 16:, 1, 2])


@pytest.mark.parametrize("shared", [64, 99, 227])
def test_a_tiling_that_is_found_fits(shared, monkeypatch):
    monkeypatch.setattr(gpu, "shared_memory", lambda: shared << 10)
    monkeypatch.setattr(blocked, "multiprocessors", lambda: 132)
    first, second = quantize(network_of(LENET5), inputs_of(LENET5, 50)).operations[:2]
    for stem, each in ((None, first), (first, second)):
        for n in (1, 64, 1000, 4096):
            tiling = conv.tilings(each, stem, n)[0]
            assert conv.shared(each, stem, tiling) <= shared << 10
            assert tiling.threads <= (384 if tiling.pairs > 4 else 512 if tiling.pairs > 2 else 768)
    monkeypatch.setattr(gpu, "shared_memory", lambda: 4 << 10)
    one_sentence(ValueError(f"{conv.why_not(second, first, 1)}."), "shared memory")


def test_few_images_have_many_warps_and_many_images_have_teams(monkeypatch):
    monkeypatch.setattr(gpu, "shared_memory", lambda: 227 << 10)
    monkeypatch.setattr(blocked, "multiprocessors", lambda: 132)
    first, second = (SimpleNamespace(of=each) for each in operations(network_of(FASHION_CNN))[:2])
    found = {n: conv.tilings(second, first, n)[0] for n in (1, 33, 34, 64, 132, 264, 4096)}
    assert found[1] == found[33] == conv.Tiling(1, 16, 1, 1)  # a block has a quarter of an image's channels
    assert found[34] == found[64] == found[132] == conv.Tiling(4, 4, 2, 1)
    assert (found[264].teams, found[4096]) == (2, conv.Tiling(4, 1, 7, 3))
    first, second = (SimpleNamespace(of=each) for each in operations(network_of(LENET5))[:2])
    # of eight images for each multiprocessor four teams have two each; six would have as long to wait for the last two
    assert [conv.tilings(second, first, n)[0].teams for n in (1, 264, 1024, 4096)] == [1, 2, 4, 6]


def test_units_lead_on_sums_as_requantize_does():
    layers = quantize(network_of(SMALL["rows"]), inputs_of(SMALL["rows"], 50)).operations
    sums = np.random.default_rng(0).integers(-(2**20), 2**20, (1000, 70))
    first, last = layers[0], layers[-1]
    units = dense.units_of(first).view(dense.UNIT)
    found = np.clip((sums * units["multiplier"] + units["more"]) >> first.shift, first.low, 255)
    multiplier, zero = first.multiplier.astype(np.int64), first.y.zero_point
    assert_array_equal(found, requantize(sums + first.bias, multiplier, first.shift, zero, first.low))
    outputs = dense.units_of(last).view(dense.UNIT)
    assert_array_equal(outputs["more"], last.bias)
    assert_array_equal(outputs["scale"], last.scale.astype("f4"))


REFUSED = {
    "windows of 2 x 2": (Conv(3, 3), MaxPool(3), ReLU(), Conv(2, 2)),
    "is a row": (Flatten(), ReLU(), Linear(2)),
    "is not at the end": (Flatten(), Linear(7), Residual((Linear(7),)), Linear(2)),
}


@needs_compiler
@pytest.mark.parametrize("words", REFUSED)
def test_what_no_kernel_does_is_refused_in_a_sentence(words, cupy):
    model = Model((1, 8, 8), REFUSED[words])
    quantized = quantize(network_of(model), inputs_of(model, 50))
    with pytest.raises(ValueError, match="numba_conv") as caught:
        integers.Integers(quantized, 5)
    one_sentence(caught.value, words)


@needs_compiler
def test_more_bytes_than_are_counted_are_refused(cupy):
    quantized = quantize(network_of(SMALL["residual"]), inputs_of(SMALL["residual"], 50))
    with pytest.raises(ValueError, match="32 bits") as caught:
        integers.Integers(quantized, 10**7)
    one_sentence(caught.value)


FEW, MANY = {"WARPS_M": 1, "WARPS_N": 16, "PAIRS": 1, "TEAMS": 1}, {"WARPS_M": 4, "WARPS_N": 1, "PAIRS": 7, "TEAMS": 3}


@pytest.mark.parametrize("arch", sweep(["sm_75", "sm_80", "sm_90"], "sm_90"))
@pytest.mark.parametrize("tiling", [FEW, MANY], ids=["few", "many"])
def test_sums_stay_in_registers(arch, tiling):
    try:
        kernels.ptxas()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = ptxas.resources("int8_conv", arch, STEM=1, **tiling)["convolve"]
    assert found.spilled_bytes <= (16 if arch == "sm_75" else 0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*SMALL, "mixed", "residual network", "lenet5"])
def test_on_a_gpu_a_network_has_the_bits_of_numpy(name):
    model = {**SMALL, "mixed": MIXED, "residual network": RESIDUAL, "lenet5": LENET5}[name]
    quantized = quantize(network_of(model), inputs_of(model, 50))
    network = network_of(model, "cuda_int8")
    for n in (1, 7, 300):
        for dtype in (np.uint8, np.float32):
            x = inputs_of(model, n, dtype)
            predict, wanted = network.compiled(n, calibration=quantized), quantized(x)
            assert_array_equal(predict(x), wanted)
            assert_array_equal(network.engine.to_numpy(predict(network.engine.asarray(x))), wanted)
            assert_array_equal(predict(x[: n // 2 + 1]), wanted[: n // 2 + 1])


@pytest.mark.gpu
def test_integers_are_not_asked_for_by_other_precisions():
    model, x = SMALL["lenet"], inputs_of(SMALL["lenet"], 9)
    network = network_of(model, "cuda_int8")
    with pytest.raises(TypeError, match="calibration"):
        network.compiled(9)
    found = network.compiled(9, precision="float32")(x)
    assert abs(found - network_of(model).forward(network_of(model).as_input(x))).max() < 1e-3
    with pytest.raises(ValueError, match="cuda_int8"):
        network_of(model, "cuda_conv_graph").compiled(9, precision="int8", calibration=x)
