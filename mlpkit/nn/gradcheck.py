"""Is the gradient right? Nudge one parameter up and down, and see how much the loss changes.

The slope `(L(theta + h) - L(theta - h)) / 2h` differs from the derivative by O(h^2). In float64, with h = 1e-6, it has
some eight correct digits, so a wrong formula cannot hide; float32's rounding would drown it, and is refused.
"""

import numpy as np

from mlpkit.checks import check_count

from .network import check_is_network


def numerical_gradient(network, x, labels, indices, h=1e-6):
    """Return the slopes (len(indices),) float64 of the loss at the parameters `theta[indices]`, by central differences.

    x (n, *model.input), labels: the batch, as for `Network.loss_and_grad`. indices: integers. h: how far each parameter
    is nudged; it is put back.
    """
    slopes = []
    for i in indices:
        saved = float(network.theta[i])
        loss = []
        for value in (saved + h, saved - h):
            network.theta[i] = value
            loss.append(float(network.loss(x, labels, training=True)))
        network.theta[i] = saved
        slopes.append((loss[0] - loss[1]) / (2 * h))
    return np.array(slopes)


def gradient_error(network, x, labels, samples=None, seed=0):
    """Return the relative error of `network.grad` against central differences, norm by norm.

    x (n, *model.input) float64, labels: the batch, as for `Network.loss_and_grad`. samples: how many parameters to
    check, drawn at random with `seed`; all of them where None. The network's running statistics stay as they were.
    Raises ValueError unless the network computes in float64.
    """
    if check_is_network(network).dtype != np.float64:
        raise ValueError("a gradient check needs a network with dtype=np.float64.")
    n = len(network.theta)
    samples = n if samples is None else min(check_count("samples", samples), n)
    indices = np.random.default_rng(seed).choice(n, samples, replace=False)
    kept = network.statistics.copy()  # the batch moves them at each pass
    network.loss_and_grad(x, labels)
    computed = network.engine.to_numpy(network.grad)[indices].copy()
    estimated = numerical_gradient(network, x, labels, indices)
    network.statistics[:] = kept
    size = float(np.linalg.norm(estimated))
    return float(np.linalg.norm(computed - estimated)) / (size or 1.0)
