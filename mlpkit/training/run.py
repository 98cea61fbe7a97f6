"""One call of `fit`: what it has to show for itself, and what it keeps in case that something goes wrong.

A GPU works while the host goes on: so the validation is asked for, and the next epoch's order is drawn, before this
epoch's losses are waited for. Where nobody wants a word between two epochs, the next one is asked for as well: then the
GPU never waits for the host.
"""

import math
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlpkit import executors
from mlpkit.data import epoch_order
from mlpkit.executors.plain import StepByStep

from .diverged import Diverged
from .history import Epoch, History

LOOK_EVERY = 0.02  # seconds of steps between two looks at the losses: a look makes a GPU wait


@dataclass
class _Asked:
    """What was asked for and need not be there yet: an epoch's last losses, and what the epoch has left.

    found: a function that waits for the losses of so many samples, which were taken between two timestamps, and for
    whether all parameters are finite. steps: how many the optimizer had counted then. kept: copies of the network's
    vectors. evaluation: a function that waits for the validation.
    """

    found: Any
    samples: int
    timestamps: tuple[Any, Any]
    steps: int
    kept: list[Any]
    evaluation: Any = None


class Run:
    """What `fit` trains, its history, and copies of the network's vectors: `good` ones, and the `best`."""

    def __init__(self, network, optimizer, validation, settings):
        self.network, self.optimizer, self.engine = network, optimizer, network.engine
        self.validation, self.settings = validation, settings
        self.history, self.folder, self.asked, self.evaluate = History(), None, deque[_Asked](), None
        self.good = self.best = self.copy()
        self.buffers = [self.good]  # for what is good, what is best, and what may become good

    @contextmanager
    def guarded(self, trainers, epochs, hurried):
        """Let the loop end as `fit` says, whatever comes: Ctrl-C or an error.

        hurried: whether nobody wants a word between two epochs.
        """
        self.first_step, self.epochs, self.trainers = len(self.history.loss), epochs, trainers
        self.hurried = hurried
        try:
            with np.errstate(all="ignore"):  # what overflows is reported once, as Diverged
                yield
        except KeyboardInterrupt:  # what was asked for ahead, and is not in the history, did not happen
            self.history.stopped = "interrupted"
            if not isinstance(trainers.now, StepByStep):
                self.go_back_to(self.good)
        except Diverged:
            raise
        except Exception as error:
            with suppress(OSError, RuntimeError):  # its device may be lost
                self.settle(0)  # the epoch before may not be in the history yet
            self.history.stopped = "failed"
            vars(error)["history"] = self.history
            with suppress(Exception):
                self.go_back_to(self.good)
            raise
        finally:
            trainers.close()

    def left(self, patience):
        """Yield the numbers of the epochs that are to be done, as long as there is patience."""
        for epoch in range(first := len(self.history.epochs), self.epochs):
            if self.out_of_patience(patience):
                return
            if epoch == first:
                self.begin(epoch)
            yield epoch
        self.out_of_patience(patience)

    def begin(self, first):
        """Make what trains the first epoch of this run. Raises ValueError where no rate would change anything."""
        n = self.settings["examples"]
        self.optimizer.check_rates((self.epochs - first) * -(-n // self.settings["batch_size"]))
        if self.validation:  # first: what it needs is compiled beside what the trainer needs
            self.evaluate = executors.of(self.engine).Evaluation(self.network, *self.validation)
        trainer = self.trainers.of_epoch(first)
        self.ahead = int(self.hurried and not isinstance(trainer, StepByStep))
        self.order = epoch_order(n, self.settings["seed"], first)

    def parts_of(self, epoch, trainer):
        """Yield an epoch's order in parts of whole batches, of which `took` records the losses.

        A trainer of whole epochs gets all at once. One that takes a step at a time gets as many steps as last for some
        LOOK_EVERY seconds: so that a loss that is not finite, or Ctrl-C, costs no more, however slow the engine.
        """
        batch_size, order, steps = self.settings["batch_size"], self.order, 1
        start, most = 0, len(order) if not isinstance(trainer, StepByStep) else 0
        while start < len(order):
            end = start + max(most, steps * batch_size)
            self.is_last, begin = end >= len(order), time.perf_counter()
            self.began = self.engine.now()
            yield order[start:end]
            took = time.perf_counter() - begin
            start, steps = end, max(1, min(2 * steps, int(steps * LOOK_EVERY / max(took, 1e-9))))

    def took(self, losses, samples):
        """Record the losses of so many samples; of an epoch's last part later, when the GPU is asked for more."""
        of = samples, (self.began, self.engine.now()), self.optimizer.steps
        if self.is_last:
            self.last = losses, of
        else:
            self.look(self.engine.to_numpy(losses), *of)

    def ended(self, epoch, on_epoch):
        """Ask for what an epoch leaves, and for its validation; close those before it that nobody need wait for."""
        is_last, (losses, of) = epoch + 1 == self.epochs, self.last
        kept = self.keep_aside()
        state = self.optimizer.state.values() if self.folder or is_last else ()
        found = self.engine.fetch(losses, *map(self.engine.all_finite, (*self.vectors(), *state)))
        self.asked.append(_Asked(found, *of, kept))
        if self.evaluate:  # a GPU is at work; meanwhile:
            self.asked[-1].evaluation = self.evaluate()
        if not is_last:
            self.order = epoch_order(self.settings["examples"], self.settings["seed"], epoch + 1)
        self.settle(0 if is_last else self.ahead, on_epoch)

    def settle(self, ahead, on_epoch=None):
        """Wait for the epochs that were asked for, all but so many, and close them."""
        while len(self.asked) > ahead:
            self.close_epoch(self.asked.popleft())
            if on_epoch:
                on_epoch(self.history)

    def out_of_patience(self, patience):
        """True once `patience` epochs went by without a better one; then the best parameters are back."""
        epochs = len(self.history.epochs)
        if patience is None or epochs - 1 - self.history.best_epoch < patience:
            return False
        self.go_back_to(self.best)
        self.history.stopped = "early"
        return True

    # What is recorded

    def look(self, losses, samples, timestamps, steps):
        """Record some steps: see `_Asked`. Raises Diverged at the first loss that is not finite."""
        self.steps, count, batch_size = steps, len(losses), self.settings["batch_size"]
        self.history.loss += losses.tolist()
        self.history.samples += [batch_size] * (count - 1) + [samples - batch_size * (count - 1)]
        self.history.seconds += [self.engine.elapsed(*timestamps) / count] * count
        wrong = ~np.isfinite(losses)
        if wrong.any():
            first = int(wrong.argmax())
            untrained = len(self.history.loss) - count + first == 0  # so the rate is not to blame
            advice = "scale the inputs, or begin with smaller weights" if untrained else "try a smaller one"
            self.diverged(f"the loss became {losses[first]}", count - first, advice)

    def close_epoch(self, asked):
        """Look at an epoch's last losses and at what it has left, record it, and write the checkpoints."""
        losses, *finite = asked.found()
        self.look(losses, asked.samples, asked.timestamps, asked.steps)
        if not all(finite[: len(self.good)]):  # the last step's loss is from before its update
            self.diverged("a parameter is no longer finite")
        if not all(finite):
            self.diverged("the optimizer's state is no longer finite", advice="try smaller inputs, or a smaller rate")
        history, first = self.history, self.first_step
        mean = np.average(history.loss[first:], weights=history.samples[first:])
        epoch = Epoch(float(self.optimizer.schedule(self.steps - 1)), float(mean), sum(history.seconds[first:]))
        if asked.evaluation:
            epoch.validation = asked.evaluation()
            if not math.isfinite(epoch.validation["loss"]):
                self.diverged(f"the validation loss became {epoch.validation['loss']}")
        self.good, self.first_step = asked.kept, len(history.loss)
        history.epochs.append(epoch)
        is_best = history.best_epoch == len(history.epochs) - 1
        if is_best:
            self.best = self.good
        if self.folder:
            self.folder.keep(is_best)

    def diverged(self, what, back=1, advice="try a smaller one"):
        """Return to the last good parameters and raise Diverged. back: of which step, counted from the last."""
        self.go_back_to(self.good)
        self.history.stopped = "diverged"
        raise Diverged(
            f"{what} in epoch {len(self.history.epochs) + 1}, step "
            f"{len(self.history.loss) - back - self.first_step + 1}, at a learning rate of "
            f"{self.optimizer.schedule(self.steps - back):g}: "
            f"{advice} (the network has the parameters from before this epoch).",
            self.history,
        )

    # Copies of the network's vectors, where they are: on the engine

    def copy(self):
        return [vector.copy() for vector in self.vectors()]

    def vectors(self):
        """Return the network's vectors that training changes; statistics only where it has any."""
        return [vector for vector in (self.network.theta, self.network.statistics) if len(vector)]

    def go_back_to(self, kept):
        """Give the network back the vectors that were kept."""
        for vector, copy in zip(self.vectors(), kept, strict=True):
            vector[:] = copy

    def keep_aside(self):
        """Return copies of the network's vectors, in buffers that are not in use, or that are made."""
        in_use = [self.good, self.best, *(each.kept for each in self.asked)]
        for kept in self.buffers:
            if not any(kept is used for used in in_use):
                for copy, vector in zip(kept, self.vectors(), strict=True):
                    copy[:] = vector
                return kept
        self.buffers.append(self.copy())
        return self.buffers[-1]
