"""Training is two nested loops. What is kept when something goes wrong stands beside them: `run`, `folder`, `refusals`.

`fit` never prints and never plots: it returns a `History`, and hands it to `on_epoch` after every epoch.

It raises ValueError or TypeError for what can't be trained on, or not by this engine, and OSError for checkpoints that
can't be written, or are another run's, before the first step. It raises Diverged at the first loss that is not finite,
or after an epoch that leaves parameters or a validation loss that are not, or a state of the optimizer, which is looked
at before it is written, and at the end; the network then has the parameters from the end of the last good epoch, and
the optimizer is spent. So it is after any other error, such as a schedule's, which then has the history so far as its
`history`. Ctrl-C ends the run and returns the history so far; a network that was trained in whole epochs then has the
parameters from the end of the last one in it, and the optimizer is spent.
"""

from contextlib import nullcontext
from functools import partial

from mlpkit import executors

from .diverged import Diverged as Diverged
from .epoch_data import Trainers, unchangeable
from .refusals import check_network, check_options, data_of
from .run import Run


def fit(network, optimizer, train, validation=None, *, epochs=5, batch_size=128, seed=0, patience=None,
        checkpoints=None, resume=False, on_epoch=None, augment=None):  # fmt: skip
    """Train `network` with `optimizer` and return the `History`. What it raises: see above.

    train, validation: pairs (X, y), as `data.load` returns them. seed: of the order of the examples.
    patience: stop after this many epochs without a lower validation loss, and return to the best epoch's parameters.
    checkpoints: a folder, into which every epoch writes `last.npz`, and the best so far `best.npz` (a saved network).
    resume: go on from `last.npz`, on the path of a run that was never stopped: see `folder`.
    on_epoch: is called with the history after every epoch, when the network has the parameters of its end. What it
    changes there is in no checkpoint of this epoch.
    augment: is called with train's images and targets, which it can't change, the seed and the epoch's number; the
    images and targets that it returns the epoch sees in their place: as many, alike, and the same again for the same
    seed and epoch. See `data.augment`.
    """
    check_network(network, optimizer)
    check_options(epochs, batch_size, seed, patience, validation, checkpoints, resume, on_epoch, augment)
    executors.check_trains(network, optimizer, batch_size)
    given, (train, validation) = train, data_of(network, train, validation, batch_size)
    changed = augment and partial(augment, *map(unchangeable, given), int(seed))
    settings = {"batch_size": int(batch_size), "seed": int(seed), "examples": len(train[1]), "augment": str(augment)}
    run = Run(network, optimizer, validation, settings)
    with folder_of(checkpoints, run, resume, train, validation, changed) if checkpoints else nullcontext():
        trainers = Trainers(network, optimizer, train, batch_size, changed)
        with run.guarded(trainers, epochs, hurried=not (patience or checkpoints or on_epoch or augment)):
            for epoch in run.left(patience):
                trainer = trainers.of_epoch(epoch)
                for part in run.parts_of(epoch, trainer):  # all of an epoch's steps at once, or a few at a time
                    run.took(trainer.epoch(part), len(part))  # a loss a step
                run.ended(epoch, on_epoch)
    return run.history


def folder_of(*arguments):
    """Return the context of a folder of checkpoints, see `folder`: a training without any imports nothing for it."""
    from .folder import Folder

    return Folder(*arguments).kept()
