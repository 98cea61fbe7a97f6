"""Training is two nested loops; the rest of this module keeps what was gained when something goes wrong.

`fit` never prints and never plots: it returns a `History`, and hands it to `on_epoch` after every epoch.

The inner loop, over an epoch's batches, is a `Trainer`'s: the engine's own where it has one, else a step at a time (see
`engines.protocol`). A GPU works while the host goes on: so the validation is asked for, and the next epoch's order is
drawn, before this epoch's losses are waited for. Where nobody wants a word between two epochs, the next one is asked
for as well: then the GPU never waits for the host.
"""

import math
import time
import warnings
from collections import deque
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mlpkit.checks import check_batch, check_count, check_finite, check_flag, check_state_names, check_unmasked
from mlpkit.data import epoch_order
from mlpkit.engines.stepping import StepByStep
from mlpkit.files import check_writable, only_one, set_aside
from mlpkit.nn.norm import BatchNorm

from .checkpoint import NAMES, fingerprint, load_checkpoint, save_checkpoint
from .history import Epoch, History

LOOK_EVERY = 0.02  # seconds of steps between two looks at the losses: a look makes a GPU wait


class Diverged(ArithmeticError):
    """A loss or a parameter is no longer a finite number. `history` holds what was recorded until then."""

    def __init__(self, message, history=None):  # None: pickle gives the message alone, and then what it had
        super().__init__(message)
        self.history = history


def fit(network, optimizer, train, validation=None, *, epochs=5, batch_size=128, seed=0, patience=None,
        checkpoints=None, resume=False, on_epoch=None, augment=None):  # fmt: skip
    """Train `network` with `optimizer` and return the `History`.

    train, validation: pairs (X, y), as `data.load` returns them. seed: of the order of the examples.
    patience: stop after this many epochs without a lower validation loss, and return to the best epoch's parameters.
    checkpoints: a folder, into which every epoch writes `last.npz`, and the best so far `best.npz` (a saved network).
    It is one run's at a time. Those of an earlier run get other names, with a warning, before the first is written; and
    where one can't be written, on a full disk, there is a warning, and the training goes on.
    resume: go on from `last.npz`, on the path of a run that was never stopped: to the bit, if as many threads share the
    sums. So the data must be the same, the optimizer, and its schedule: for a falling rate, the number of epochs, too.
    on_epoch: is called with the history after every epoch, when the network has the parameters of its end. What it
    changes there is in no checkpoint of this epoch.
    augment: is called with train's images and targets, which it can't change, the seed and the epoch's number; the
    images and targets that it returns the epoch sees in their place: as many, alike, and the same again for the same
    seed and epoch. See `data.augment`.

    Raises ValueError or TypeError for what can't be trained on, or not by this engine, and OSError for checkpoints that
    can't be written, or are another run's, before the first step. Raises Diverged at the first loss that is not finite,
    or after an epoch that leaves parameters or a validation loss that are not, or a state of the optimizer, which is
    looked at before it is written, and at the end; the network then has the parameters from the end of the last good
    epoch, and the optimizer is spent. So it is after any other error, such as a schedule's, which then has the history
    so far as its `history`. Ctrl-C ends the run and returns the history so far; a network that was trained in whole
    epochs then has the parameters from the end of the last one in it, and the optimizer is spent.
    """
    _check_network(network, optimizer)
    _check_options(epochs, batch_size, seed, patience, validation, checkpoints, resume, on_epoch, augment)
    check_engine(network, optimizer, batch_size)
    given, (train, validation) = train, _data(network, train, validation, batch_size)
    data_of = augment and partial(augment, *map(_unchangeable, given), int(seed))
    X, y = train
    settings = {"batch_size": int(batch_size), "seed": int(seed), "examples": len(y), "augment": str(augment)}
    run = _Run(network, optimizer, checkpoints, settings)
    with run.in_its_folder(train, validation, data_of, resume) if checkpoints else nullcontext():
        if len(run.history.epochs) < epochs and not run.out_of_patience(patience):
            trainers = _Trainers(network, optimizer, X, y, batch_size, data_of)
            with run.guarded(trainers):
                run.train(trainers, len(y), epochs, patience, validation, on_epoch)
    return run.history


def _unchangeable(images):
    """Return NumPy's images as an array that raises ValueError where somebody writes into it; others as they are."""
    return np.broadcast_to(images, images.shape) if isinstance(images, np.ndarray) else images


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


