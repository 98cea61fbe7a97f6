"""A step at a time: how an engine trains that has no way of its own to do a whole epoch."""

from .crew import Crew

OF_CLASSES = ("softmax_cross_entropy", "hinge")  # losses that compare outputs with labels; the others, with numbers


class StepByStep:
    """Cuts an epoch into batches, gathers each, and takes a step on it. See `protocol.Trainer`.

    Pixels become numbers once, at the beginning, and not again in each epoch. An engine with a faster step overrides
    `step`. Where an engine has `threads`, a `Crew` of them takes the steps.
    """

    def __init__(self, network, optimizer, X, y, batch_size):
        self.network, self.optimizer, self.batch_size = network, optimizer, batch_size
        self.X, self.y = network.as_input(X), y
        threads = getattr(network.engine, "threads", None)
        self.crew = Crew(threads and threads())

    def epoch(self, order):
        """Return the losses of the epoch's steps, a list."""
        n = self.batch_size
        order = self.network.engine.asarray(order)
        losses = []
        with self.crew:
            for index in (order[start : start + n] for start in range(0, len(order), n)):
                losses.append(self.step_on(index))
                self.crew.stepped(len(index) == n)
        return losses

    def step_on(self, index):
        """Take one step on the examples `index`, and return what `step` returns."""
        gather = self.network.engine.gather
        return self.step(gather(self.X, index), gather(self.y, index))

    def step(self, x, labels):
        """Take one step on the batch x, labels (n,), and return its mean loss, a scalar of the engine's.

        The labels are not looked at, which would make a GPU wait: `fit` has checked all of them.
        """
        loss = self.network.forward_backward(x, labels, self.optimizer.steps)
        self.optimizer.step()
        return loss

    def close(self):
        """There is nothing to give back."""


def mlps_only(engine, model):
    """Return None for a plain multilayer perceptron, else the sentence with which `engine`, a name, refuses."""
    if model.sizes():
        return None
    return f"{engine} trains multilayer perceptrons only, with softmax cross-entropy: take another engine."
