"""JAX, a scan over steps of many networks: `vmap` makes one step of all of them, each from weights of its own.

Each network trains on an order of its own. Eight steps are unrolled, as in `jax_epoch`. The record
"seeds" asks `python -m experiments.lab.peers.jax_networks SETTINGS`, all in JSON, which measures when asked.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab.bench import GATE_STEPS
from experiments.lab.clock import seconds_of
from experiments.lab.processes import wait_to_be_asked
from mlpkit.training.recipe import Recipe

from . import problem
from .jax_epoch import scan
from .jax_step import make_step, start


def prepare(problems, precision="highest"):
    """Return steps(n), of which each is a step of all networks, and returns their losses (networks, n).

    problems: of one recipe, each from a seed of its own.
    """
    X, y = jnp.asarray(problems[0].X), jnp.asarray(problems[0].y, jnp.int32)
    rows = jnp.asarray(np.stack([problem.rows() for problem in problems], 1), jnp.int32)  # (steps, networks, batch)
    state = jax.tree.map(lambda *parts: jnp.stack(parts), *map(start, problems))
    steps = scan(jax.vmap(make_step(problems[0].recipe, precision), in_axes=(0, None, None, 0)), state, X, y, rows)
    return lambda n: steps(n).T


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    recipe = Recipe.from_dict(settings["recipe"])
    problems = [problem(recipe.but(seed=seed)) for seed in range(settings["networks"])]
    steps, n = prepare(problems), len(problems[0].rows())
    losses = steps(n)[:, :GATE_STEPS].tolist()
    wait_to_be_asked()
    us = [1e6 * seconds_of(steps, n) for _ in range(settings["samples"])]  # of an epoch's full batches
    print(json.dumps({"first_losses": losses, "steps": n, "samples_us": us}))
