"""CUDA, a plan of blocks: layers that follow each other are computed together, in memory that is planned ahead.

For any model. What a block is, and what becomes of layers that no block is made for, see `cuda/blocks`; how the memory
of a step is planned, see `cuda/arena`.
"""

from functools import cache

import cupy as cp

from .cuda.arena import Arena
from .cuda.evaluation import Evaluation as Evaluation
from .cuda.matches import matches_for
from .cuda.plan import Gradient, watched
from .plain import Prediction as Prediction
from .plain import StepByStep
from .plain import why_not as why_not


class Trainer(StepByStep):
    """Trains step by step. See `executors.protocol.Trainer`.

    precision: one of `cuda.blocks.MODES`. arenas: by the size of a batch.
    """

    precision = "float32"

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, y, batch_size)
        self.matches = matches_for(network.dtype)
        self.gradient = cache(self.planned)
        self.arenas, self.memory = {}, None

    def planned(self, n):
        """Return the gradient for batches of n; its arrays are planned then."""
        network, first = self.network, cp.arange(n)
        gradient = Gradient(network, n, self.precision, self.matches)
        x, targets = (network.engine.gather(array, first) for array in (self.X, self.y))  # as a step has them
        loss = cp.empty((), network.dtype)
        self.arenas[n] = Arena(watched(lambda: gradient(x, targets, loss), network.statistics), self.memory)
        self.memory = self.arenas[n].memory
        return gradient

    def step(self, x, targets):
        loss, gradient = cp.empty((), self.network.dtype), self.gradient(len(x))
        self.network.mode.step = self.optimizer.steps
        with self.arenas[len(x)].step():
            gradient(x, targets, loss)
        self.optimizer.step()
        return loss

    def close(self):
        self.arenas.clear()
        self.gradient.cache_clear()
