"""Training is two nested loops; the rest of this module keeps what was gained when something goes wrong.

`fit` never prints and never plots: it returns a `History`, and hands it to `on_epoch` after every epoch.

The inner loop, over an epoch's batches, is a `Trainer`'s: the engine's own where it has one, else a step at a time (see
`engines.protocol`). A GPU works while the host goes on: so the next epoch's order is drawn, and the validation asked
for, before this epoch's losses are waited for.
"""

import math
import time
from pathlib import Path

import numpy as np

from mlpkit.checks import check_batch, check_count, check_finite
from mlpkit.data import epoch_order
from mlpkit.engines.stepping import StepByStep
from mlpkit.files import check_writable

from .checkpoint import load_checkpoint, save_checkpoint
from .history import Epoch, History

LOOK_EVERY = 0.02  # seconds of steps between two looks at the losses: a look makes a GPU wait


class Diverged(ArithmeticError):
    """A loss or a parameter is no longer a finite number. `history` holds what was recorded until then."""

    def __init__(self, message, history):
        super().__init__(message)
        self.history = history


def fit(
    network,
    optimizer,
    train,
    validation=None,
    *,
    epochs=5,
    batch_size=128,
    seed=0,
    patience=None,
    checkpoints=None,
    resume=False,
    on_epoch=lambda history: None,
):
    """Train `network` with `optimizer` and return the `History`.

    train, validation: pairs (X, y), as `data.load` returns them. seed: of the order of the examples.
    patience: stop after this many epochs without a lower validation loss, and return to the best epoch's parameters.
    checkpoints: a folder, into which every epoch writes `last.npz`, and the best so far `best.npz` (a saved network).
    resume: go on from `last.npz`, on the same path as a run that was never stopped; so the optimizer must be the same,
    its schedule included, which for a falling rate means the same number of epochs.
    on_epoch: is called with the history after every epoch.

    Raises ValueError or TypeError for what can't be trained on, or not by this engine, before the first step. Raises
    Diverged at the first loss that is not finite, or after an epoch that leaves parameters or a validation loss that
    are not; the network then has the parameters from the end of the last good epoch, and the optimizer is spent. Ctrl-C
    ends the run and returns the history so far.
    """
    _check_network(network, optimizer)
    _check_options(epochs, batch_size, seed, patience, validation, checkpoints, resume)
    check_engine(network, optimizer, batch_size)
    X, y = _checked(network, train, "train")
    validation = None if validation is None else _checked(network, validation, "validation")
    run = _Run(network, optimizer, checkpoints, {"batch_size": int(batch_size), "seed": int(seed)})
    if resume:
        run.resume()
    if checkpoints:
        check_writable(run.folder / "last.npz")
    if validation:
        validation = network.as_input(validation[0]), validation[1]  # pixels become numbers once
    if len(run.history.epochs) < epochs and not run.out_of_patience(patience):
        trainer = trainer_of(network, optimizer, X, y, batch_size)
        try:
            run.train(trainer, len(y), epochs, patience, validation, on_epoch)
        except KeyboardInterrupt:
            run.history.stopped = "interrupted"
        finally:
            trainer.close()
    return run.history


def check_engine(network, optimizer, batch_size):
    """Raise ValueError, with the engine's own sentence, where it can't train such a network in such a way."""
    why_not = getattr(network.engine, "why_not", None)
    sentence = why_not and why_not(network.model, optimizer, batch_size)
    if sentence:
        raise ValueError(sentence)


def trainer_of(network, optimizer, X, y, batch_size):
    """Return what trains `network`: the engine's `Trainer`, or one that takes a step at a time. See `engines.protocol`.

    X, y: the engine's arrays. Raises ValueError where the engine can't train so.
    """
    check_engine(network, optimizer, batch_size)
    kind = getattr(network.engine, "Trainer", StepByStep)
    return kind(network, optimizer, X, y, batch_size)


