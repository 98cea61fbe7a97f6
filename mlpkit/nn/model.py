"""A model is data: the shape of an example, a tuple of layers, and a loss. The first one is a perceptron."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

from mlpkit.checks import check_sizes
from mlpkit.words import short_sentences

from .bound import check_declared
from .layers import Layer, Linear, ReLU, check_layers
from .layout import Layout
from .losses import Loss, SoftmaxCrossEntropy, check_loss

MOST_VALUES = 2**28  # of an example between two layers, of a model out of a file


@dataclass(frozen=True)
class Model:
    """What a network computes, and which arrays it needs for that.

    input: the shape of an example, such as (784,) or (1, 28, 28). layers: see `layers`. loss: see `losses`.
    Raises ValueError where a layer can't take what the one before it puts out, TypeError for what is no layer or loss.
    """

    input: tuple[int, ...]
    layers: tuple[Layer, ...]
    loss: Loss = SoftmaxCrossEntropy()  # noqa: RUF009 (frozen)

    def __post_init__(self):
        object.__setattr__(self, "input", check_sizes(self.input, least=1))
        object.__setattr__(self, "layers", check_layers(self.layers))
        check_loss(self.loss)
        self.output  # noqa: B018 (raises, where a layer does not fit)

    @cached_property
    def walk(self):
        """All layers, those inside others too, as tuples (path, layer, shape of the input, wants_dx); see `bound`."""
        return tuple(_walk(self.layers, self.input))

    @cached_property
    def output(self):
        """The shape of an example's output."""
        shape = self.input
        for number, one in enumerate(self.layers):
            shape = _output(one, shape, (number,))
        return shape

    def check_read(self):
        """Raise ValueError if a model out of a file asks for more values between two layers than fit into memory."""
        most = max(prod(shape) for shape in (self.input, self.output, *(shape for _, _, shape, _ in self.walk)))
        if most > MOST_VALUES:
            raise ValueError(f"between two layers it has more than {MOST_VALUES:,} values of one example.")

    @cached_property
    def layout(self):
        """Where each parameter lies in a network's `theta`; names are a layer's path and its array, such as "0.W"."""
        return Layout(_declared(self.walk, "parameters"))

    @cached_property
    def statistics(self):
        """Where each array lies that a training keeps and does not optimize."""
        return Layout(_declared(self.walk, "statistics"))

    @cached_property
    def ones(self):
        """The names of the arrays that begin at 1."""
        return frozenset(f"{_dotted(path)}.{name}" for path, one, *_ in self.walk for name in one.ones)

    @property
    def operations(self):
        """The engine's functions that the layers and the loss call, each once."""
        asking = (*(one for _, one, *_ in self.walk), self.loss)
        return tuple(dict.fromkeys(name for one in asking for name in one.operations))

    def sizes(self):
        """Return (inputs, units of each hidden layer, classes) of a plain multilayer perceptron; None for other models.

        That is: Linear layers with ReLU between them, and softmax cross-entropy.
        """
        linear = [one for one in self.layers[::2] if type(one) is Linear]
        plain = len(self.input) == 1 and type(self.loss) is SoftmaxCrossEntropy
        if plain and len(self.layers) == 2 * len(linear) - 1 and set(self.layers[1::2]) <= {ReLU()}:
            return (*self.input, *(one.units for one in linear))
        return None

    def to_dict(self):
        """Return the model as JSON can hold it, each layer as it is written. Raises ValueError where one can't be."""
        from .reading import text_of  # only files need it

        return {"input": list(self.input), "layers": [*map(text_of, self.layers)], "loss": text_of(self.loss)}

    @classmethod
    @short_sentences()
    def from_dict(cls, found):
        """Return the model that `to_dict` wrote. Raises ValueError for what is none; nothing in it can run code."""
        from .reading import loss_text, read

        try:
            return cls(tuple(found["input"]), tuple(map(read, found["layers"])), read(loss_text(found["loss"])))
        except (AttributeError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
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


def _declared(walk, what):
    return {
        f"{_dotted(path)}.{name}": declared
        for path, one, shape, _ in walk
        for name, declared in check_declared(one, getattr(one, what)(shape)).items()
    }


def _dotted(path):
    return ".".join(map(str, path))


def mlp(*sizes):
    """Return a multilayer perceptron: Linear layers with ReLU between them.

    sizes: the number of inputs, of units in each hidden layer, of classes. Raises ValueError for fewer than two.
    """
    inputs, *hidden, classes = check_sizes(sizes)
    return Model((inputs,), (*(one for units in hidden for one in (Linear(units), ReLU())), Linear(classes)))


MLP = mlp(784, 128, 128, 128, 10)
