"""Convolutions by `mma.sync`, for any chip since Turing: on an emulator and on a GPU, held to layers one by one."""

import emulator
import numpy as np
import pytest
from conv_cases import PASSES, SHAPES, check_on_gpu, random_shape
from emulator import needs_compiler

from experiments.conv_ladder.rungs.blocked import PORTABLE
from mlpkit.kernels import gpu
from mlpkit.kernels.cnn import between
from mlpkit.kernels.conv import Shape, blocked, portable
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import ReLU

MORE = [random_shape(np.random.default_rng(seed)) for seed in range(100, 112)]
SMALL = (
    ((9, 6, 5), 3, (Conv(10, 3, padding=1), ReLU()), "fp16x3", "nc8hw8"),
    ((20, 7, 8), 2, (Conv(9, 3), MaxPool(2), ReLU()), "fp16x3", "nchw"),
    ((17, 9, 6), 2, (Conv(12, 3, stride=2, padding=1, bias=False),), "bf16", "stored"),
)


@pytest.fixture
def cupy(folder, monkeypatch):
    monkeypatch.setattr(gpu, "shared_memory", lambda: 48 << 10)
    with emulator.with_blocked(folder, between, blocked, portable) as found:
        for cached in (portable.tilings, portable.divisions, portable._launches, portable._weights, blocked.launches):
            cached.cache_clear()
        yield found


@needs_compiler
@pytest.mark.parametrize(("shape", "n", "layers", "mode", "gives"), SMALL, ids=str)
def test_a_block_does_what_its_layers_do(cupy, shape, n, layers, mode, gives):
    from test_conv_blocks import check

    check(cupy, (shape, n, layers), portable.MODES[mode], True, "nchw", gives)


@pytest.mark.parametrize("mode", portable.MODES.values(), ids=portable.MODES)
@pytest.mark.parametrize("kib", [64, 99, 163])
@pytest.mark.parametrize(
    "shape", [*SHAPES, Shape(128, 64, 128, 13, 13, 3), Shape(16, 64, 64, 28, 28, 3, padding=1)], ids=str
)
def test_what_is_chosen_fits_and_covers_all(mode, kib, shape, monkeypatch):
    monkeypatch.setattr(gpu, "shared_memory", lambda: kib << 10)
    monkeypatch.setattr(blocked, "multiprocessors", lambda: 40)
    portable.tilings.cache_clear(), portable.divisions.cache_clear()
    for which in ("forward", "input_gradient"):
        for conv, _, _ in blocked.convolutions(shape, which):
            found = portable.tilings(conv, mode)
            assert found
            for tiling in found:
                assert tiling.shared(conv, mode) <= kib << 10
                windows = tiling.together * tiling.bands_rows * conv.windows[1]
                assert windows <= 16 * tiling.rows * tiling.warps_m
                assert tiling.bands(conv) * tiling.bands_rows >= conv.windows[0]
                assert tiling.together == 1 or tiling.bands(conv) == 1
    conv = blocked.convolutions(shape, "forward")[0][0]
    for division in portable.divisions(conv, mode):
        assert division.shared(conv, mode) <= kib << 10
    assert portable.why_not(shape, "weight_gradient", mode) is None
    portable.tilings.cache_clear(), portable.divisions.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", [*SHAPES, *MORE], ids=str)
@pytest.mark.parametrize("name", PORTABLE)
def test_passes_are_the_baselines_on_a_gpu(name, shape, which):
    if name == "portable_bf16" and gpu.capability() < 80:
        pytest.skip("Turing has no bfloat16")
    check_on_gpu(PORTABLE[name], shape, which)
