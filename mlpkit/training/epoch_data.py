"""What each epoch trains on: the same data each time, or what `augment` makes of them."""

from functools import partial

import numpy as np

from mlpkit import executors
from mlpkit.checks import check_finite, check_unmasked


class Trainers:
    """The trainer of each epoch: one and the same, or where data change, a new one with its data. It is `now`."""

    def __init__(self, network, optimizer, data, batch_size, data_of):
        self.network, self.data, self.data_of, self.now, self.epoch = network, data, data_of, None, None
        self.make = partial(executors.trainer_of, network, optimizer, batch_size=batch_size)

    def of_epoch(self, epoch):
        """Return it. Raises ValueError or TypeError for data that are not as many as they were, or not alike."""
        if not self.now or (self.data_of and epoch != self.epoch):
            self.close()
            X, y = self._changed(epoch) if self.data_of else self.data
            self.now, self.epoch = self.make(X=X, y=y), epoch
        return self.now

    def close(self):
        """Close the trainer of now, if there is one."""
        if self.now:
            self.now.close()

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


def unchangeable(images):
    """Return NumPy's images as an array that raises ValueError where somebody writes into it; others as they are."""
    return np.broadcast_to(images, images.shape) if isinstance(images, np.ndarray) else images
