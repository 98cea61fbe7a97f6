"""A layer is structure: it remembers what its backward pass will need, and asks the engine for the arithmetic.

Arrays are (batch size, features). A layer's `backward` takes the gradient of the loss with respect to the layer's
output and returns the gradient with respect to its input.

The parameters of all layers lie in one vector, of which `views` names the parts: see `network`.
"""

from itertools import pairwise


class Linear:
    """`z = x W + b`. W (inputs, outputs), b (outputs,) and their gradients are views of the network's vectors."""

    def __init__(self, engine, W, b, dW, db):
        self.engine = engine
        self.W, self.b, self.dW, self.db = W, b, dW, db

    def forward(self, x):
        """Return z (n, outputs) for x (n, inputs), and remember x."""
        self.x = x
        return self.engine.linear(x, self.W, self.b)

    def backward(self, dz):
        """Write dW and db, and return dx (n, inputs)."""
        self.backward_weights(dz)
        return self.engine.linear_backward_input(dz, self.W)

    def backward_weights(self, dz):
        """Write dW and db, without the gradient of the input: all that a network's first layer needs."""
        self.engine.linear_backward_weights(self.x, dz, self.dW, self.db)


class ReLU:
    """`a = max(z, 0)`. Its slope at 0, where it has none, is taken as 0."""

    def __init__(self, engine):
        self.engine = engine

    def forward(self, z):
        """Return a, and remember it: where it is above 0, the slope is 1."""
        self.a = self.engine.relu(z)
        return self.a

    def backward(self, da):
        """Return dz, of the shape of da."""
        return self.engine.relu_backward(self.a, da)


def weight_count(sizes):
    """Return the number of weights between layers of these sizes, biases not counted."""
    return sum(n_in * n_out for n_in, n_out in pairwise(sizes))


def parameter_count(sizes):
    """Return the number of weights and biases of a network of these sizes."""
    return weight_count(sizes) + sum(sizes[1:])


def views(vector, sizes):
    """Return a pair (W, b) of views a layer into a vector that holds all weights first, then all biases.

    vector (parameters,), of any library's arrays; W (inputs, outputs), b (outputs,).
    """
    pairs, w, b = [], 0, weight_count(sizes)
    for n_in, n_out in pairwise(sizes):
        W = vector[w : w + n_in * n_out].reshape(n_in, n_out)
        pairs.append((W, vector[b : b + n_out]))
        w, b = w + n_in * n_out, b + n_out
    return pairs
