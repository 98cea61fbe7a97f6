"""A training step as two loops, each with a turn for each core: data parallelism, and then model parallelism.

In the first, a core takes its share of the batch forward through all layers, and the gradient back, and waits for no
other core between the layers. In the second, a core computes a part of the parameters' gradient from the whole batch.
"""

import numpy as np

from .fused import add_bias_relu, cross_entropy, relu_backward_in_place, sum_rows
from .simd import ROWS

prange = range  # see python_loops


def multiply(a, b, out):
    """Write the matrix product a b into out, on one core."""
    np.dot(a, b, out)


def prefetch(array):
    """Ask for an array to be brought to this core's cache: NumPy can't."""


def backpropagate(x, labels, theta, sizes, activations, gradients, losses):
    """Write the activations and the gradients `dz` of all layers, and a share of the mean loss a turn.

    x (n, inputs), labels (n,); theta as in `Network`, for layers of `sizes`, a tuple; activations, gradients: an array
    (n, features) for each layer; losses (shares,).
    """
    n, shares, last = len(x), len(losses), len(gradients) - 1
    for share in prange(shares):
        prefetch(theta)  # another core wrote a part of it
        rows = slice(n * share // shares, n * (share + 1) // shares)
        a = x[rows]
        for layer in range(last):
            W, b = views(theta, sizes, layer)
            z = activations[layer][rows]
            multiply(a, W, z)
            add_bias_relu(z, b)
            a = z
        W, b = views(theta, sizes, last)
        dz = gradients[last][rows]
        multiply(a, W, dz)
        losses[share] = cross_entropy(dz, b, labels[rows], n)
        for layer in range(last, 0, -1):
            W, b = views(theta, sizes, layer)
            da = gradients[layer - 1][rows]
            multiply(dz, W.T, da)
            relu_backward_in_place(activations[layer - 1][rows], da)
            dz = da


def parameter_gradients(x, activations, gradients, sizes, grad, parts):
    """Write the gradient of the loss, laid out as theta is, from what `backpropagate` wrote; a part of it a turn."""
    n_weights = len(grad)
    for features in sizes[1:]:
        n_weights -= features
    for part in prange(parts):
        first, end, start = n_weights * part // parts, n_weights * (part + 1) // parts, 0
        for layer in range(len(gradients)):
            k, m = sizes[layer], sizes[layer + 1]
            package = m * ROWS
            top = min(max((first - start + package - 1) // package * ROWS, 0), k)
            bottom = min(max((end - start + package - 1) // package * ROWS, 0), k)
            a = activations[layer - 1] if layer > 0 else x
            dW, db = views(grad, sizes, layer)
            if top < bottom:
                multiply(a.T[top:bottom], gradients[layer], dW[top:bottom])
            if part == parts - 1:
                sum_rows(gradients[layer], db)
            start += k * m


def views(vector, sizes, layer):
    """Return W and b of a layer, as views of a vector that is laid out as `Network.theta` is."""
    W_start, b_start = 0, 0
    for i in range(len(sizes) - 1):
        W_start += sizes[i] * sizes[i + 1] if i < layer else 0
        b_start += sizes[i] * sizes[i + 1] + (sizes[i + 1] if i < layer else 0)
    k, m = sizes[layer], sizes[layer + 1]
    return vector[W_start : W_start + k * m].reshape(k, m), vector[b_start : b_start + m]