class _Trainers:
    """The trainer of each epoch: one and the same, or where data change, a new one with its data. It is `now`."""

    def __init__(self, network, optimizer, X, y, batch_size, data_of):
        self.network, self.data, self.data_of, self.now, self.epoch = network, (X, y), data_of, None, None
        self.make = partial(trainer_of, network, optimizer, batch_size=batch_size)

    def of_epoch(self, epoch):
        """Return it. Raises ValueError or TypeError for data that are not as many as they were, or not alike."""
        if not self.now or (self.data_of and epoch != self.epoch):
            if self.now:
                self.now.close()
            X, y = self._changed(epoch) if self.data_of else self.data
            self.now, self.epoch = self.make(X=X, y=y), epoch
        return self.now

    def _changed(self, epoch):
        changed = self.data_of(epoch)
        if not isinstance(changed, tuple) or len(changed) != 2:
            raise TypeError(f"augment must return a pair, images and targets, not a {type(changed).__name__}.")
        names, given = ("images", "targets"), self.data_of.args[:2]
        X, y = (self._like(*each) for each in zip(names, changed, given, self.data, strict=True))
        self.network.check_targets(y, len(y))
        return check_finite("augment's images", X), y

    def _like(self, what, array, given, data):
        if array is given:  # as labels are: the engine has them
            return data
        array = self.network.engine.asarray(check_unmasked(f"augment's {what}", array))
        if array.shape != data.shape or array.dtype != data.dtype:
            raise ValueError(
                f"augment must return {what} like those it gets, {data.dtype} {data.shape}, "
                f"not {array.dtype} {array.shape}."
            )
        return array


def evaluation_of(network, X, y):
    """Return what asks for the loss and the accuracy on X, y: the engine's `Evaluation`, or one operation by operation.

    X, y: the engine's arrays.
    """
    X = network.as_input(X)  # pixels become numbers once
    kind = getattr(network.engine, "Evaluation", None)
    return kind(network, X, y) if kind else partial(network.ask_evaluation, X, y)


@dataclass
class _Asked:
    """What was asked for and need not be there yet: an epoch's last losses, and what the epoch has left.

    found: a function that waits for the losses of so many samples, which were taken between two moments, and for
    whether all parameters are finite. steps: how many the optimizer had counted then. kept: copies of the network's
    vectors. evaluation: a function that waits for the validation.
    """

    found: Any
    samples: int
    moments: tuple[Any, Any]
    steps: int
    kept: list[Any]
    evaluation: Any = None