class _Run:
    """One call of `fit`: what it trains, and what it has to show for it."""

    def __init__(self, network, optimizer, folder, settings):
        self.network, self.optimizer = network, optimizer
        self.folder = folder and Path(folder)
        self.settings = settings
        self.history = History()
        self.room = [self.copy() for _ in range(3)]  # for what is good, what is best, and what may become good
        self.good = self.best = self.room[0]

    def copy(self):
        """Return copies of the network's vectors, where they are: on the engine."""
        return [vector.copy() for vector in (self.network.theta, self.network.statistics)]

    def go_back_to(self, kept):
        """Give the network back the vectors that were kept."""
        self.network.theta[:], self.network.statistics[:] = kept

    def resume(self):
        path = self.folder / "last.npz"
        if not path.exists():
            raise FileNotFoundError(f"there is no checkpoint {path} to resume from.")
        self.history, best = load_checkpoint(path, self.network, self.optimizer, self.settings)
        self.history.stopped = "finished"
        asarray = self.network.engine.asarray
        self.room = [self.copy(), [asarray(vector.copy()) for vector in best], self.copy()]
        self.good, self.best = self.room[:2]

    def train(self, trainer, n, epochs, patience, validation, on_epoch):
        """Train until so many epochs are done, or patience runs out. n: of the examples."""
        seed = self.settings["seed"]
        order = epoch_order(n, seed, len(self.history.epochs))
        while len(self.history.epochs) < epochs:
            self.first_step = len(self.history.loss)
            with np.errstate(all="ignore"):  # what overflows is reported once, as Diverged
                for part, is_last in parts_of(order, trainer, self.settings["batch_size"]):
                    engine, begin = self.network.engine, self.network.engine.now()
                    losses = trainer.epoch(part)
                    end = engine.now()
                    if is_last:  # a GPU is at work on these losses; meanwhile:
                        asked = self.ask(validation)
                        if len(self.history.epochs) + 1 < epochs:
                            order = epoch_order(n, seed, len(self.history.epochs) + 1)
                    self.look(engine.to_numpy(losses), len(part), begin, end)
                self.close_epoch(*asked)
            on_epoch(self.history)
            if self.out_of_patience(patience):
                break

    def ask(self, validation):
        """Ask whether all parameters are finite, and what they are worth; return both, and where they are kept."""
        kept = next(room for room in self.room if room is not self.good and room is not self.best)
        kept[0][:], kept[1][:] = self.network.theta, self.network.statistics
        finite = self.network.engine.all_finite(self.network.theta)
        return kept, finite, self.network.ask_evaluation(*validation) if validation else None

    def look(self, losses, samples, begin, end):
        """Record some steps. losses (steps,): of so many samples. Raises Diverged where one is not finite."""
        steps, batch_size = len(losses), self.settings["batch_size"]
        self.history.loss += losses.tolist()
        self.history.samples += [batch_size] * (steps - 1) + [samples - batch_size * (steps - 1)]
        self.history.seconds += [self.network.engine.elapsed(begin, end) / steps] * steps
        wrong = ~np.isfinite(losses)
        if wrong.any():
            first = int(wrong.argmax())
            self.diverged(f"the loss became {losses[first]}", steps - first)

    def diverged(self, what, back=1):
        """Return to the last good parameters and raise Diverged. back: of which step, counted from the last."""
        self.go_back_to(self.good)
        self.history.stopped = "diverged"
        raise Diverged(
            f"{what} in epoch {len(self.history.epochs) + 1}, step "
            f"{len(self.history.loss) - back - self.first_step + 1}, at a learning rate of "
            f"{self.optimizer.schedule(self.optimizer.steps - back):g}: "
            f"try a smaller one (the network has the parameters from before this epoch).",
            self.history,
        )

    def close_epoch(self, kept, finite, evaluation):
        """Look at what the epoch has left, record it, and write the checkpoints."""
        if not bool(finite):  # the last step's loss is from before its update
            self.diverged("a parameter is no longer finite")
        history, first = self.history, self.first_step
        mean = np.average(history.loss[first:], weights=history.samples[first:])
        rate = float(self.optimizer.schedule(self.optimizer.steps - 1))
        epoch = Epoch(rate, float(mean), sum(history.seconds[first:]))
        if evaluation:
            epoch.validation_loss, epoch.validation_accuracy = evaluation()
            if not math.isfinite(epoch.validation_loss):
                self.diverged(f"the validation loss became {epoch.validation_loss}")
        history.epochs.append(epoch)
        self.good = kept
        self.keep()

    def keep(self):
        """Keep the parameters if this epoch is the best so far, and write the checkpoints."""
        is_best = self.history.best_epoch == len(self.history.epochs) - 1
        if is_best:
            self.best = self.good
        if self.folder:
            if is_best:
                self.network.save(self.folder / "best.npz")
            best = [self.network.engine.to_numpy(vector) for vector in self.best]
            path = self.folder / "last.npz"
            save_checkpoint(path, self.network, self.optimizer, self.history, best, self.settings)

    def out_of_patience(self, patience):
        """True once `patience` epochs went by without a better one; then the best parameters are back."""
        epochs = len(self.history.epochs)
        if patience is None or epochs - 1 - self.history.best_epoch < patience:
            return False
        self.go_back_to(self.best)
        self.history.stopped = "early"
        return True


def parts_of(order, trainer, batch_size):
    """Yield an epoch's order in parts of whole batches, each with whether it is the last.

    A trainer of whole epochs gets all at once. One that takes a step at a time gets as many steps as last for some
    LOOK_EVERY seconds: so that a loss that is not finite, or Ctrl-C, costs no more than these, however slow the engine.
    """
    if not isinstance(trainer, StepByStep):
        yield order, True
        return
    start, steps = 0, 1
    while start < len(order):
        end = start + steps * batch_size
        begin = time.perf_counter()
        yield order[start:end], end >= len(order)
        took = time.perf_counter() - begin
        start, steps = end, max(1, min(2 * steps, int(steps * LOOK_EVERY / max(took, 1e-9))))


def _checked(network, pair, name):
    """Return the arrays of a pair (X, y) on the network's engine. Raises ValueError or TypeError for what is none."""
    try:
        X, y = pair
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (X, y), such as data.load().{name}.") from None
    X, y = network.engine.asarray(X), network.engine.asarray(y)
    check_batch(X, network.model.input, network.dtype)
    check_finite("inputs", X)
    network.check_targets(y, len(X))
    return X, y


def _check_network(network, optimizer):
    if optimizer.network is not network:
        raise ValueError("this optimizer was made for another network: make a new one for this network.")
    if not bool(network.engine.all_finite(network.theta)):
        raise ValueError("the network's parameters are no longer finite: make a new network, and a new optimizer.")


def _check_options(epochs, batch_size, seed, patience, validation, checkpoints, resume):
    check_count("epochs", epochs, least=0)
    check_count("batch_size", batch_size)
    check_count("seed", seed, least=0)
    if patience is not None:
        check_count("patience", patience)
        if not validation:
            raise ValueError("patience waits for the validation loss: give fit a validation set too.")
    if resume and not checkpoints:
        raise ValueError("to resume, name the folder of the checkpoints.")
