"""Training is two nested loops; the rest of this module keeps what was gained when something goes wrong.

`fit` never prints and never plots: it returns a `History`, and hands it to `on_epoch` after every epoch.

An engine may do the inner part in its own way, by exporting one of two functions, which are looked up once a run:

    train_step(network, optimizer, x, labels) -> loss
    train_epoch(network, optimizer, X, y, order, batch_size) -> losses, one a step

Either one counts its steps in `optimizer.steps`.
"""

import math
import time
from functools import partial
from pathlib import Path

import numpy as np

from mlpkit.checks import check_batch, check_count, check_finite, check_labels
from mlpkit.data import batches, epoch_order
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

    Raises ValueError or TypeError for what can't be trained on, before the first step. Raises Diverged at the first
    loss that is not finite, or after an epoch that leaves parameters or a validation loss that are not; the network
    then has the parameters from the end of the last good epoch, and the optimizer is spent. Ctrl-C ends the run and
    returns the history so far.
    """
    _check_network(network, optimizer)
    X, y = train = _to_engine(network.engine, train, "train")
    validation = None if validation is None else _to_engine(network.engine, validation, "validation")
    _check(network, train, validation, epochs, batch_size, seed, patience, checkpoints, resume)
    run = _Run(network, optimizer, checkpoints, {"batch_size": int(batch_size), "seed": int(seed)})
    if resume:
        run.resume()
    if checkpoints:
        check_writable(run.folder / "last.npz")
    try:
        while not run.out_of_patience(patience) and len(run.history.epochs) < epochs:
            order = epoch_order(len(y), seed, len(run.history.epochs))
            with np.errstate(all="ignore"):  # what overflows is reported once, as Diverged
                run.epoch(X, y, order, batch_size)
                run.close_epoch(validation)
            on_epoch(run.history)
    except KeyboardInterrupt:
        run.history.stopped = "interrupted"
    return run.history


def train_step(network, optimizer, x, labels):
    """Take one step on the batch x (n, inputs), labels (n,), and return its mean loss.

    The labels are not looked at, which would make a GPU wait: `fit` checks all of them before the first step.
    """
    logits = network.forward(x)
    loss, dlogits = network.engine.softmax_cross_entropy(logits, labels)
    network.backward(dlogits)
    optimizer.step()
    return loss


class _Run:
    """One call of `fit`: what it trains, and what it has to show for it."""

    def __init__(self, network, optimizer, folder, settings):
        self.network, self.optimizer = network, optimizer
        self.folder = folder and Path(folder)
        self.settings = settings
        self.history = History()
        self.steps_of_epoch = epoch_runner(network.engine)
        self.good_theta = self.best_theta = self.theta()

    def theta(self):
        return self.network.engine.to_numpy(self.network.theta).copy()

    def resume(self):
        path = self.folder / "last.npz"
        if not path.exists():
            raise FileNotFoundError(f"there is no checkpoint {path} to resume from.")
        self.history, self.best_theta = load_checkpoint(path, self.network, self.optimizer, self.settings)
        self.history.stopped = "finished"
        self.good_theta = self.theta()

    def epoch(self, X, y, order, batch_size):
        """Train on all examples once; keep the losses, and look at them every now and then."""
        engine = self.network.engine
        self.first_step = len(self.history.loss)
        order = engine.asarray(order)
        start = time.perf_counter()
        for losses, samples in self.steps_of_epoch(self.network, self.optimizer, X, y, order, batch_size):
            losses = engine.to_numpy(losses)
            engine.synchronize()
            self.look(losses.tolist(), samples, time.perf_counter() - start)
            start = time.perf_counter()
        if not np.isfinite(self.theta()).all():  # the last step's loss is from before its update
            self.diverged("a parameter is no longer finite")

    def look(self, losses, samples, seconds):
        """Record some steps. Raises Diverged at the first loss that is not finite."""
        self.history.loss += losses
        self.history.samples += samples
        self.history.seconds += [seconds / len(losses)] * len(losses)
        for back, loss in zip(range(len(losses), 0, -1), losses, strict=True):
            if not math.isfinite(loss):
                self.diverged(f"the loss became {loss}", back)

    def diverged(self, what, back=1):
        """Return to the last good parameters and raise Diverged. back: of which step, counted from the last."""
        self.network.set_theta(self.good_theta)
        self.history.stopped = "diverged"
        raise Diverged(
            f"{what} in epoch {len(self.history.epochs) + 1}, step "
            f"{len(self.history.loss) - back - self.first_step + 1}, at a learning rate of "
            f"{self.optimizer.schedule(self.optimizer.steps - back):g}: "
            f"try a smaller one (the network has the parameters from before this epoch).",
            self.history,
        )

    def close_epoch(self, validation):
        """Validate, record the epoch, and write the checkpoints."""
        history, first = self.history, self.first_step
        mean = np.average(history.loss[first:], weights=history.samples[first:])
        epoch = Epoch(self.optimizer.schedule(self.optimizer.steps - 1), float(mean), sum(history.seconds[first:]))
        if validation:
            epoch.validation_loss, epoch.validation_accuracy = self.network.evaluate(*validation)
            if not math.isfinite(epoch.validation_loss):
                self.diverged(f"the validation loss became {epoch.validation_loss}")
        history.epochs.append(epoch)
        self.good_theta = self.theta()
        self.keep()

    def keep(self):
        """Keep the parameters if this epoch is the best so far, and write the checkpoints."""
        is_best = self.history.best_epoch == len(self.history.epochs) - 1
        if is_best:
            self.best_theta = self.good_theta
        if self.folder:
            if is_best:
                self.network.save(self.folder / "best.npz")
            save_checkpoint(
                self.folder / "last.npz",
                self.network,
                self.optimizer,
                self.history,
                self.best_theta,
                self.settings,
            )

    def out_of_patience(self, patience):
        """True once `patience` epochs went by without a better one; then the best parameters are back."""
        epochs = len(self.history.epochs)
        if patience is None or epochs - 1 - self.history.best_epoch < patience:
            return False
        self.network.set_theta(self.best_theta)
        self.history.stopped = "early"
        return True


def epoch_runner(engine):
    """Return the function that yields (losses, samples) of some steps at a time, until the epoch is over."""
    if hasattr(engine, "train_epoch"):
        return partial(_whole_epoch, engine.train_epoch)
    return partial(_step_by_step, getattr(engine, "train_step", train_step))


def _step_by_step(train_step, network, optimizer, X, y, order, batch_size):
    gather = network.engine.gather
    losses, samples, looked = [], [], time.perf_counter()
    for index in batches(order, batch_size):
        losses.append(train_step(network, optimizer, gather(X, index), gather(y, index)))
        samples.append(len(index))
        if time.perf_counter() - looked > LOOK_EVERY:
            yield losses, samples
            losses, samples, looked = [], [], time.perf_counter()
    if losses:
        yield losses, samples


def _whole_epoch(train_epoch, network, optimizer, X, y, order, batch_size):
    losses = train_epoch(network, optimizer, X, y, order, batch_size)
    yield losses, [len(index) for index in batches(order, batch_size)]


def _to_engine(engine, pair, name):
    try:
        X, y = pair
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (X, y), such as data.load().{name}.") from None
    return engine.asarray(X), engine.asarray(y)


def _check_network(network, optimizer):
    if optimizer.network is not network:
        raise ValueError("this optimizer was made for another network: make a new one for this network.")
    if not np.isfinite(network.engine.to_numpy(network.theta)).all():
        raise ValueError("the network's parameters are no longer finite: make a new network, and a new optimizer.")


def _check(network, train, validation, epochs, batch_size, seed, patience, checkpoints, resume):
    check_count("epochs", epochs, least=0)
    check_count("batch_size", batch_size)
    check_count("seed", seed, least=0)
    for X, y in (train, validation) if validation else (train,):
        check_batch(X, network.sizes[0], network.dtype)
        check_finite("inputs", X)
        check_labels(y, len(X), network.sizes[-1])
    if patience is not None:
        check_count("patience", patience)
        if not validation:
            raise ValueError("patience waits for the validation loss: give fit a validation set too.")
    if resume and not checkpoints:
        raise ValueError("to resume, name the folder of the checkpoints.")
