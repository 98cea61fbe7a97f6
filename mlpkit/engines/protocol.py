"""What an engine exports: functions in groups, of which those of `Engine` are everybody's.

In the signatures, `n` is the batch size; arrays have the network's dtype (float32, or float64 for a gradient check),
labels are integers in `[0, classes)`. Shapes and formulas: see `numpy_baseline`, which also has what layers of images
and other activations and losses need. A network refuses in a sentence an engine that lacks what its layers ask for.

What runs whole models stands above the engines: see `mlpkit.executors`.
"""

from typing import Any, Protocol, TypeAlias

Array: TypeAlias = Any  # an engine's own array type: numpy.ndarray, cupy.ndarray, ...


class Tensors(Protocol):
    """Arrays, and when their elements are there."""

    def asarray(self, array: Any, dtype: Any = None) -> Array:
        """Return `array` as this engine's array type, contiguous; not necessarily a copy."""

    def to_numpy(self, array: Array) -> Any:
        """Return an array, or a list of scalars such as losses, as a NumPy array on the host."""

    def fetch(self, *arrays: Array) -> Any:
        """Ask for arrays on the host; return a function that waits for them, and for no later work, and returns them.

        They come as a list of NumPy arrays, which are the caller's.
        """

    def synchronize(self) -> None:
        """Wait until all the work asked for so far is done. Call it before reading a clock."""

    def now(self) -> Any:
        """Return a timestamp of the engine's own clock: when it has come to this point of its work."""

    def elapsed(self, begin: Any, end: Any) -> float:
        """Return the seconds between two timestamps that have passed."""

    def gather(self, X: Array, index: Array) -> Array:
        """Return the rows of `X` named by `index`."""

    def scale(self, pixels: Array, dtype: Any) -> Array:
        """Return uint8 pixels, 0 to 255, as values of `dtype` from 0 to 1."""

    def all_finite(self, array: Array) -> Any:
        """Return whether no number is NaN or infinite, as a scalar of the engine's that need not be there yet."""

    def all_labels(self, labels: Array, classes: int) -> Any:
        """Return whether all integers are in `[0, classes)`, as a scalar that need not be there yet."""

    def count(self, mask: Array) -> Any:
        """Return how many elements of a boolean array are true, as a scalar that need not be there yet."""


class Sharing(Protocol):
    """How many threads of the host share out an engine's work, where it has any to choose: see `executors.team`."""

    def threads(self) -> Any:
        """Return an object with `count()`, how many there may be, and `use(n)`, to use at most so many."""


class Dense(Protocol):
    """Linear layers, ReLU, and the usual loss."""

    def linear(self, x: Array, W: Array, b: Array) -> Array:
        """Return `z = x W + b`."""

    def linear_backward_weights(self, x: Array, dz: Array, dW: Array, db: Array) -> None:
        """Write the gradients of `W` and `b` into `dW` and `db`."""

    def linear_backward_input(self, dz: Array, W: Array) -> Array:
        """Return `dx`, the gradient of the layer's input."""

    def relu(self, z: Array) -> Array:
        """Return `a = max(z, 0)`."""

    def relu_backward(self, a: Array, da: Array) -> Array:
        """Return `dz`, from `da` and the activations that `relu` returned."""

    def softmax_cross_entropy(self, z: Array, labels: Array) -> tuple[Any, Array]:
        """Return the mean loss over the batch and its gradient `dz`."""

    def argmax(self, z: Array) -> Array:
        """Return the column of the largest value in each row."""


class Updates(Protocol):
    """Optimizers: one long vector of parameters at a time, in place.

    lr, t: numbers; from an engine that records its steps as a graph, arrays of one number.
    """

    def axpy(self, alpha: float, x: Array, y: Array) -> None:
        """Add `alpha * x` to `y` in place."""

    def sgd_update(self, theta: Array, grad: Array, lr: float) -> None:
        """Take one step of gradient descent, in place."""

    def momentum_update(self, theta: Array, grad: Array, velocity: Array, lr: float, momentum: float) -> None:
        """Take one step of gradient descent with momentum, in place."""

    def nesterov_update(self, theta: Array, grad: Array, velocity: Array, lr: float, momentum: float) -> None:
        """Take one step with Nesterov's momentum, in place."""

    def rmsprop_update(self, theta: Array, grad: Array, s: Array, lr: float, rho: float, eps: float) -> None:
        """Take one step of RMSprop, in place."""

    def adam_update(
        self, theta: Array, grad: Array, m: Array, v: Array, t: int, lr: float, beta1: float, beta2: float, eps: float
    ) -> None:
        """Take step number `t` (the first is 1) of Adam, in place."""


class Engine(Tensors, Dense, Updates, Protocol):
    """What every engine has: enough for a multilayer perceptron."""


class Chance(Protocol):
    """What is random, and yet the same on each engine, to the bit: numbers that a counter and a key decide."""

    def dropout(self, x: Array, rate: float, key: tuple[int, int], step: int) -> Array:
        """Return `x` with elements dropped, the others scaled; of `dy` it is `dx`, with the same rate, key and step.

        step: an integer; from an engine that records its steps as a graph, an array of one number.
        """
