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


@dataclass(frozen=True)
class Node:
    """An operator at work. inputs, outputs: names of values, "" for what is left out. number, proto: as in the file."""

    number: int
    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    proto: Any = field(default=None, repr=False)

    def __str__(self):
        return short(f"node {self.number}, {self.operator} {self.name!r}", 120)


@dataclass
class Graph:
    """Nodes between one input, an array (batch, *shape) of a dtype, and one output; constants are tensors by name.

    shape, batch: None where a size is not in the file. folder: where tensors in files of their own are. version: of the
    operators.
    """

    nodes: list[Node]
    input: str
    shape: tuple[int | None, ...]
    dtype: np.dtype
    output: str
    metadata: dict[str, str]
    tensors: dict[str, Any] = field(repr=False)
    folder: str
    batch: int | None
    version: int

    def constant(self, name):
        """Return a constant as an array. Raises ValueError where its bytes are not what its shape promises."""
        return array_of(self.tensors[name], self.folder)


def need_onnx():
    """Return the package onnx. Raises ImportError, with what to do, where it is missing."""
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError as error:
        raise ImportError('ONNX files need the package onnx: run pip install "mlpkit[onnx]".') from error
    return onnx


def load(path):
    """Return the `Graph` in the file `path`. Raises ValueError for what is none, FileNotFoundError where there is no file."""
    need_onnx()
    check_readable(path)
    with open(expanded(path), "rb") as file:
        return of_bytes(file.read(), os.path.dirname(place_of(path)))


def of_bytes(data, folder="."):
    """Return the `Graph` that bytes describe, whose tensors may be in files in `folder`. Raises ValueError for others."""
    onnx = need_onnx()
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's own, of which there are several implementations
        raise ValueError(f"it is damaged, or no ONNX file ({type(error).__name__})") from error
    versions, newest = {one.domain or "ai.onnx": one.version for one in model.opset_import}, onnx.defs.onnx_opset_version()
    version = versions.get("ai.onnx", 0)
    if not OLDEST <= version <= newest:
        raise ValueError(f"it is of version {version} of ONNX's operators, and {OLDEST} to {newest} are read")
    if model.functions or len(model.graph.sparse_initializer):
        raise ValueError("it has functions or sparse tensors: export it with functions inlined, and dense")
    if len(model.graph.node) > MOST_NODES:
        raise ValueError(f"it has {len(model.graph.node):,} nodes, and at most {MOST_NODES:,} are read")
    return _graph(onnx, model, folder, version)


def _graph(onnx, model, folder, version):
    graph = model.graph
    tensors = {one.name: one for one in graph.initializer}
    inputs = [one for one in graph.input if one.name not in tensors]  # old files list weights as inputs, too
    if len(inputs) != 1 or len(graph.output) != 1:
        raise ValueError(f"it has {len(inputs)} inputs and {len(graph.output)} outputs: a network of layers has one of each")
    (batch, *shape), dtype = _declared(onnx, inputs[0])
    nodes = [_node(onnx, number, one) for number, one in enumerate(graph.node)]
    made = {inputs[0].name, *tensors, ""}
    for node in nodes:
        for name in node.inputs:
            if name not in made:
                raise ValueError(f"{node} uses {short(name, 60)!r} before it is made: there is a cycle, or a piece is missing")
        if made.intersection(node.outputs) - {""}:
            raise ValueError(f"{node} makes a value that is there already")
        made.update(node.outputs)
    if graph.output[0].name not in made:
        raise ValueError(f"no node makes its output, {short(graph.output[0].name, 60)!r}")
    metadata = {one.key: one.value for one in model.metadata_props}
    ends = inputs[0].name, tuple(shape), dtype, graph.output[0].name
    return Graph(nodes, *ends, metadata, tensors, folder, batch, version)


def _declared(onnx, value):
    """Return the shape of an example, None for sizes that are left open, and the dtype of a graph's input."""
    tensor = value.type.tensor_type
    kinds = {onnx.TensorProto.FLOAT: np.dtype(np.float32), onnx.TensorProto.DOUBLE: np.dtype(np.float64)}
    if tensor.elem_type not in kinds:
        raise ValueError("its input is neither float32 nor float64: export it in float32")
    sizes = [one.dim_value if one.HasField("dim_value") else None for one in tensor.shape.dim]
    if len(sizes) < 2 or any(size is not None and not 0 < size < 2**31 for size in sizes[1:]):
        raise ValueError(f"its input has the shape {sizes}: a batch comes first, and sizes are at least 1")
    return sizes, kinds[tensor.elem_type]


def _node(onnx, number, one):
    domain = "" if one.domain in ("", "ai.onnx") else f"{one.domain}."
    attributes = {}
    for each in one.attribute:
        if each.type in (each.GRAPH, each.GRAPHS) or each.ref_attr_name:
            raise ValueError(f"node {number} is a {short(one.op_type, 40)} with a graph in it: a network has no branches in time")
        attributes[each.name] = onnx.helper.get_attribute_value(each)
    return Node(number, domain + one.op_type, one.name, tuple(one.input), tuple(one.output), attributes, one)


def array_of(tensor, folder):
    """Return a TensorProto's array, with float16 and bfloat16 as float32. Its bytes are counted before it is made."""
    onnx = need_onnx()
    kind, sizes, name = tensor.data_type, tuple(tensor.dims), short(tensor.name, 60)
    known = "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 UINT8 INT16 UINT16 INT32 INT64 BOOL".split()
    if kind not in [getattr(onnx.TensorProto, each) for each in known]:
        raise ValueError(f"the tensor {name!r} is of a type, {kind}, that is not read: take {known[0]}")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    if min(sizes, default=0) < 0:
        raise ValueError(f"the tensor {name!r} has the shape {sizes}")
    if tensor.data_location == tensor.EXTERNAL:
        tensor = _beside(onnx, tensor, prod(sizes) * dtype.itemsize, folder)
    raw, typed = tensor.HasField("raw_data"), onnx.helper.tensor_dtype_to_field(kind)
    there = len(tensor.raw_data) // dtype.itemsize if raw else len(getattr(tensor, typed))
    if prod(sizes) != there or (raw and len(tensor.raw_data) % dtype.itemsize):
        raise ValueError(f"the tensor {name!r} promises {prod(sizes):,} elements, and the file has {there:,}")
    array = onnx.numpy_helper.to_array(tensor)
    return array if array.dtype.kind in "iub" or array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def _beside(onnx, tensor, size, folder):
    """Return the tensor with its bytes, which are in a file of their own. Raises ValueError for one that is elsewhere."""
    where = {one.key: one.value for one in tensor.external_data}
    path = os.path.realpath(os.path.join(folder, where.get("location", "")))
    start, length = (where.get(key, "0") for key in ("offset", "length"))
    if os.path.commonpath([path, os.path.realpath(folder)]) != os.path.realpath(folder) or not os.path.isfile(path):
        raise ValueError(f"its weights are in {short(where.get('location'), 80)!r}, which is no file in the model's own folder")
    if not (start.isdecimal() and length.isdecimal() and len(start) < 19) or int(length or size) not in (0, size):
        raise ValueError(f"the tensor {short(tensor.name, 60)!r} needs {size:,} bytes, and names {short(length, 30)}")
    if int(start) + size > os.path.getsize(path):
        raise ValueError(f"the file {short(where['location'], 80)!r} ends before the tensor {short(tensor.name, 60)!r} does")
    with open(path, "rb") as file:
        file.seek(int(start))
        return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=file.read(size))
