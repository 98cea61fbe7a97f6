"""NumPy, one plain script: no classes, no flat vectors. What the package's structure may not cost."""

import numpy as np


def prepare(problem):
    X, y, lr = problem.X, problem.y, problem.recipe.lr
    W1, W2, W3, W4 = (W.copy() for W in problem.weights)
    b1, b2, b3, b4 = (b.copy() for b in problem.biases)
    parameters = W1, b1, W2, b2, W3, b3, W4, b4
    update = adam(parameters) if problem.recipe.optimizer == "adam" else sgd
    batches = problem.batches()

    def steps(n):
        losses = []
        for _ in range(n):
            index = next(batches)
            x, labels = X[index], y[index]
            rows = np.arange(len(x))

            a1 = np.maximum(x @ W1 + b1, 0)
            a2 = np.maximum(a1 @ W2 + b2, 0)
            a3 = np.maximum(a2 @ W3 + b3, 0)
            z = a3 @ W4 + b4

            z -= z.max(axis=1, keepdims=True)
            p = np.exp(z)
            total = p.sum(axis=1, keepdims=True)
            losses.append(np.mean(np.log(total[:, 0]) - z[rows, labels]))
            p /= total
            p[rows, labels] -= 1
            d4 = p / len(x)

            d3 = (d4 @ W4.T) * (a3 > 0)
            d2 = (d3 @ W3.T) * (a2 > 0)
            d1 = (d2 @ W2.T) * (a1 > 0)
            pairs = (x, d1), (a1, d2), (a2, d3), (a3, d4)
            gradients = [gradient for a, d in pairs for gradient in (a.T @ d, d.sum(axis=0))]
            update(parameters, gradients, lr)
        return losses

    return steps


def sgd(parameters, gradients, lr):
    for p, g in zip(parameters, gradients, strict=True):
        p -= lr * g


def adam(parameters, beta1=0.9, beta2=0.999, eps=1e-8):
    state = [(np.zeros_like(p), np.zeros_like(p)) for p in parameters]
    t = 0

    def update(parameters, gradients, lr):
        nonlocal t
        t += 1
        for p, g, (m, v) in zip(parameters, gradients, state, strict=True):
            m += (1 - beta1) * (g - m)
            v += (1 - beta2) * (g * g - v)
            p -= lr / (1 - beta1**t) * m / (np.sqrt(v / (1 - beta2**t)) + eps)

    return update
