"""L-BFGS: the last few steps and changes of the gradient tell how the loss bends, and so how far to go.

Nocedal and Wright (2006), "Numerical optimization", algorithms 7.4 and 7.5, with a search that halves the step until
the loss falls enough (Armijo). Gatys, Ecker and Bethge (2016) paint with it.
"""

from collections import deque


def direction(grad, pairs):
    """Return `-H grad`: H, the inverse of how the loss bends, is told by pairs (s, y), the oldest first.

    s: a step. y: how the gradient changed with it. Without pairs H is 1.
    """
    q, kept = -grad, []
    for s, y in reversed(pairs):
        share = dot(s, q) / dot(s, y)
        q = q - share * y
        kept.append(share)
    if pairs:
        s, y = pairs[-1]
        q = dot(s, y) / dot(y, y) * q
    for (s, y), share in zip(pairs, reversed(kept), strict=True):
        q = q + (share - dot(y, q) / dot(s, y)) * s
    return q


def dot(a, b):
    return float((a * b).sum())


def lbfgs(network, x, targets, steps, memory=10, first=0.05):
    """Yield the loss after each step on a network's parameters. first: the most that the first moves one.

    A step asks for the loss once or more often: it ends where no part of a step lowers the loss any more.
    """
    theta = network.theta
    pairs: deque = deque(maxlen=memory)
    loss, grad = float(network.forward_backward(x, targets)), network.grad.copy()
    for _ in range(steps):
        d = direction(grad, list(pairs))
        size = 1.0 if pairs else first / float(abs(d).max())
        before, slope = theta.copy(), dot(grad, d)
        for _ in range(20):
            theta[:] = before + size * d
            value = float(network.forward_backward(x, targets))
            if value <= loss + 1e-4 * size * slope:
                break
            size /= 2
        else:
            theta[:] = before
            return
        s, y = theta - before, network.grad - grad
        if dot(s, y) > 1e-10 * dot(y, y):  # else the loss bends the other way here
            pairs.append((s, y))
        loss, grad = value, network.grad.copy()
        yield loss
