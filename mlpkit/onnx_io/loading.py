"""An ONNX file taken apart. It may come from anywhere: nothing that it promises is allocated before it is there.

A tensor's shape is compared with its bytes, a file beside the model must lie beside it, and a value must be made before
it is used, by one node: so there is no cycle.
"""

import os
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mlpkit.paths import check_readable, expanded, place_of
from mlpkit.words import short

MOST_NODES = 5_000  # each takes a walk through the graph
OLDEST = 7  # of the versions of ONNX's operators: before it, a sum had its broadcasting in an attribute
TYPES = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "INT64", "BOOL")


@dataclass(frozen=True)
class Node:
    """An operator at work. inputs, outputs: names of values, "" for what is left out. number, proto: as in the file."""

    number: int
    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    proto: Any = field(repr=False)

    def __str__(self):
        return short(f"node {self.number}, {self.operator} {self.name!r}", 120)


@dataclass(frozen=True)
class Graph:
    """Nodes between one input (batch, *shape) of a dtype and one output; tensors: the constants, by name.

    shape, batch: None where a size is open. folder: of tensors in files of their own. version: of the operators.
    """

    nodes: list[Node]
    input: str
    batch: int | None
    shape: tuple[int | None, ...]
    dtype: np.dtype
    output: str
    metadata: dict[str, str]
    tensors: dict[str, Any] = field(repr=False)
    folder: str
    version: int

    def constant(self, name):
        """Return a constant as an array. Raises ValueError where its bytes are not what its shape promises."""
        return array_of(self.tensors[name], self.folder)


class Refused(ValueError):
    """What a file is refused for, a piece of a sentence."""


def need(sound, sentence):
    """Raise Refused with a sentence, unless something holds."""
    if not sound:
        raise Refused(sentence)


def need_onnx():
    """Return the package onnx. Raises ImportError, with what to do, where it is missing."""
    try:
        import onnx.numpy_helper
    except ImportError as error:
        raise ImportError('ONNX files need the package onnx: run pip install "mlpkit[onnx]".') from error
    return onnx


def load(path):
    """Return the `Graph` in the file `path`. Raises ValueError for what is none, FileNotFoundError where none is."""
    need_onnx()
    check_readable(path)
    with open(expanded(path), "rb") as file:
        return of_bytes(file.read(), os.path.dirname(place_of(path)))


def of_bytes(data, folder="."):
    """Return the `Graph` that bytes describe, with tensors in files in `folder`. Raises ValueError for what is none."""
    onnx = need_onnx()
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's own, of which there are several implementations
        raise ValueError(f"it is damaged, or no ONNX file ({type(error).__name__})") from error
    graph, newest = model.graph, onnx.defs.onnx_opset_version()
    version = {one.domain or "ai.onnx": one.version for one in model.opset_import}.get("ai.onnx", 0)
    need(OLDEST <= version <= newest, f"it is of version {version} of the operators: {OLDEST} to {newest} are read")
    need(not model.functions, "it has functions in it: export it with all of them inlined")
    need(not graph.sparse_initializer, "it has sparse tensors: export it with dense ones")
    need(len(graph.node) <= MOST_NODES, f"it has {len(graph.node):,} nodes, and at most {MOST_NODES:,} are read")
    tensors = {one.name: one for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in tensors]  # old files list weights as inputs, too
    need(len(inputs) == len(graph.output) == 1,
         f"it has {len(inputs)} inputs and {len(graph.output)} outputs: a network has one of each")  # fmt: skip
    nodes = [_node(onnx, number, one) for number, one in enumerate(graph.node)]
    _check_order(nodes, {inputs[0].name, *tensors, ""}, graph.output[0].name)
    metadata = {one.key: one.value for one in model.metadata_props}
    name, output, (batch, shape, dtype) = inputs[0].name, graph.output[0].name, _declared(onnx, inputs[0])
    return Graph(nodes, name, batch, shape, dtype, output, metadata, tensors, folder, version)


