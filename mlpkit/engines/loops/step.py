"""A training step as three loops, each with a turn for each core: by inputs, by examples, and by parameters.

In the first, a core gathers a part of the inputs of the whole batch, and multiplies them by their weights. In the
second, it takes its share of the batch on through all layers, and the gradient back, and waits for no other core
between the layers. In the third, it computes a part of the parameters' gradient from the whole batch.

The first layer has most of the weights. Cut by its inputs, most of them are read, and changed by the update, by one
core: what another core has changed must come from that core's cache.
"""

import numpy as np

from .fused import add_bias_relu, cross_entropy, relu_backward_in_place, sum_rows
from .simd import ROWS

prange = range  # see python_loops

AHEAD = 2  # rows on their way from memory while one is copied: the next lies anywhere, and no processor foresees where


def multiply(a, b, out):
    """Write the matrix product a b into out, on one core."""
    np.dot(a, b, out)


def prefetch(array):
    """Ask for an array to be brought to this core's cache: NumPy can't."""


def first_products(X, index, theta, sizes, x, sums, parts):
    """Gather the batch x, and write what a part of the inputs adds to the first layer's x W; a part a turn.

    X (examples, inputs); index (n,); theta as in `Network`, for layers of `sizes`, a tuple; x (most, inputs); sums
    (most parts, most, features), with room for `most` examples.
    """
    n, inputs = len(index), sizes[0]
    for part in prange(parts):
        W = views(theta, sizes, 0)[0]
        own = slice(inputs * part // parts, inputs * (part + 1) // parts)
        for i in range(n):
            prefetch(X[index[min(i + AHEAD, n - 1)]][own])
            copy(X[index[i]][own], x[i][own])
        multiply(x[:n, own], W[own], sums[part, :n])


def backpropagate(sums, parts, labels, theta, sizes, outputs, gradients, losses):
    """Write the outputs and the gradients `dz` of all layers, and a share of the mean loss a turn.

    labels (n,); sums, parts, theta, sizes: as for `first_products`; outputs, gradients: an array (most, features) for
    each layer, where outputs[0] is sums[0], and the last of both is the same; losses (shares,).
    """
    n, shares, last = len(labels), len(losses), len(gradients) - 1
    for share in prange(shares):
        prefetch(theta[sizes[0] * sizes[1] :])  # another core wrote a part of it
        rows = slice(n * share // shares, n * (share + 1) // shares)
        for part in range(1, parts):
            add(sums[part][rows], outputs[0][rows])
        for layer in range(last + 1):
            W, b = views(theta, sizes, layer)
            z = outputs[layer][rows]
            if layer > 0:
                multiply(outputs[layer - 1][rows], W, z)
            if layer < last:
                add_bias_relu(z, b)
        losses[share] = cross_entropy(z, b, labels[rows], n)
        for layer in range(last, 0, -1):
            W = views(theta, sizes, layer)[0]
            da = gradients[layer - 1][rows]
            multiply(gradients[layer][rows], W.T, da)
            relu_backward_in_place(outputs[layer - 1][rows], da)


def parameter_gradients(n, x, outputs, gradients, sizes, grad, parts):
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
            a, dz = (outputs[layer - 1] if layer > 0 else x)[:n], gradients[layer][:n]
            dW, db = views(grad, sizes, layer)
            if top < bottom:
                multiply(a.T[top:bottom], dz, dW[top:bottom])
            if part == parts - 1:
                sum_rows(dz, db)
            start += k * m


def copy(x, y):
    """Copy the elements of x to y."""
    for j in range(len(x)):
        y[j] = x[j]


def add(x, y):
    """Add the elements of x to those of y."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] += x[i, j]


def views(vector, sizes, layer):
    """Return W and b of a layer, as views of a vector that is laid out as `Network.theta` is."""
    W_start, b_start = 0, 0
    for i in range(len(sizes) - 1):
        W_start += sizes[i] * sizes[i + 1] if i < layer else 0
        b_start += sizes[i] * sizes[i + 1] + (sizes[i + 1] if i < layer else 0)
    k, m = sizes[layer], sizes[layer + 1]
    return vector[W_start : W_start + k * m].reshape(k, m), vector[b_start : b_start + m]
