"""One pass through a network whose activations and their gradients a reader wants to see, or to change."""

from dataclasses import replace

from .bound import Tape, backward, forward


class Pass:
    """A batch on its way through a network. It has bound layers of its own, and a gradient that is nobody else's.

    outputs (n, *model.output). activations: a dict of the outputs of the layers whose paths are in keep, and "input".
    frozen: `grad` is not asked for, and most layers leave it as it is, which saves a third of the way there and back.
    """

    def __init__(self, network, x, keep=(), training=False, step=0, frozen=False):
        self.tape = Tape(tuple(keep))
        mode = replace(network.mode, training=training, step=step, tape=self.tape, frozen=frozen)
        self.layers = [at.copied(mode) for at in network.layers]
        self.grad = network.grad.copy()  # of this pass: the network's stays
        for path, gradient in network.views(self.grad).items():
            *numbers, name = path.split(".")
            setattr(_at(self.layers, numbers), f"d{name}", gradient)
        for path in self.tape.keep:
            _check_path(self.layers, path)
        self.outputs = forward(self.layers, x)
        self.activations = {"input": x} | self.tape.kept

    def backward(self, d_outputs, of=("input",), add=()):
        """Return a dict of gradients, given that of the outputs: with respect to the input, and layers' outputs.

        of: "input", or paths of layers. add: a dict of gradients by path, each of its layer's output's shape, which are
        added on the way, as those of a loss on these activations. `grad` has the gradient of all parameters then. In
        evaluation batch norms leave their own at zero.
        """
        self.tape.of, self.tape.add, self.tape.found = tuple(of), dict(add), {}
        for path in (*self.tape.of, *self.tape.add):
            if path != "input":
                _check_path(self.layers, path)
        self.grad[:] = 0
        found = {"input": backward(self.layers, d_outputs)} | self.tape.found
        return {name: found[name] for name in of}


def _at(layers, numbers):
    """Return the bound layer at the end of a path, a list of texts. Raises LookupError where there is none."""
    (at,) = (at for at in layers if at.path[-1] == int(numbers[0]))
    return _at([each for branch in at.branches for each in branch], numbers[1:]) if numbers[1:] else at


def _check_path(layers, path):
    """Raise ValueError unless a layer has such a path."""
    try:
        _at(layers, path.split("."))
    except (AttributeError, LookupError, TypeError, ValueError):
        known = ", ".join(at.name for at in layers)
        raise ValueError(f"there is no layer {path!r}; there are {known}, and '5.1' is layer 1 in 5.") from None
