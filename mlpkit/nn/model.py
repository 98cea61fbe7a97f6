"""A model is data: the shape of an example, a tuple of layers, and a loss."""

import ast
import pkgutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

from mlpkit.checks import check_array_names, check_choice, check_sizes

from . import conv, norm, residual  # noqa: F401 (whose layers a text may name)
from .layers import Layer, Linear, ReLU, check_layers
from .layout import Layout
from .losses import LOSSES


@dataclass(frozen=True)
class Model:
    """What a network computes, and which arrays it needs for that.

    input: the shape of an example, such as (784,) or (1, 28, 28). layers: see `layers`. loss: a name from
    `losses.LOSSES`. Raises ValueError where a layer can't take what the one before it puts out.
    """

    input: tuple[int, ...]
    layers: tuple[Layer, ...]
    loss: str = "softmax_cross_entropy"

    def __post_init__(self):
        object.__setattr__(self, "input", check_sizes(self.input, least=1))
        object.__setattr__(self, "layers", check_layers(self.layers))
        check_choice("loss", self.loss, LOSSES)
        self.output  # noqa: B018 (raises, where a layer does not fit)

    @cached_property
    def places(self):
        """All layers, those inside others too, as tuples (path, layer, shape of the input, wants_dx); see `place`."""
        return tuple(_walk(self.layers, self.input))

    @cached_property
    def output(self):
        """The shape of an example's output."""
        shape = self.input
        for number, one in enumerate(self.layers):
            shape = _output(one, shape, (number,))
        return shape

    @cached_property
    def layout(self):
        """Where each parameter lies in a network's `theta`; names are a layer's path and its array, such as "0.W"."""
        return Layout(_declared(self.places, "parameters"))

    @cached_property
    def statistics(self):
        """Where each array lies that a training keeps and does not optimize."""
        return Layout(_declared(self.places, "statistics"))

    @cached_property
    def ones(self):
        """The names of the arrays that begin at 1."""
        return frozenset(f"{_dotted(path)}.{name}" for path, one, *_ in self.places for name in one.ones)

    @property
    def operations(self):
        """The engine's functions that the layers and the loss call, each once."""
        return tuple(dict.fromkeys([*(name for _, one, *_ in self.places for name in one.operations), self.loss]))

    def sizes(self):
        """Return (inputs, units of each hidden layer, classes) of a plain multilayer perceptron; None for other models.

        That is: Linear layers with ReLU between them, and softmax cross-entropy.
        """
        linear = [one for one in self.layers[::2] if type(one) is Linear]
        plain = len(self.input) == 1 and self.loss == "softmax_cross_entropy"
        if plain and len(self.layers) == 2 * len(linear) - 1 and set(self.layers[1::2]) <= {ReLU()}:
            return (*self.input, *(one.units for one in linear))
        return None

    def to_dict(self):
        """Return the model as JSON can hold it, each layer as it is written. Raises ValueError where one can't be."""
        return {"input": list(self.input), "layers": [_text(one) for one in self.layers], "loss": self.loss}

    @classmethod
    def from_dict(cls, found):
        """Return the model that `to_dict` wrote. Raises ValueError for what is none; nothing in it can run code."""
        try:
            layers = tuple(map(_written, found["layers"]))
            return cls(tuple(found["input"]), layers, found["loss"])
        except (KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(".: ")
            raise ValueError(f"this is no model: {reason}.") from error

    def __str__(self):
        """Return the model in short: 784-128-128-128-10 for a multilayer perceptron."""
        if self.sizes():
            return "-".join(map(str, self.sizes()))
        return ", ".join(["x".join(map(str, self.input)), *map(repr, self.layers)])


def _output(one, shape, path):
    try:
        return one.output(shape)
    except ValueError as error:
        raise ValueError(f"layer {_dotted(path)}, {one!r}, does not fit: {error}.") from None


def _walk(layers, shape, path=(), wants_dx=False, first=0):
    for number, one in enumerate(layers, first):
        here, learns, inner = (*path, number), bool(one.parameters(shape)), 0
        yield here, one, shape, wants_dx
        for branch in one.branches():
            for found in _walk(branch, shape, here, wants_dx, inner):
                learns = learns or bool(found[1].parameters(found[2]))
                yield found
            inner += len(branch)  # the next one's layers are numbered on: no two have the same path
        wants_dx = wants_dx or learns
        shape = _output(one, shape, here)


def _declared(places, what):
    return {
        f"{_dotted(path)}.{name}": declared
        for path, one, shape, _ in places
        for name, declared in check_array_names(one, getattr(one, what)(shape)).items()
    }


def _dotted(path):
    return ".".join(map(str, path))


def _text(one):
    """Return a layer as it is written. Raises ValueError for one that would not be read as what it is."""
    text, found = repr(one), None
    with suppress(TypeError, SyntaxError, ValueError):
        found = _written(text)
    if not isinstance(found, Layer) or (repr(found), _origins(found)) != (text, _origins(one)):
        raise ValueError(f"{text} can't be written: it has another layer's name, or a setting that is no number.")
    return text


def _origins(one):
    """Return the modules of a layer's class, and of those inside it."""
    return [type(one).__module__, *([*map(_origins, branch)] for branch in one.branches())]


def _written(text):
    """Return the layer that a text writes down."""
    return _read(ast.parse(text, mode="eval").body)


def _read(node):
    """Return the layer, the tuple of layers or the number that a piece of parsed text writes down."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        kinds = _by_name()
        if node.func.id not in kinds:  # one of those that few models need, perhaps
            for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
                import_module(f"{__package__}.{module.name}")
            kinds = _by_name()
        check_choice("layer", node.func.id, kinds)
        named = {str(word.arg): _read(word.value) for word in node.keywords}
        return kinds[node.func.id](*map(_read, node.args), **named)
    if isinstance(node, ast.Tuple):
        return tuple(map(_read, node.elts))
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)!r} is no layer, and no number of one, as in Linear(10).") from None


def _by_name():
    """Return the kinds of layers by name: of two with a name ours, else the one that was made last."""
    known = sorted(_kinds(Layer), key=lambda kind: kind.__module__.startswith(f"{__package__}."))
    return {kind.__name__: kind for kind in known}


def _kinds(kind):
    """Yield all kinds of layers that are known here, a reader's own too."""
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)