class _Run:
    """One call of `fit`: what it trains, and what it has to show for it."""

    def __init__(self, network, optimizer, folder, settings):
        self.network, self.optimizer, self.engine = network, optimizer, network.engine
        self.folder = folder and Path(folder)
        self.settings = settings
        self.history = History()
        self.good = self.best = self.copy()
        self.room = [self.good]  # for what is good, what is best, and what may become good

    def copy(self):
        """Return copies of the network's vectors, where they are: on the engine."""
        return [vector.copy() for vector in self.vectors()]

    def vectors(self):
        """Return the network's vectors that training changes; statistics only where it has any."""
        return [vector for vector in (self.network.theta, self.network.statistics) if len(vector)]

    def go_back_to(self, kept):
        """Give the network back the vectors that were kept."""
        for vector, copy in zip(self.vectors(), kept, strict=True):
            vector[:] = copy

    @contextmanager
    def in_its_folder(self, train, validation, data_of, resume):
        """Keep the folder of the checkpoints for this run, which goes on from the last one, or begins anew."""
        last, best = self.folder / "last.npz", self.folder / "best.npz"
        if resume and not last.exists():
            raise FileNotFoundError(f"there is no checkpoint {last} to resume from.")
        check_writable(last)
        check_writable(best)
        check_state_names(self.optimizer, self.optimizer.state, NAMES)
        self.network.model.to_dict()  # raises ValueError where it can't be written
        with only_one(self.folder):
            self.settings |= self.fingerprints(train, validation, data_of and data_of(0))
            if resume:
                self.resume(last)
            self.earlier = () if resume else (last, best)
            yield

    def fingerprints(self, train, validation, changed):
        """Return what tells other data, another order of them, and other changes of them, from these."""
        order = epoch_order(len(train[1]), self.settings["seed"], 0)
        data = {"training data": train, "validation data": validation, "order of the examples": [order]}
        data["first epoch's images"] = changed
        return {name: of and fingerprint(*map(self.engine.to_numpy, of)) for name, of in data.items()}

    def resume(self, path):
        self.history, best = load_checkpoint(path, self.network, self.optimizer, self.settings)
        self.history.stopped = "finished"
        self.good, self.best = self.room = [self.copy(), self.copy()]
        for room, vector in zip(self.best, (vector for vector in best if len(vector)), strict=True):
            room[:] = self.engine.asarray(vector)
        self.go_back_to(self.best)
        self.network.save(self.folder / "best.npz")  # it is written after the other, and a kill may have come between
        self.go_back_to(self.good)

    def train(self, trainers, n, epochs, patience, validation, on_epoch):
        """Train until so many epochs are done, or patience runs out. n: of the examples."""
        nobody_looks = patience is None and self.folder is None and on_epoch is None and not trainers.data_of
        self.first_step, first = len(self.history.loss), len(self.history.epochs)
        self.optimizer.check_rates((epochs - first) * -(-n // self.settings["batch_size"]))
        ahead = int(not isinstance(trainers.of_epoch(first), StepByStep) and nobody_looks)
        asked, evaluate, seed = deque[_Asked](), None, self.settings["seed"]
        order = epoch_order(n, seed, first)
        with np.errstate(all="ignore"):  # what overflows is reported once, as Diverged
            for epoch in range(first, epochs):
                try:
                    in_use, is_last = [each.kept for each in asked], epoch + 1 == epochs
                    asked.append(self.ask(trainers.of_epoch(epoch), order, in_use, is_last))
                except Exception:  # the epoch before may not be in the history yet
                    while asked:
                        self.close_epoch(asked.popleft())
                    raise
                if validation:  # a GPU is at work; meanwhile:
                    evaluate = evaluate or evaluation_of(self.network, *validation)
                    asked[-1].evaluation = evaluate()
                if epoch + 1 < epochs:
                    order = epoch_order(n, seed, epoch + 1)
                while len(asked) > (ahead if epoch + 1 < epochs else 0):
                    self.close_epoch(asked.popleft())
                    if on_epoch:
                        on_epoch(self.history)
                if self.out_of_patience(patience):
                    return

    def ask(self, trainer, order, in_use, is_last):
        """Ask for an epoch, for copies of what it leaves, and whether that is finite."""
        batch_size, state = self.settings["batch_size"], self.optimizer.state.values()
        for part, is_end in parts_of(order, trainer, batch_size):
            begin = self.engine.now()
            losses, steps = trainer.epoch(part), self.optimizer.steps
            moments = begin, self.engine.now()
            if not is_end:
                self.look(self.engine.to_numpy(losses), len(part), moments, steps)
        kept = self.keep_aside([self.good, self.best, *in_use])
        watched = [*self.vectors(), *(state if self.folder or is_last else ())]
        found = self.engine.fetch(losses, *map(self.engine.all_finite, watched))
        return _Asked(found, len(part), moments, steps, kept)

    def keep_aside(self, in_use):
        """Return copies of the network's vectors, in room that is not in use, or that is made."""
        for kept in self.room:
            if not any(kept is used for used in in_use):
                for copy, vector in zip(kept, self.vectors(), strict=True):
                    copy[:] = vector
                return kept
        self.room.append(self.copy())
        return self.room[-1]

    def look(self, losses, samples, moments, steps):
        """Record some steps: see `_Asked`. Raises Diverged at the first loss that is not finite."""
        self.steps, count, batch_size = steps, len(losses), self.settings["batch_size"]
        self.history.loss += losses.tolist()
        self.history.samples += [batch_size] * (count - 1) + [samples - batch_size * (count - 1)]
        self.history.seconds += [self.engine.elapsed(*moments) / count] * count
        wrong = ~np.isfinite(losses)
        if wrong.any():
            first = int(wrong.argmax())
            untrained = len(self.history.loss) - count + first == 0  # so the rate is not to blame
            advice = "scale the inputs, or begin with smaller weights" if untrained else "try a smaller one"
            self.diverged(f"the loss became {losses[first]}", count - first, advice)

    @contextmanager
    def guarded(self, trainers):
        """Let what follows end as `fit` says, whatever comes: Ctrl-C or an error."""
        try:
            yield
        except KeyboardInterrupt:  # what was asked for ahead, and is not in the history, did not happen
            self.history.stopped = "interrupted"
            if not isinstance(trainers.now, StepByStep):
                self.go_back_to(self.good)
        except Diverged:
            raise
        except Exception as error:
            self.history.stopped = "failed"
            vars(error)["history"] = self.history
            with suppress(Exception):  # its device may be lost
                self.go_back_to(self.good)
            raise
        finally:
            if trainers.now:
                trainers.now.close()

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

    def close_epoch(self, asked):
        """Look at an epoch's last losses and at what it has left, record it, and write the checkpoints."""
        losses, *finite = asked.found()
        self.look(losses, asked.samples, asked.moments, asked.steps)
        if not all(finite[: len(self.good)]):  # the last step's loss is from before its update
            self.diverged("a parameter is no longer finite")
        if not all(finite):
            self.diverged("the optimizer's state is no longer finite", advice="try smaller inputs, or a smaller rate")
        history, first = self.history, self.first_step
        mean = np.average(history.loss[first:], weights=history.samples[first:])
        epoch = Epoch(float(self.optimizer.schedule(self.steps - 1)), float(mean), sum(history.seconds[first:]))
        if asked.evaluation:
            epoch.validation_loss, epoch.validation_accuracy = asked.evaluation()
            if not math.isfinite(epoch.validation_loss):
                self.diverged(f"the validation loss became {epoch.validation_loss}")
        self.good, self.first_step = asked.kept, len(history.loss)
        history.epochs.append(epoch)
        self.keep()

    def keep(self):
        """Keep the parameters if this epoch is the best so far, and write the checkpoints."""
        is_best = self.history.best_epoch == len(self.history.epochs) - 1
        if is_best:
            self.best = self.good
        if self.folder:
            try:
                self.write(is_best)
            except OSError as error:  # what has been learned is worth more than its copy
                warnings.warn(f"{str(error).rstrip('.')}; the training goes on.", RuntimeWarning, stacklevel=5)

    def write(self, is_best):
        """Write the checkpoints: first the one that has all, and that tells a run from none."""
        for aside in filter(None, map(set_aside, self.earlier)):
            warnings.warn(f"an earlier run's checkpoint is now {aside}.", RuntimeWarning, stacklevel=6)
        self.earlier = ()
        best = [self.engine.to_numpy(vector) for vector in self.best]
        best += [best[0][:0]] * (2 - len(best))  # no statistics
        save_checkpoint(self.folder / "last.npz", self.network, self.optimizer, self.history, best, self.settings)
        if is_best:
            self.network.save(self.folder / "best.npz")

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


def _data(network, train, validation, batch_size):
    """Return both pairs on the network's engine, once they are checked; validation: None where there is none."""
    train = _arrays(network, train, "train")
    _check_norms(network.model, min(batch_size, len(train[1])))
    validation = None if validation is None else _arrays(network, validation, "validation")
    _check_numbers(network, [train, validation] if validation else [train])
    return train, validation


def _arrays(network, pair, name):
    """Return the arrays of a pair (X, y) on the network's engine. Raises ValueError or TypeError for what is none."""
    try:
        X, y = pair
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a pair (X, y), such as data.load().{name}.") from None
    X, y = map(network.engine.asarray, check_unmasked(name, (X, y)))
    check_batch(X, network.model.input, network.dtype)
    network.check_targets(y, len(X), form_only=True)
    return X, y


def _check_numbers(network, pairs):
    """Raise ValueError for parameters, inputs or targets that are not as they should be.

    A GPU is asked about all of them, and waited for once; what is wrong is looked at again, for the sentence.
    """
    engine = network.engine
    checks = [(engine.all_finite(network.theta), _refuse_parameters)]
    for X, y in pairs:
        if X.dtype != np.uint8:
            checks.append((engine.all_finite(X), partial(check_finite, "inputs", X)))
        checks.append((network.passes(y), partial(network.check_targets, y, len(X))))
    for passed, (_, check) in zip(engine.fetch(*(passed for passed, _ in checks))(), checks, strict=True):
        if not passed:
            check()


def _refuse_parameters():
    raise ValueError("the network's parameters are no longer finite: make a new network, and a new optimizer.")


def _check_network(network, optimizer):
    if not hasattr(optimizer, "network"):
        raise TypeError(f"optimizer must be an optimizer, such as SGD(network, 0.1), not {optimizer!r}.")
    if optimizer.network is not network:
        raise ValueError("this optimizer was made for another network: make a new one for this network.")
    if not len(network.theta):
        raise ValueError("this model has no parameters, so there is nothing to train: give it a layer such as Linear.")


def _check_norms(model, n):
    """Raise ValueError where a channel has one number in a batch of n: it is its own mean, and nothing is left."""
    for _, layer, shape, _ in model.places:
        if isinstance(layer, BatchNorm) and n * prod(shape[1:]) == 1:
            raise ValueError("a BatchNorm learns nothing from a batch of one row: train on batches of at least 2.")


def _check_options(epochs, batch_size, seed, patience, validation, checkpoints, resume, on_epoch, augment):
    check_count("epochs", epochs, least=0)
    check_count("batch_size", batch_size)
    check_count("seed", seed, least=0)
    if patience is not None:
        check_count("patience", patience)
        if validation is None:
            raise ValueError("patience waits for the validation loss: give fit a validation set too.")
    if on_epoch is not None and not callable(on_epoch):
        raise TypeError(f"on_epoch must be a function of the history, not {on_epoch!r}.")
    if augment is not None and not callable(augment):
        raise TypeError(f"augment must be such as Augmentation, (images, targets, seed, epoch), not {augment!r}.")
    check_flag("resume", resume)
    if resume and checkpoints is None:
        raise ValueError("to resume, name the folder of the checkpoints.")
    if checkpoints is not None and not (isinstance(checkpoints, str | PathLike) and checkpoints != ""):
        raise ValueError(f"checkpoints names no folder, but is {checkpoints!r}; for this one, give '.'.")
