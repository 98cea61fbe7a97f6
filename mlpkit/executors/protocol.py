"""What an executor's module exports beside `why_not`, each by its name. See `executors`."""

from typing import Any, Protocol

from mlpkit.engines.protocol import Array


class Evaluation(Protocol):
    """Tells what a network is worth on one data set, again and again; is made as `Evaluation(network, X, y)`."""

    def __call__(self) -> Any:
        """Ask for the mean "loss" and the loss's metrics, with the parameters of now; return a function that waits.

        It returns them, a dict by name.
        """


class Prediction(Protocol):
    """A network's predictions, compiled for batches of at most n rows; is made as `Prediction(network, n)`.

    Parameters and running statistics are those of the moment when it is made: after more training it has to be made
    again. Raises TypeError or ValueError where n is no whole number from 1 on.
    """

    def __call__(self, x: Any) -> Array:
        """Return the outputs (m, *output) of m <= n rows, a new array: x as for `Network.forward`.

        Of NumPy's rows they are NumPy's, and there; of the engine's they are its own, and it may still be at work on
        them. Raises ValueError or TypeError for rows of another shape or type, more than n, and NaN or infinity.
        """

    def batch(self, dtype: Any) -> Any:
        """Return an object for servers and clocks, which look at no number: its `x` and `z` stay where they are.

        x (n, *input) of dtype, uint8 or the network's; z (n, *output). `fill(rows)` copies rows of x's type into x,
        zeros behind them, and refuses others as a call does; `replay()` asks for z of what lies in x. Raises TypeError
        for another dtype. Of all batches one at a time may be under way: they may share what lies between x and z.
        """


class Trainer(Protocol):
    """Trains a network, an epoch at a time; owns all that lasts between epochs: graphs, buffers, what blocks exchange.

    It is made as `Trainer(network, optimizer, X, y, batch_size)`: X and y are the engine's arrays, checked already, X
    as the network computes or uint8 pixels. The module's `why_not(model, optimizer, batch_size)` was asked before, and
    returned None and not the sentence that says why the engine can't.
    """

    def epoch(self, order: Any) -> Any:
        """Take a step on each batch of the examples that `order` (n,) names, at most all; return a loss a step.

        order: on the host, or an array of the engine's. A GPU may still be at work on the losses.
        """

    def close(self) -> None:
        """Give back what the trainer holds."""
