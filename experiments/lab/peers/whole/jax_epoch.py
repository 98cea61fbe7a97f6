"""JAX: an epoch a program, with a scan over its full batches, eight of them unrolled, and its last batch after them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab.peers.jax_step import make_step, put, start


class Trainer:
    def __init__(self, problem, rates, precision="highest"):
        self.X, self.y, _ = put(problem)
        self.rates = jnp.asarray(rates, jnp.float32)
        batch_size, step = problem.recipe.batch_size, make_step(problem.recipe, precision)

        @partial(jax.jit, donate_argnums=0)
        def epoch(state, X, y, order, rates):
            full = len(order) // batch_size
            rows = order[: full * batch_size].reshape(full, batch_size)
            batches = rows, rates[:full]
            state, losses = jax.lax.scan(lambda state, batch: step(state, X, y, *batch), state, batches, unroll=8)
            if len(rates) > full:
                state, last = step(state, X, y, order[full * batch_size :], rates[full])
                losses = jnp.append(losses, last)
            return state, losses

        self.epoch = epoch

    def start(self, problem):
        self.state = jax.block_until_ready(start(problem))

    def train(self, orders):
        losses = []
        for order, rates in zip(orders, self.rates, strict=True):
            self.state, found = self.epoch(self.state, self.X, self.y, jnp.asarray(order, jnp.int32), rates)
            losses.append(found)
        return np.asarray(jax.block_until_ready(jnp.concatenate(losses)))

    def parameters(self):
        return [np.asarray(array) for array in self.state[0]]
