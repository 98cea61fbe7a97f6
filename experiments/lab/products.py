"""The matrix products of a training step, as shapes: what BLAS, the loops of an engine and a record all name alike."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from experiments.lab import quiet
from mlpkit.nn.models import MLP


@dataclass(frozen=True)
class Product:
    """A product to time: of a (n, k) and b (k, m). turned: "a" or "b" where that one is the transpose of an array."""

    group: str
    name: str
    n: int
    k: int
    m: int
    turned: str = ""

    @property
    def flops(self):
        """Multiplications and additions."""
        return 2 * self.n * self.k * self.m

    def arrays(self, dtype=np.float32):
        """Return a, b and room for their product, each at a cache line: elsewhere some loops take twice as long."""
        rng = np.random.default_rng(0)
        a, b = (rng.random(shape, dtype) for shape in ((self.n, self.k), (self.k, self.m)))
        a = quiet.at_a_line(a.T).T if self.turned == "a" else quiet.at_a_line(a)
        b = quiet.at_a_line(b.T).T if self.turned == "b" else quiet.at_a_line(b)
        return a, b, quiet.at_a_line(np.zeros((self.n, self.m), dtype))


def of_step(n, model=MLP):
    """Return the products of a step with a batch of n: forward, gradients of weights, of inputs; none of the pixels.

    model: a plain multilayer perceptron, one that has `sizes()`.
    """
    layers = list(enumerate(pairwise(model.sizes()), 1))
    inputs = ["X", *(f"a{layer}" for layer, _ in layers)]
    forward = [Product("step", f"{inputs[i - 1]} W{i}", n, k, m) for i, (k, m) in layers]
    weights = [Product("step", f"{inputs[i - 1]}^T dz{i}", k, n, m, turned="a") for i, (k, m) in layers]
    back = [Product("step", f"dz{i} W{i}^T", n, m, k, turned="b") for i, (k, m) in layers[1:]]
    return forward + weights + back