def _check_order(nodes, made, output):
    """Raise ValueError unless each value is made once, and before it is used. made: names of those that are there."""
    for node in nodes:
        if missing := set(node.inputs) - made:
            name = short(missing.pop(), 60)
            raise ValueError(f"{node} uses {name!r} before it is made: there is a cycle, or a piece is missing")
        need(made.isdisjoint({*node.outputs} - {""}), f"{node} makes a value that is there already")
        made.update(node.outputs)
    need(output in made, f"no node makes its output, {short(output, 60)!r}")


def _declared(onnx, value):
    """Return batch and shape of a graph's input, None for sizes that are left open, and its dtype."""
    tensor = value.type.tensor_type
    kinds = {onnx.TensorProto.FLOAT: np.dtype(np.float32), onnx.TensorProto.DOUBLE: np.dtype(np.float64)}
    need(tensor.elem_type in kinds, "its input is neither float32 nor float64: export it in float32")
    sizes = [one.dim_value if one.HasField("dim_value") else None for one in tensor.shape.dim]
    sound = len(sizes) > 1 and all(size is None or 0 < size < 2**31 for size in sizes[1:])
    need(sound, f"its input has the shape {sizes}: a batch comes first, and sizes are at least 1")
    return sizes[0], tuple(sizes[1:]), kinds[tensor.elem_type]


def _node(onnx, number, one):
    inside = any(each.type in (each.GRAPH, each.GRAPHS) or each.ref_attr_name for each in one.attribute)
    need(not inside, f"node {number} is a {short(one.op_type, 40)} with a graph in it, which a layer is not")
    attributes = {str(each.name): onnx.helper.get_attribute_value(each) for each in one.attribute}
    operator = one.op_type if one.domain in ("", "ai.onnx") else f"{one.domain}.{one.op_type}"
    return Node(number, operator, one.name, tuple(one.input), tuple(one.output), attributes, one)


def array_of(tensor, folder):
    """Return a TensorProto's array, with float16 and bfloat16 as float32. Its bytes are counted before it is made."""
    onnx, kind, sizes, name = need_onnx(), tensor.data_type, tuple(tensor.dims), short(tensor.name, 60)
    known = [getattr(onnx.TensorProto, each) for each in TYPES]
    need(kind in known, f"the tensor {name!r} is of type {kind}, which is not read: give it as FLOAT")
    need(min(sizes, default=0) >= 0, f"the tensor {name!r} has the shape {sizes}")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    if tensor.data_location == tensor.EXTERNAL:
        tensor = _beside(onnx, tensor, prod(sizes) * dtype.itemsize, folder)
    typed = getattr(tensor, onnx.helper.tensor_dtype_to_field(kind))
    there = len(tensor.raw_data) / dtype.itemsize if tensor.HasField("raw_data") else len(typed)
    need(prod(sizes) == there, f"the tensor {name!r} promises {prod(sizes):,} elements, and the file has {there:,}")
    array = onnx.numpy_helper.to_array(tensor)
    return array if array.dtype.kind in "iub" or array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def _beside(onnx, tensor, size, folder):
    """Return the tensor with its bytes, which are in a file of their own: one in the model's folder."""
    need(folder, "a constant in a node has its bytes in a file of its own")
    where, name = {one.key: one.value for one in tensor.external_data}, short(tensor.name, 60)
    folder, start, length = os.path.realpath(folder), where.get("offset", "0"), where.get("length", str(size))
    path = os.path.realpath(os.path.join(folder, where.get("location", "")))
    inside = os.path.commonpath([path, folder]) == folder and os.path.isfile(path)
    need(inside, f"its weights are in {short(where.get('location'), 80)!r}, which is no file in the model's own folder")
    need(length == str(size), f"the tensor {name!r} needs {size:,} bytes, and names {short(length, 30)}")
    sound = start.isdecimal() and len(start) < 19 and int(start) + size <= os.path.getsize(path)
    need(sound, f"the file {short(where['location'], 80)!r} does not have the bytes of the tensor {name!r}")
    with open(path, "rb") as file:
        file.seek(int(start))
        raw = file.read(size)
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)
