"""The plainest NumPy: one script, no classes, no flat vectors. What the package's structure may not cost."""

import numpy as np


def prepare(problem):
    X, y, lr = problem.X, problem.y, problem.recipe.lr
    W1, W2, W3, W4 = (W.copy() for W in problem.weights)
    b1, b2, b3, b4 = (b.copy() for b in problem.biases)
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
            layers = (W1, b1, x, d1), (W2, b2, a1, d2), (W3, b3, a2, d3), (W4, b4, a3, d4)
            for W, b, a, d in layers:
                W -= lr * (a.T @ d)
                b -= lr * d.sum(axis=0)
        return losses

    return steps
