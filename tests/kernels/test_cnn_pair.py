"""Two convolutions in one kernel: what it is for; on a GPU, that they are what the two are one by one."""

import numpy as np
import pytest
from conv_cases import error
from shared import needs_hopper, one_sentence

from experiments.lab import ptxas
from mlpkit.engines import numpy_baseline
from mlpkit.kernels.cnn import between, pair
from mlpkit.kernels.conv import Shape, blocked

# Images, filters of the first and of the second convolution, their edges, the padding of the first, its pool, the ReLUs
CASES = {
    "fashion": (5, (1, 28, 28), 64, 128, 3, 3, 0, 2, True),
    "many": (300, (1, 28, 28), 64, 128, 3, 3, 0, 2, True),
    "lenet": (7, (1, 28, 28), 6, 16, 5, 5, 2, 2, True),
    "small": (3, (2, 12, 9), 30, 70, 3, 2, 1, 1, False),
    "one": (1, (1, 10, 14), 64, 20, 3, 3, 1, 2, True),
}


def layers_of(case):
    """Return two pairs (shape, what follows)."""
    n, image, filters, more, edge, second_edge, padding, pool, relu = case
    one = blocked.cropped(Shape(n, image[0], filters, *image[1:], edge, padding=padding), pool)
    pooled = between.Pooled(n, filters, one.out_height, one.out_width, pool, relu)
    two = blocked.cropped(Shape(n, filters, more, pooled.down, pooled.across, second_edge), 2)
    return (one, pooled), (two, between.Pooled(n, more, two.out_height, two.out_width, 2, relu))


def one_by_one(x, layers, numbers):
    """Return what float64 makes of x, rounded between the two as the kernel rounds."""
    for (shape, about), (W, b) in zip(layers, numbers, strict=True):
        z = numpy_baseline.conv(x, rounded(W).astype(float), b.astype(float), 1, shape.padding)
        z = z[:, :, : about.height, : about.width]
        z = z.reshape(*z.shape[:2], about.down, about.pool, about.across, about.pool).max((3, 5))
        x = rounded(np.maximum(z, 0) if about.relu else z).astype(float)
    return x


def rounded(x):
    """Return numbers as bfloat16 has them, float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


@needs_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_they_are_what_two_convolutions_are(name):
    import cupy as cp

    layers, rng = layers_of(CASES[name]), np.random.default_rng(0)
    assert pair.why_not(*layers) is None
    numbers = [(rng.normal(size=s.w) / s.w[1] ** 0.5 / s.kernel, rng.normal(size=s.w[0])) for s, _ in layers]
    numbers = [(W.astype("f4"), b.astype("f4")) for W, b in numbers]
    on = [pair.Layer(*layer, *map(cp.asarray, each)) for layer, each in zip(layers, numbers, strict=True)]
    x = rounded(rng.normal(size=layers[0][0].x))
    wanted = one_by_one(x.astype(float), layers, numbers)
    most = -(-layers[1][1].groups // 8)
    for heights, stems in ((None, None), (1, 4), (min(2, most), 4)):
        made = pair.Pair(*on, False, heights=heights, stems=stems)
        for _ in range(3):
            y = cp.asnumpy(made(cp.asarray(x)))
            array = (y.astype(np.uint32) << 16).view(np.float32).transpose(0, 1, 4, 2, 3)
            found = array.reshape(len(y), -1, *y.shape[2:4])
            assert error(found[:, : wanted.shape[1]], wanted) < 4e-3
            assert not found[:, wanted.shape[1] :].any() or layers[1][1].channels % 16 == 0


def test_what_it_is_not_for_is_said():
    n, _, *rest = CASES["fashion"]
    first, second = layers_of(CASES["fashion"])
    assert pair.why_not(first, second) is None
    two, about = second
    refused = (
        (layers_of((n, (5, 28, 28), *rest))[0], second),
        (first, (Shape(n, 64, 128, 13, 13, 3, padding=1), about)),
        (first, (Shape(n, 64, 128, 12, 13, 3), about)),
        (first, (two, between.Pooled(n, 128, 10, 10, 1))),
        layers_of((n, (1, 28, 28), 80, *rest[1:])),
        layers_of((n, (1, 60, 60), *rest)),
        layers_of((n, (1, 28, 28), 64, 128, 3, 5, 0, 2, True)),
    )
    for given in refused:
        one_sentence(pair.why_not(*given))


def test_nothing_is_spilled():
    pytest.importorskip("cupy")
    sizes = {"MODE": 0, "CHUNK": 64, "TALL_Z": 10, "WIDE_Z": 10, "IMAGE_HEIGHT": 28, "IMAGE_WIDTH": 28}
    sizes |= {"FIRST_TALL": 26, "FIRST_WIDE": 26, "FIRST_PITCH": 14, "WIDTH": 144}
    for heights, stems in ((1, 8), (2, 4)):
        found = ptxas.resources("conv_pair", **sizes, HEIGHTS=heights, STEMS=stems)["convolve"]
        assert found.spilled_bytes == 0
