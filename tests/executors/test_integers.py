"""Predictions in integers have the same bits with every instruction, and those of NumPy."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import one_sentence, sweep

from mlpkit import engines
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.models import mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.quantize import quantize
from mlpkit.nn.residual import Residual

DIRECT = pytest.importorskip("mlpkit.executors.direct", reason="Numba is missing")
MODELS = {
    "rows": mlp(37, 70, 19, 5),
    "lenet": Model((1, 12, 12), (
        Conv(6, 5, padding=2), ReLU(), MaxPool(2), Conv(16, 3), ReLU(), MaxPool(2), Flatten(), Linear(21), ReLU(),
        Linear(3),
    )),
    "colours": Model((3, 9, 8), (
        Conv(70, 3, stride=2, padding=1), BatchNorm(), ReLU(), Conv(5, 1, bias=False), Dropout(0.5), Flatten(), ReLU(),
        Linear(4),
    )),
    "pooled": Model((2, 11, 11), (Conv(65, 4), MaxPool(2), ReLU(), Conv(7, 3, padding=2), Flatten(), Linear(3))),
    "residual": Model((1, 8, 8), (
        Conv(8, 3, padding=1), Residual((Conv(8, 3, padding=1), BatchNorm(), ReLU(), Conv(8, 3, padding=1))), ReLU(),
        MaxPool(2), Residual((Conv(9, 3, 2, 1),), (Conv(9, 1, 2),)), Flatten(), Linear(3),
    )),
    "images out": Model((1, 6, 6), (Conv(20, 3), ReLU(), Conv(2, 3, padding=1))),
}  # fmt: skip
VARIANTS = {  # what Numba compiles for, by the instructions that are wanted
    "vnni": {},
    "maddubs": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+sse4.2,+ssse3"},
    "usdot": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+dotprod,+i8mm"},
    "sdot": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+dotprod"},
    "plain": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
}
HAS = {"vnni": "avx512vnni", "maddubs": "avx2"}
ARMS = {"cortex-a72": "plain", "cortex-a76": "sdot", "apple-m1": "sdot", "apple-m2": "usdot", "neoverse-v1": "usdot"}
TOO = {"usdot": ("usdot",), "sdot": ("usdot", "sdot")}  # the ways of processors that have an instruction of ARM's
ASK = """
import sys
import numpy as np
sys.path[:0] = sys.argv[2:]
import test_integers as t
from mlpkit.engines.loops import dot
found = {name: t.predicted(name) for name in t.MODELS}
np.savez(sys.argv[1], way=dot.way(), **found)
"""


def network_of(name, engine="numba_conv", dtype=np.float32):
    network = Network(engine, MODELS[name], seed=1, dtype=dtype)
    rng = np.random.default_rng(0)
    network.set_theta(network.theta + rng.normal(0, 0.1, len(network.theta)).astype(dtype))
    network.set_statistics(rng.uniform(0.5, 2, len(network.statistics)))
    return network


def rows(name, n=21):
    return np.random.default_rng(1).normal(size=(n, *MODELS[name].input)).astype(np.float32)


@cache
def integers_of(name):
    """Return a network in integers. The ranges are one engine's: others' floats differ in the last bit."""
    return quantize(network_of(name, engines.BASELINE), rows(name))


def predicted(name):
    return network_of(name).compiled(21, precision="int8", calibration=integers_of(name))(rows(name))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [1, 2, 21])
def test_integers_are_numpys_to_the_bit(name, n):
    x, options = rows(name), {"precision": "int8", "calibration": integers_of(name)}
    wanted = network_of(name, engines.BASELINE).compiled(n, **options)(x[:n])
    found = network_of(name).compiled(n, **options)
    assert_array_equal(found(x[:n]), wanted)
    assert_array_equal(found(x[:1]), wanted[:1])  # fewer rows than there is place for
    assert_array_equal(found(x[:n]), wanted)


@pytest.mark.parametrize("way", sweep(VARIANTS, "vnni", "plain"))
def test_every_instruction_adds_the_same_integers(way, tmp_path):
    import llvmlite.binding

    if way in HAS and not llvmlite.binding.get_host_cpu_features().get(HAS[way]):
        pytest.skip(f"this processor has no {HAS[way]}")
    if DIRECT.way() not in TOO.get(way, (DIRECT.way(),)):
        pytest.skip(f"this processor has no {way}")
    env = {**os.environ, **VARIANTS[way], "NUMBA_NUM_THREADS": "1"}
    here = Path(__file__).parent
    command = [sys.executable, "-c", ASK, str(tmp_path / "found.npz"), str(here), str(here.parent)]
    subprocess.run(command, env=env, check=True)
    with np.load(tmp_path / "found.npz") as found:
        assert found["way"] == way
        for name in MODELS:
            assert_array_equal(found[name], integers_of(name)(rows(name)))


@pytest.mark.parametrize(("processor", "way"), ARMS.items())
def test_each_processor_of_arm_gets_an_instruction_that_it_has(processor, way, monkeypatch):
    """Compiled here for there: a step of a dot product becomes the one instruction, and LLVM knows that it is one."""
    from llvmlite import binding, ir
    from numba import types
    from numba.core.registry import cpu_target

    from mlpkit.engines.loops import dot, simd

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = "arm64-apple-darwin" if processor.startswith("apple") else "aarch64-unknown-linux-gnu"
    assert dot.neon(machine, processor, "") == way
    for room, name, value in (simd, "BYTES", 16), (dot, "BYTES", 16), (dot, "LANES", 4), (dot, "way", lambda: way):
        monkeypatch.setattr(room, name, value)
    vector, module = ir.VectorType(ir.IntType(32), 4), ir.Module()
    step = ir.Function(module, ir.FunctionType(vector, [vector] * 3), "step")
    builder = ir.IRBuilder(step.append_basic_block())
    total, *factors = step.args
    builder.ret(dot.Bytes(simd.Writer(cpu_target.target_context, builder, types.int32)).step(total, factors))
    target = binding.Target.from_triple(machine).create_target_machine(cpu=processor)
    code = target.emit_assembly(binding.parse_assembly(str(module)))
    assert re.findall(r"\t(u?sdot)", code) == [way] * (way != "plain")


def test_where_inputs_have_a_sign_the_bias_has_128_times_the_weights_more(monkeypatch):
    integers = integers_of("lenet")

    def biases(offset):
        monkeypatch.setattr(DIRECT, "offset", lambda: offset)
        plan = DIRECT.Plan(integers.operations, MODELS["lenet"].input, 1, integers.tensors)
        starts = [DIRECT.direct.Products(*step).begin for step in plan.steps]
        return [plan.vectors[0][start:].view(np.int32) for start in starts]

    for each, more, as_it_is in zip(integers.operations, biases(128), biases(0), strict=True):
        units = len(each.W)
        sums = each.W.reshape(units, -1).sum(axis=1, dtype=np.int32)
        assert sums.any()
        assert_array_equal(as_it_is[:units], each.bias)
        assert_array_equal(more[:units], each.bias + 128 * sums)


def test_two_steps_whose_sums_are_added_in_16_bits_fit_whatever_comes():
    packed = np.random.default_rng(0).normal(0, 15, (3, 200, 8, 4)).clip(-127, 127).astype(np.int8)
    packed[0, ::2, 0, :2], packed[2, ::3, 7, 2:] = (127, 1), (-64, -64)  # the largest that are allowed
    orders, count = DIRECT.by_two(packed)
    assert count > 50
    for block, order in zip(packed.astype(int), orders, strict=True):
        assert sorted(order) == list(range(200))
        two = block[order[: 2 * count]].reshape(count, 2, 8, 2, 2)
        assert 255 * two.clip(min=0).sum(axis=(1, 4)).max() < 2**15
        assert 255 * two.clip(max=0).sum(axis=(1, 4)).min() >= -(2**15)


def test_a_step_with_one_partner_is_not_left_alone():
    packed = np.zeros((1, 4, 8, 4), np.int8)
    for lane, (one, other) in enumerate([(0, 2), (0, 3), (1, 3)]):  # do not fit: left are 0 and 1, 1 and 2, 2 and 3
        packed[0, [one, other], lane, 0] = 70
    packed[0, [1, 2], [6, 7], 0] = 127  # those with two partners are the heaviest
    orders, count = DIRECT.by_two(packed)
    assert count == 2
    assert {frozenset(orders[0, :2]), frozenset(orders[0, 2:])} == {frozenset((0, 1)), frozenset((2, 3))}


@pytest.mark.parametrize("name", ["rows", "lenet"])
def test_a_register_of_weights_lies_in_one_line_of_the_cache(name):
    plan = network_of(name).compiled(1, precision="int8", calibration=integers_of(name)).plan
    step = DIRECT.direct.Products(*plan.steps[0])
    assert (plan.vectors[0].ctypes.data + step.weights) % DIRECT.BYTES == 0
    assert step.block % DIRECT.BYTES == 0


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [1, 21])
def test_float32_in_one_call_is_the_network(name, n):
    network, x = network_of(name), rows(name)
    assert_allclose(network.compiled(n)(x[:n]), network.forward(x[:n]), rtol=1e-4, atol=1e-4)


CONCATS = {  # what their chains make, and whether it is one call
    "detector": ((Conv(48, 3, padding=1), ReLU(), Concat(
        (Conv(5, 1), Flatten()), (Conv(70, 3, 2, 1), BatchNorm(), ReLU(), Conv(7, 3), Flatten())
    )), True),
    "images": ((Conv(3, 3), Concat((Conv(4, 3), ReLU()), (MaxPool(3, 1), Conv(20, 1)))), True),
    "channels": ((Concat((Conv(4, 3),), (Conv(33, 3), ReLU())),), True),
    "and what it sees": ((Conv(3, 1), ReLU(), Concat((Conv(4, 1),), ())), True),
    "with a margin": ((Conv(3, 1), ReLU(), Concat((Conv(4, 3, padding=1),), ())), False),
    "rows": ((Conv(3, 3), Flatten(), Concat((Linear(4),), (Linear(5), ReLU(), Linear(2)))), False),
    "in the middle": ((Concat((Conv(4, 3),), (Conv(3, 3),)), Conv(2, 3)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CONCATS)
@pytest.mark.parametrize("n", [1, 21])
def test_float32_in_one_call_puts_together_what_chains_make(name, n):
    layers, direct = CONCATS[name]
    network, exact = (Network(engine, Model((2, 9, 8), layers), seed=1) for engine in ("numba_conv", engines.BASELINE))
    x, compiled = np.random.default_rng(1).normal(size=(n, 2, 9, 8)).astype(np.float32), network.compiled(n)
    assert isinstance(compiled, DIRECT.Prediction) == direct
    for rows in (n, 1, n):
        assert_allclose(compiled(x[:rows]), exact.forward(x[:rows]), rtol=1e-4, atol=1e-5)
    found = compiled(x)
    kept = found.copy()
    compiled(2 * x)
    assert_array_equal(found, kept)  # nobody else's buffer


def test_a_concat_in_integers_is_refused():
    network = Network("numba_conv", Model((2, 9, 8), CONCATS["detector"][0]))
    with pytest.raises(ValueError, match="Concat") as caught:
        network.compiled(2, precision="int8", calibration=np.ones((2, 2, 9, 8), np.float32))
    one_sentence(caught.value)


@pytest.mark.parametrize("channels", [17, 33, 48, 64, 70])
def test_blocks_of_one_register_or_two_have_the_same_bits(channels):
    model = Model((3, 9, 8), (Conv(channels, 3, padding=1, bias=False),))
    network = Network("numba_conv", model, seed=1)
    x = np.random.default_rng(1).normal(size=(5, 3, 9, 8)).astype(np.float32)
    found, one = network.compiled(5)(x), Network("numba_conv", Model((3, 9, 8), (Conv(1, 3, padding=1, bias=False),)))
    for c in range(channels):
        one.layers[0].W[...] = network.layers[0].W[c : c + 1]
        assert_array_equal(one.compiled(5)(x)[:, 0], found[:, c])


def test_several_threads_share_a_batch_without_a_change(monkeypatch):
    if DIRECT.Threads.most < 2:
        pytest.skip("Numba has one thread here")
    monkeypatch.setattr(DIRECT, "ENOUGH", 0)
    monkeypatch.setattr(DIRECT, "ENOUGH_A_STEP", 0)
    for name in MODELS:
        assert_array_equal(predicted(name), integers_of(name)(rows(name)))


def test_pixels_are_as_good_as_their_values():
    network = network_of("lenet")
    pixels = np.random.default_rng(2).integers(256, size=(5, 1, 12, 12), dtype=np.uint8)
    found = network.compiled(5, precision="int8", calibration=pixels)
    assert_array_equal(found(pixels), found(pixels / np.float32(255)))
    batch = found.batch(np.uint8)
    batch.fill(pixels[:3])
    batch.replay()
    assert_array_equal(batch.z[:3], found(pixels[:3]))


def test_numba_int8_has_integers_without_being_asked():
    network, x = network_of("lenet", "numba_int8"), rows("lenet")
    assert_array_equal(network.compiled(21, calibration=integers_of("lenet"))(x), predicted("lenet"))
    assert_allclose(network.compiled(21, precision="float32")(x), network.forward(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("options", [{}, {"precision": "int8", "calibration": rows("lenet")}])
def test_nan_and_infinity_are_no_inputs(value, options):
    predict, x = network_of("lenet").compiled(2, **options), rows("lenet", 2)
    x[1, 0, -1, -1] = value
    with pytest.raises(ValueError, match="finite") as caught:
        predict(x)
    one_sentence(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"precision": "int4"}, ValueError, "precision"),
        ({"precision": "int8"}, TypeError, "calibration"),
        ({"calibration": rows("lenet")}, TypeError, "int8"),
        ({"precision": "int8", "calibration": rows("lenet")[:, :, 1:]}, ValueError, "shape"),
        ({"precision": "int8", "calibration": rows("lenet") * np.nan}, ValueError, "finite"),
        ({"precision": "int8", "calibration": integers_of("residual")}, ValueError, "another network's"),
    ],
)
@pytest.mark.parametrize("engine", [engines.BASELINE, "numba_conv"])
def test_what_makes_no_integers_is_refused(engine, options, error, said):
    with pytest.raises(error, match=said) as caught:
        network_of("lenet", engine).compiled(2, **options)
    one_sentence(caught.value)


@pytest.mark.parametrize(
    "layers",
    [
        (Conv(4, 3), LeakyReLU(), Flatten(), Linear(3)),
        (Conv(4, 3), AvgPool(2), Flatten(), Linear(3)),
        (Flatten(), Linear(3), ReLU()),
        (Flatten(),),
    ],
)
def test_a_layer_without_integers_is_refused_and_stays_a_float(layers):
    network = Network("numba_conv", Model((1, 6, 6), layers))
    x = np.ones((2, 1, 6, 6), np.float32)
    with pytest.raises(ValueError, match=r"layer|Linear") as caught:
        network.compiled(2, precision="int8", calibration=x)
    one_sentence(caught.value)
    assert_allclose(network.compiled(2)(x), network.forward(x), rtol=1e-5, atol=1e-5)
