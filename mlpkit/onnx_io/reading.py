"""A network of our layers from an ONNX file, whoever made it: see `operators` for what each node becomes."""

from math import prod

import numpy as np

from mlpkit import engines
from mlpkit.checks import check_finite, check_sizes
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.words import short_sentences

from . import operators
from .loading import Refused, array_of, load, need
from .structure import steps_of

MOST_SIZES = 64  # what sizes are computed from
MOST_TIMES = 32  # as many bytes as a file's constants have are what is computed of them
GROWING = frozenset(("Concat", "ConstantOfShape", "Gather"))
ROWS = frozenset(("Flatten", "Gemm", "MatMul", "Reshape"))
FOLDED = GROWING.union(
    *(["Cast", "Constant", "DequantizeLinear", "Identity"], ["Reshape", "Shape", "Slice", "Squeeze"]),
    ["Transpose", "Unsqueeze"],
)
WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError)


@short_sentences()
def read(path, engine=engines.BASELINE, shape=None):
    """Return the network in the ONNX file `path`, on an engine: it computes what the file says, in evaluation.

    shape: of an example, such as (3, 224, 224), where the file leaves sizes open. The loss is the one that `write` put
    into the file, else softmax cross-entropy. Raises FileNotFoundError where there is no file, ImportError where the
    package onnx is missing, and ValueError, in one sentence, for what is no network of our layers. Nothing that a file
    promises is allocated before it is there.
    """
    try:
        return network_of(load(path), engine, shape)
    except WRONG as error:
        raise ValueError(f"{path} can't be read: {str(error).rstrip('.')}.") from error


@np.errstate(all="ignore")  # what is too large shows in the weights
def network_of(graph, engine=engines.BASELINE, shape=None):
    """Return the network that a `Graph` describes. Raises what `read` raises."""
    shape = _input(graph, shape)
    made, _ = _Reader(graph, shape).sequence(steps_of(graph), shape)
    model = Model(shape, tuple(layer for layer, _ in made), _loss(graph.metadata))
    model.check_read()
    arrays = {f"{number}.{name}": array for number, (_, own) in enumerate(made) for name, array in own.items()}
    for name, wanted in {**model.layout.shapes, **model.statistics.shapes}.items():  # before they are allocated
        need(arrays[name].shape == wanted, f"its weights {name} have the shape {arrays[name].shape}, not {wanted}")
        arrays[name] = check_finite(f"its weights {name}", arrays[name].astype(graph.dtype))
    network = Network(engine, model, dtype=graph.dtype)
    views = {**network.views(network.theta), **model.statistics.views(network.statistics)}
    for name, view in views.items():
        view[...] = network.engine.asarray(arrays[name])
    return network


def _input(graph, shape):
    wanted = f"its input has the shape {graph.shape}"
    need(shape or None not in graph.shape, f"{wanted}, with open sizes: say them, as in read(path, shape=(3, 64, 64))")
    shape = check_sizes(graph.shape if shape is None else shape, least=1)
    fits = [size in (None, given) for size, given in zip(graph.shape, shape, strict=False)]
    need(len(shape) == len(graph.shape) and all(fits), f"{wanted}, not {shape}")
    return shape


def _loss(metadata):
    """Return the loss that a file names, which runs no code, or the usual one."""
    try:
        return Model.from_dict({"input": [1], "layers": [], "loss": metadata["loss"].strip('"')}).loss
    except (KeyError, ValueError):
        return Model((1,), ()).loss


class _Reader:
    """Makes layers of steps; `made` are pairs, a layer and its arrays by name.

    ranks: how many axes each value has in the file, where a mean over an image keeps two of length 1.
    """

    def __init__(self, graph, shape):
        self.graph, self.constants, self.ranks = graph, {"": None}, {graph.input: 1 + len(shape)}
        self.read, self.left = set(), 2**20  # names, and bytes
        for node in graph.nodes:  # what is computed from constants alone, and what asks for shapes
            known = all(name in self.constants or name in graph.tensors for name in node.inputs)
            if node.operator in FOLDED and (known or node.operator == "Shape"):
                found = _named(node, _computed, node, *(map(self.constant, node.inputs) if known else ()))
                self.constants[node.outputs[0]] = found
                self.left += found.nbytes * (MOST_TIMES if node.operator == "Constant" else -1)
                need(self.left >= 0, f"{node} and those before it make more than {MOST_TIMES} times its constants")

    def constant(self, name):
        """Return a constant as an array; None for what is none."""
        found = self.constants.get(name)
        if found is not None or name not in self.graph.tensors:
            return found
        found = self.graph.constant(name)
        self.left += MOST_TIMES * found.nbytes * (name not in self.read)
        self.read.add(name)
        return found

    def sequence(self, steps, shape):
        """Return what is made of a sequence of steps, a list, and the shape that comes out."""
        made: list = []
        for step in steps:
            branches = [self.sequence(branch, shape)[0] for branch in step.branches]
            shape = _named(step.node, self.step, step.node, shape, branches, made)
        return made, shape

    def step(self, node, shape, branches, made):
        """Append what a node becomes to `made`, and return the shape that comes out."""
        before, constants = len(made), [*map(self.constant, node.inputs)]
        rank = next(self.ranks[name] for name in node.inputs if name in self.ranks)
        of = operators.Setting(node, shape, constants, self.graph.batch, self.graph.version, rank)
        made += [operators.join(of, branches)] if branches else []
        if not branches:
            operators.read(of, made)
        try:
            for layer, _ in made[before:]:
                shape = layer.output(shape)
        except ValueError as error:
            raise Refused(str(error)) from error
        gone = node.operator in ROWS or not node.attributes.get("keepdims", 1)
        self.ranks[node.outputs[0]] = 1 + len(shape) if gone else rank
        return shape


def _named(node, function, *arguments):
    """Return what a function returns; an error names the node whose inputs are not what it takes."""
    try:
        return function(*arguments)
    except WRONG as error:
        ours = isinstance(error, Refused) or str(error).endswith(".")  # and not Python's own, or NumPy's
        what = error if ours else "its attributes or inputs are not of the kind that ONNX asks for"
        raise ValueError(f"{node}: {what}") from error


def _computed(node, *inputs):
    """Return what a node makes of constants, as ONNX's own reference does: sizes, and weights that are in integers."""
    if node.operator == "Shape" and not inputs:  # as a Reshape has it, 0 is the batch; -2, nothing, what is not known
        start, end = node.attributes.get("start", 0), node.attributes.get("end", 8)
        return np.array(([0] + [-2] * 7)[start:end] if min(start, end) >= 0 else [-2] * 8)  # from the end: which?
    if node.operator == "Constant":
        ((name, value),) = node.attributes.items()
        return array_of(value, "") if name == "value" else np.array(value, np.float32 if "float" in name else np.int64)
    size = prod(inputs[0].tolist()) if node.operator == "ConstantOfShape" else sum(np.size(each) for each in inputs)
    few = node.operator not in GROWING or 0 <= size <= MOST_SIZES  # what doubles again and again would fill the memory
    need(few, f"sizes are computed from more than {MOST_SIZES} numbers")
    from onnx.reference import ReferenceEvaluator  # only then

    given = {name: array for name, array in zip(node.inputs, inputs, strict=True) if name}
    return ReferenceEvaluator(node.proto).run(None, given)[0]
