"""A network is one vector of parameters, and layers that look at parts of it.

`theta` holds every weight and bias, `grad` the gradient of the loss with respect to each of them, in the same order:
the weights of all layers first, then the biases of all layers. A layer's `W`, `b`, `dW` and `db` are views. So an
optimizer is one line on two vectors, saving is one array, and comparing two engines is one comparison.
"""

from itertools import pairwise

import numpy as np

from mlpkit import engines
from mlpkit.checks import check_batch, check_choice, check_count, check_dtype, check_finite, check_labels, check_sizes
from mlpkit.files import load_npz, save_npz

from .initialize import RULES
from .layers import Linear, ReLU, parameter_count, views, weight_count

SIZES = (784, 128, 128, 128, 10)
PARAMETERS = parameter_count(SIZES)


def _fixed(name, what):
    """Return a property for a vector whose numbers may change, but which stays the array that the layers look at."""

    def get(network):
        return getattr(network, f"_{name}")

    def put(network, value):
        if value is not get(network):  # it is, after `network.theta -= step`
            raise AttributeError(
                f"the layers look at this {name}, and would not see another: change it, network.{name}[:] = ..."
            )

    return property(get, put, doc=what)


class Network:
    """A multilayer perceptron: linear layers with ReLU between them, softmax cross-entropy at the end.

    engine: an engine module, or its name. sizes: the number of inputs, of units in each hidden layer, of classes.
    seed: of the first weights, which are drawn on the host, so that every engine starts from the same numbers.
    init: "he" or "xavier". dtype: float32, or float64 for a gradient check.

    Raises ValueError for sizes, a rule or a dtype that make no network, and what `engines.load` raises.
    """

    def __init__(self, engine=engines.BASELINE, sizes=SIZES, *, seed=0, init="he", dtype=np.float32):
        self.engine = engines.load(engine) if isinstance(engine, str) else engine
        self.sizes = check_sizes(sizes)
        self.dtype = check_dtype(dtype)
        theta = initial_theta(self.sizes, seed, init).astype(self.dtype)
        self._theta = self.engine.asarray(theta)
        self._grad = self.engine.asarray(np.zeros_like(theta))
        self.layers = self._build_layers()

    theta = _fixed("theta", "Every weight, then every bias: (n,), in the network's dtype.")
    grad = _fixed("grad", "The gradient of the loss with respect to each number of `theta`: (n,).")

    def _build_layers(self):
        parameters = zip(self.views(self.theta), self.views(self.grad), strict=True)
        linear = [Linear(self.engine, W, b, dW, db) for (W, b), (dW, db) in parameters]
        hidden = [layer for first in linear[:-1] for layer in (first, ReLU(self.engine))]
        return [*hidden, linear[-1]]

    @property
    def n_weights(self):
        """The number of weights: `theta[:n_weights]` are the weights, the rest are the biases."""
        return weight_count(self.sizes)

    def views(self, vector):
        """Return one (W, b) pair of views a layer into `vector`, which is laid out as `theta` is."""
        return views(vector, self.sizes)

    def forward(self, x):
        """Return the logits (n, classes) of the batch `x` (n, inputs), in the network's dtype or uint8 pixels."""
        x = self.as_input(x)
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def as_input(self, x):
        """Return the batch `x` in the network's dtype: uint8 pixels become numbers from 0 to 1."""
        check_batch(x, self.sizes[0], self.dtype)
        return self.engine.scale(x, self.dtype) if x.dtype == np.uint8 else x

    def backward(self, dlogits):
        """Write into `grad` the gradient that belongs to the last `forward`, given that of the logits."""
        first, *rest = self.layers
        for layer in reversed(rest):
            dlogits = layer.backward(dlogits)
        first.backward_weights(dlogits)  # nobody asks for the gradient of the pixels

    def loss_and_grad(self, x, labels):
        """Return the mean loss of the batch, a scalar of the engine's, and leave its gradient in `grad`.

        x: as for `forward`. labels (n,): integers from 0 to classes - 1. Raises ValueError or TypeError for others.
        """
        check_labels(labels, len(x), self.sizes[-1])
        loss, dlogits = self.engine.softmax_cross_entropy(self.forward(x), labels)
        self.backward(dlogits)
        return loss

    def loss(self, x, labels):
        """Return the mean loss of the batch, and leave `grad` as it is. Arguments and errors: as `loss_and_grad`."""
        check_labels(labels, len(x), self.sizes[-1])
        return self.engine.softmax_cross_entropy(self.forward(x), labels)[0]

    def predict(self, X, batch_size=1000):
        """Return the most likely class of each row of `X` (n, inputs), as a NumPy array (n,) of integers."""
        check_batch(X, self.sizes[0], self.dtype)
        parts = [self._labels(self.forward(x)) for x in self._batches(X, batch_size)]
        return np.concatenate(parts)

    def evaluate(self, X, labels, batch_size=1000):
        """Return the mean loss and the accuracy, a fraction, over a whole data set, batch by batch.

        X (n, inputs), labels (n,): arrays of NumPy or of the engine. batch_size: rows that are in memory at once.
        """
        check_batch(X, self.sizes[0], self.dtype)
        check_labels(labels, len(X), self.sizes[-1])
        loss = correct = 0.0
        for x, y in zip(self._batches(X, batch_size), self._batches(labels, batch_size), strict=True):
            logits = self.forward(x)
            loss += float(self.engine.softmax_cross_entropy(logits, y)[0]) * len(y)
            correct += int((self._labels(logits) == self.engine.to_numpy(y)).sum())
        return loss / len(X), correct / len(X)

    def _labels(self, logits):
        return self.engine.to_numpy(self.engine.argmax(logits))

    def _batches(self, array, batch_size):
        check_count("batch_size", batch_size)
        array = self.engine.asarray(array)
        return [array[i : i + batch_size] for i in range(0, len(array), batch_size)]

    def set_theta(self, theta):
        """Copy a vector of parameters (parameters,), a NumPy array, into the network. ValueError for another shape."""
        check_theta(theta, self.sizes)
        self.theta[:] = self.engine.asarray(theta, self.dtype)

    def save(self, path):
        """Write sizes and parameters to the .npz file `path`, atomically."""
        save_npz(path, sizes=self.sizes, theta=self.engine.to_numpy(self.theta))

    @classmethod
    def load(cls, path, engine=engines.BASELINE):
        """Read a network that `save` wrote. Raises ValueError where the file is not one."""
        arrays = load_npz(path, ("sizes", "theta"))
        theta = arrays["theta"]
        try:  # before a network is made: sizes that are wrong can ask for any amount of memory
            sizes, dtype = check_sizes(arrays["sizes"].ravel().tolist()), check_dtype(theta.dtype)
            check_theta(theta, sizes)
            check_finite("parameters", theta)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no network: {error}") from error
        network = cls(engine, sizes, dtype=dtype)
        network.set_theta(theta)
        return network


def check_theta(theta, sizes):
    """Raise ValueError unless `theta` has as many numbers as a network of these sizes has parameters."""
    wanted = parameter_count(sizes)
    if theta.shape != (wanted,):
        raise ValueError(f"these parameters have shape {theta.shape}, but a network of sizes {sizes} has ({wanted},).")


def initial_theta(sizes, seed, init="he"):
    """Return first parameters (float64, laid out as `Network.theta` is): weights by the rule `init`, biases zero."""
    check_choice("initialization", init, RULES)
    rng = np.random.default_rng(check_count("seed", seed, least=0))
    weights = [RULES[init](rng, n_in, n_out).ravel() for n_in, n_out in pairwise(sizes)]
    return np.concatenate([*weights, np.zeros(sum(sizes[1:]))])
