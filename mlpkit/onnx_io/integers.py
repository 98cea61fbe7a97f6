"""A network in integers as an ONNX file: between QuantizeLinear and DequantizeLinear stands what it computes.

So the file reads as float32, with what integers lose; a library that knows the pattern, "QDQ", does it in integers
("Quantize ONNX Models" in ONNX Runtime's documentation). Sums are the same there, to the bit.
The way back to 8 bits is a float's, rounded half to even, where ours shifts: an integer may differ by one.
"""

from types import SimpleNamespace

import numpy as np

from mlpkit.files import write_atomically
from mlpkit.nn.conv import Conv

from .loading import need_onnx
from .writing import _Graph, _window


def write_integers(quantized, path, signed=False):
    """Write a `nn.quantize.Quantized` to the ONNX file `path`, atomically: "input" and "output" as `write` has them.

    signed: tensors are int8, each integer 128 less, and not uint8. Raises ImportError where the package onnx is
    missing, and OSError where the file can't be written.
    """
    network = SimpleNamespace(
        engine=SimpleNamespace(to_numpy=np.asarray), dtype=np.dtype(np.float32), model=SimpleNamespace(walk=())
    )
    graph, last = _Graph(need_onnx(), network), quantized.operations[-1]
    values = {"input": _there_and_back(graph, "input", "input", quantized.tensors["input"], signed)}
    for each in quantized.operations:
        made = _made(graph, each, [values[name] for name in each.of.inputs], signed)
        if each is not last:
            values[each.of.name] = _there_and_back(graph, made, each.of.name, each.y, signed)
    graph.add("Identity", "output", made)
    write_atomically(path, graph.whole(quantized.input, last.of.output).SerializeToString())


def _there_and_back(graph, value, name, quantization, signed):
    """Add the nodes that make integers of a value, and real numbers of them again; return the last one's name."""
    zero = np.array(quantization.zero_point - 128, np.int8) if signed else np.array(quantization.zero_point, np.uint8)
    own = {"scale": np.array(quantization.scale, np.float32), "zero": zero}
    return graph.add("DequantizeLinear", f"{name} back", graph.add("QuantizeLinear", f"{name} q", value, **own), **own)


def _constant(graph, name, integers, scale):
    """Add integers that stand for real numbers, a scale for each of axis 0; return the name of these numbers."""
    graph.constants.append(graph.onnx.numpy_helper.from_array(np.ascontiguousarray(integers), f"{name} q"))
    own = {"scale": np.asarray(scale, np.float32), "zero": np.zeros(len(integers), integers.dtype)}
    return graph.add("DequantizeLinear", name, f"{name} q", axis=0, **own)


def _made(graph, each, values, signed):
    """Add the nodes of an operation; return the name of what they make."""
    of, value = each.of, values[0]
    name, steps = f"{of.name} sum", list[tuple]()
    if each.W is None and len(values) == 2:
        value = graph.add("Add", name, *values)
    elif each.W is not None:
        if of.flat:
            value = graph.add("Flatten", f"{of.name} row", value, axis=1)
            value = _there_and_back(graph, value, f"{of.name} row", each.x[0], signed)  # else the pattern ends here
        W = each.W.reshape(len(each.W), -1).astype(np.int64)
        bias = (each.bias + each.x[0].zero_point * W.sum(axis=1)).astype(np.int32)
        weights = _constant(graph, f"{of.name} W", each.W, each.scale / each.x[0].scale)
        bias = _constant(graph, f"{of.name} b", bias, each.scale)
        one = of.layer
        how = _window(one.size, one.stride, one.padding) if isinstance(one, Conv) else {"transB": 1}
        value = graph.add("Conv" if isinstance(one, Conv) else "Gemm", name, value, weights, bias, **how)
    if of.relu:
        steps.append(("Relu", {}))
    if of.pool:
        steps.append(("MaxPool", _window(of.pool.size, of.pool.stride or of.pool.size)))
    for operator, how in steps:
        value = graph.add(operator, f"{of.name} {operator}", value, **how)
    return value
