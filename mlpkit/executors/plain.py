"""A step, a batch, an operation at a time: what every engine can do. Others take over what they don't change."""

import numpy as np

from mlpkit.checks import check_array, check_batch, check_count, check_finite

from .team import ThreadTeam


def why_not(model, optimizer, batch_size):
    """Return None: any model will do. See `executors`."""


class StepByStep:
    """Cuts an epoch into batches, gathers each, and takes a step on it. See `executors.protocol.Trainer`.

    Pixels become floats once, at the beginning, and not again in each epoch. An executor with a faster step overrides
    `step`. Where an engine has `threads`, a `ThreadTeam` of them takes the steps.
    """

    def __init__(self, network, optimizer, X, y, batch_size):
        self.network, self.optimizer, self.batch_size = network, optimizer, batch_size
        self.X, self.y, self.layers = network.as_input(X), y, network.layers
        threads = getattr(network.engine, "threads", None)
        self.team = ThreadTeam(threads and threads())

    def epoch(self, order):
        """Return the losses of the epoch's steps, a list."""
        n = self.batch_size
        order = self.network.engine.asarray(order)
        losses = []
        with self.team:
            for index in (order[start : start + n] for start in range(0, len(order), n)):
                losses.append(self.step_on(index))
                self.team.stepped(len(index) == n)
        return losses

    def step_on(self, index):
        """Take one step on the examples `index`, and return what `step` returns."""
        gather = self.network.engine.gather
        return self.step(gather(self.X, index), gather(self.y, index))

    def step(self, x, targets):
        """Take one step on the batch x, targets, and return its mean loss, a scalar of the engine's.

        The targets are not looked at, which would make a GPU wait: `fit` has checked all of them.
        """
        loss = self.network.forward_backward(x, targets, self.optimizer.steps, self.layers)
        self.optimizer.step()
        return loss

    def close(self):
        """There is nothing to give back."""


Trainer = StepByStep


class Evaluation:
    """What a network is worth on X, y, batch by batch. See `executors.protocol.Evaluation`."""

    def __init__(self, network, X, y):
        self.network, self.X, self.y = network, network.as_input(X), y  # pixels become floats once

    def __call__(self):
        return self.network.ask_evaluation(self.X, self.y)


class Prediction:
    """A folded copy of a network, that several threads may ask at once. See `executors.protocol.Prediction`."""

    def __init__(self, network, n, precision=None, calibration=None):
        from mlpkit.nn.fold import fold  # a training needs none

        from .integers import forward_of

        self.n, self.network = check_count("n", n), fold(network)
        self.forward = forward_of(self.network, precision, calibration)

    def __call__(self, x):
        network = self.network
        check_batch(x, network.model.input, network.dtype)
        check_fits(x, self.n)
        check_finite("inputs", x)  # of NaN the largest output is the first one: it would pass for a prediction
        outputs = self.forward(network.engine.asarray(x))
        return network.engine.to_numpy(outputs) if isinstance(x, np.ndarray) else outputs

    def batch(self, dtype):
        """Return a `Batch` for uint8 pixels, or for values of the network's dtype."""
        dtype = np.dtype(dtype)
        if dtype not in (np.uint8, self.network.dtype):
            raise TypeError(f"inputs are uint8 or {self.network.dtype}, not {dtype}: convert them.")
        return Batch(self, dtype)


class Batch:
    """Where n rows lie, x (n, *input), and their outputs, z (n, *output). See `executors.protocol.Prediction.batch`."""

    def __init__(self, prediction, dtype):
        network, n = prediction.network, prediction.n
        self.network, self.forward = network, prediction.forward
        self.x = network.engine.asarray(np.zeros((n, *network.model.input), dtype))
        self.z = network.engine.asarray(np.zeros((n, *network.model.output), network.dtype))

    def fill(self, x):
        """Copy m <= n rows into x; what lies behind them becomes zeros. Errors: see `check_rows`."""
        check_rows(x, self.x)
        self.x[: len(x)] = self.network.engine.asarray(x).reshape(len(x), *self.x.shape[1:])
        self.x[len(x) :] = 0

    def replay(self):
        """Compute z of what lies in x."""
        self.z[...] = self.forward(self.x)


def check_rows(x, batch):
    """Raise ValueError or TypeError for rows that are not a batch's, in shape or dtype, or more than fit into it."""
    check_array("inputs", x)
    if x.dtype != batch.dtype:  # values from 0 to 1 would become bytes 0, and bytes values up to 255
        raise TypeError(f"this batch is of {batch.dtype}, not {x.dtype}: convert them, or take another batch.")
    check_batch(x, batch.shape[1:], batch.dtype)
    check_fits(x, len(batch))


def check_fits(x, n):
    """Raise ValueError for more than n rows."""
    if len(x) > n:
        raise ValueError(
            f"this prediction was compiled for at most {n} rows at a time, not {len(x)}: "
            "give fewer, or compile it for more."
        )


def mlps_only(engine, model):
    """Return None for a plain multilayer perceptron, else the sentence with which `engine`, a name, refuses."""
    if model.sizes():
        return None
    return f"{engine} trains multilayer perceptrons only, with softmax cross-entropy: take another engine."
