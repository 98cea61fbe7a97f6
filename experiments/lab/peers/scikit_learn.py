"""scikit-learn: its MLPClassifier, through `partial_fit`, with momentum, weight decay and shuffling off.

The examples are put in order beforehand and not gathered batch by batch, which is to its advantage.
"""

import numpy as np
from sklearn.neural_network import MLPClassifier


def prepare(problem):
    recipe = problem.recipe
    X, y = problem.X[problem.order], problem.y[problem.order]
    model = MLPClassifier(
        recipe.model.sizes()[1:-1],
        solver=recipe.optimizer,
        alpha=0.0,
        momentum=0.0,
        nesterovs_momentum=False,  # else it computes every update twice
        batch_size=recipe.batch_size,
        learning_rate_init=recipe.lr,
        epsilon=1e-9,  # of Adam, which adds it before it corrects for starting at zero: the sooner, the more it counts
        shuffle=False,
    )
    few = slice(recipe.batch_size)
    model.partial_fit(X[few], y[few], classes=np.arange(recipe.model.sizes()[-1]))
    given = problem.weights + problem.biases
    for mine, weights in zip(model.coefs_ + model.intercepts_, given, strict=True):
        mine[:] = weights  # the first call made weights of its own, and took a step
    _forget(model._optimizer)
    start = 0

    def steps(n):
        nonlocal start
        rows = n * recipe.batch_size
        start = start if start + rows <= len(X) else 0
        model.partial_fit(X[start : start + rows], y[start : start + rows])
        start += rows
        return model.loss_

    return steps


def _forget(optimizer):
    """Set Adam's state back to the beginning; plain SGD has none."""
    optimizer.t = 0
    for moment in getattr(optimizer, "ms", []) + getattr(optimizer, "vs", []):
        moment[:] = 0
