"""Numbers become integers and come back, a layer's sums are exact, and no pair of weights is too large for 16 bits."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence

from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.quantize import (
    CALIBRATIONS,
    affine,
    fixed_point,
    in_memory,
    made_up_for,
    mean_squared_error,
    percentile,
    quantize,
    requantize,
    rounded,
    symmetric,
)

MODEL = Model((2, 7, 7), (Conv(5, 3), ReLU(), Flatten(), Linear(9), ReLU(), Linear(3)))


def rows(n=50):
    return np.random.default_rng(1).normal(size=(n, *MODEL.input)).astype(np.float32)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 2), (0, 1), (0.5, 2), (-3, -1), (0, 0), (-1e-30, 1e30), (0, 1e-38)])
def test_a_number_comes_back_within_half_a_step(low, high):
    quantization = affine(low, high)
    values = np.linspace(min(low, 0), max(high, 0), 1001, dtype=np.float32)
    back = quantization.dequantize(quantization.quantize(values))
    assert abs(back - values).max() <= 1.01 * quantization.scale  # half a step, and half for the zero between
    assert quantization.dequantize(quantization.quantize(np.zeros(1, np.float32))) == 0


def test_what_is_out_of_range_is_cut_off():
    assert_array_equal(affine(-1, 1).quantize(np.array([-9, 9, -1e30, 1e30], np.float32)), [0, 255, 0, 255])


@pytest.mark.parametrize("shape", [(7, 40), (7, 3, 5, 5), (7, 1, 3, 3)])
def test_rounding_that_is_made_up_for_is_nearer_in_sums_and_saturates_nothing(shape):
    rng = np.random.default_rng(0)
    W = rng.normal(size=shape)
    W[1], W[2] = abs(W).max(), 0
    windows = np.repeat(rng.normal(size=(300, 1)), W[0].size, axis=1) + 0.2 * rng.normal(size=(300, W[0].size))
    q, scale = symmetric(W)
    better = made_up_for(W, scale, windows)
    off = [
        np.square((each.reshape(7, -1) * scale[:, None] - W.reshape(7, -1)) @ windows.T).mean() for each in (q, better)
    ]
    assert off[1] < off[0] / 3
    pairs = np.pad(in_memory(better), ((0, 0), (0, 0), (0, better.shape[-1] % 2))).astype(int).reshape(-1, 2)
    assert max(pairs.clip(min=0).sum(axis=1).max(), (-pairs).clip(min=0).sum(axis=1).max()) <= 128
    assert_array_equal(made_up_for(q * scale.reshape(-1, *[1] * (W.ndim - 1)), scale, windows), q)  # nothing is off
    assert_array_equal(made_up_for(W * 0, scale, windows * 0), q * 0)


def test_channels_of_small_values_have_shorter_steps():
    network = Network("numpy_baseline", MODEL, seed=1)
    network.views(network.theta)["0.W"][1] *= 0.01  # a channel of small values, which nobody would hear
    network.views(network.theta)["0.b"][1] *= 0.01
    x = rows()
    integers, kept = quantize(network, x), network.forward(x, keep=("1",))[1]["1"]
    tensor = integers.tensors["1"]
    assert tensor.channels[1] < 0.4 * tensor.channels.max()
    off = abs(tensor.dequantize(integers(x, keep=True)["1"]) - kept).max(axis=(0, 2, 3))
    assert off[1] < tensor.scale / 2
    assert all(each == 1 for each in np.ravel(quantize(network, x, bits=4).tensors["1"].channels))


@pytest.mark.parametrize("shape", [(7, 40), (7, 3, 5, 5), (7, 1, 3, 3)])
def test_no_pair_of_weights_can_saturate_16_bits(shape):
    W = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    W[1] = abs(W).max()  # all are as large as can be, of one sign
    W[2] = 0
    q, scale = symmetric(W)
    assert_allclose(q * scale.reshape(-1, *[1] * (W.ndim - 1)), W, atol=0.51 * scale.max())
    rows = np.pad(in_memory(q), ((0, 0), (0, 0), (0, 1))).astype(int)
    pairs = rows[..., 0:-1:2], rows[..., 1::2]
    for sign in (1, -1):
        assert (255 * sum((sign * each).clip(min=0) for each in pairs)).max() <= 32767
    assert abs(q).max() <= 127


def test_a_flattened_image_lies_channels_last():
    W = np.arange(12).reshape(1, 12)  # of an image of 3 channels, 2 x 2
    assert_array_equal(in_memory(W, (3, 2, 2)).ravel(), W.reshape(3, 2, 2).transpose(1, 2, 0).ravel())


@pytest.mark.parametrize("factor", [1e-9, 0.0123, 0.5, 1, 3, 1e6])
def test_a_factor_is_a_multiplication_and_a_shift(factor):
    (multiplier,), shift = fixed_point([factor])
    assert math.isclose(multiplier / 2**shift, factor, rel_tol=1e-6 if factor > 1e-6 else 1e-2)
    total = np.arange(-(2**20), 2**20, 999)
    exact = np.floor(total * (int(multiplier) / 2**shift) + 0.5)
    assert_array_equal(requantize(total, multiplier, shift, 3, 2), (exact + 3).clip(2, 255))


def test_an_outlier_costs_min_max_more_than_the_others():
    values = np.append(np.random.default_rng(0).normal(size=99_999), 100).astype(np.float32)

    def error(choose):
        quantization = affine(*choose(values))
        return np.square(quantization.dequantize(quantization.quantize(values[:-1])) - values[:-1]).mean()

    errors = {name: error(choose) for name, choose in CALIBRATIONS.items()}
    assert errors["percentile"] < errors["min-max"] / 10
    assert errors["mean squared error"] < errors["min-max"]
    assert percentile(values)[1] < mean_squared_error(values)[1] < 100


@pytest.mark.parametrize("calibration", [*CALIBRATIONS, lambda values: (-4, values.max())])
def test_a_network_in_integers_is_near_to_itself(calibration):
    network, x = Network("numpy_baseline", MODEL), rows()
    integers, wanted = quantize(network, x, calibration), network.forward(x)
    kept = integers(x, keep=True)
    assert_allclose(integers(x), wanted, atol=0.05 * abs(wanted).max())
    assert kept.keys() == {"input", "1", "4", "5"}
    assert integers.tensors.keys() == {"input", "1", "4"}
    _, activations = network.forward(x, keep=["1"])
    back = integers.tensors["1"].dequantize(kept["1"])
    assert_allclose(back, activations["1"], atol=0.05 * activations["1"].max())


def test_fewer_bits_are_further_off():
    network, x = Network("numpy_baseline", MODEL), rows()
    errors = [abs(quantize(network, x, bits=bits)(x) - network.forward(x)).max() for bits in (2, 4, 8)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_rounded_weights_are_those_of_the_integers():
    model = Model((2, 7, 7), (Conv(5, 3, bias=False), BatchNorm(), ReLU(), Flatten(), Linear(3)))
    network, x = Network("numpy_baseline", model), rows()
    network.theta[:] = rounded(network, network.theta, bits=3)
    assert_array_equal(rounded(network, network.theta, bits=3), network.theta)
    W = network.views(network.theta)["0.W"]
    assert all(len(np.unique(each)) <= 7 for each in W)
    q = quantize(network, x, bits=3).operations[0]
    column = q.scale.reshape(-1, 1, 1, 1) / q.x[0].scale
    assert_allclose(q.W * column, W, rtol=1e-4, atol=1e-6)


def test_sums_beyond_32_bits_are_refused():
    network = Network("numpy_baseline", Model((1,), (Linear(1),)))
    network.theta[:] = 1e-30, 1e30
    with pytest.raises(ValueError, match="32 bits") as caught:
        quantize(network, np.ones((1, 1), np.float32))
    one_sentence(caught.value)


@pytest.mark.parametrize("bits", [1, 9])
def test_other_numbers_of_bits_are_refused(bits):
    network = Network("numpy_baseline", MODEL)
    for call in (lambda: quantize(network, rows(), bits=bits), lambda: rounded(network, network.theta, bits)):
        with pytest.raises(ValueError, match="bits") as caught:
            call()
        one_sentence(caught.value)


@pytest.mark.parametrize(
    "calibration", ["entropy", lambda values: (0, np.inf), lambda values: (np.nan, 1), lambda values: (1, -1)]
)
def test_what_is_no_calibration_is_refused(calibration):
    with pytest.raises(ValueError, match=r"calibration|finite") as caught:
        quantize(Network("numpy_baseline", MODEL), rows(), calibration)
    one_sentence(caught.value)
