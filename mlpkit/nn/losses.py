"""How wrong is an output? A loss is data, as a layer is: what it is compared with, and what it asks an engine for.

It is called with `at`, bound to a network, of which it uses the engine; with outputs (n, ...), in the network's
dtype; and with targets, an array of whatever shape and dtype the loss takes. Engines and executors copy targets as they
are, and only the loss knows what they mean.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mlpkit.checks import (
    check_array,
    check_count,
    check_finite,
    check_label_values,
    check_labels_form,
    check_positive,
    way_to_dtype,
    way_to_shape,
)

from .written import Written, check_settings


@dataclass(frozen=True, repr=False)
class Loss(Written):
    """What a loss declares; it overrides what differs for it. operations: the engine's functions that it calls.

    Unless it says otherwise, targets have the outputs' shape and dtype, or are pixels, uint8, which count as 0 to 1.
    """

    operations: ClassVar[tuple[str, ...]] = ()

    def check(self, targets, n, output, dtype):
        """Raise ValueError or TypeError unless targets can be compared with outputs (n, *output) of a dtype.

        Shape and dtype are looked at, and no value, which would make a GPU wait.
        """
        check_array("targets", targets)
        if targets.shape != (n, *output):
            way = way_to_shape(targets.shape, (n, *output))
            raise ValueError(f"targets must have shape {(n, *output)}, not {targets.shape}{way}.")
        if targets.dtype not in (dtype, np.uint8):
            way = way_to_dtype(targets.dtype, dtype)
            raise TypeError(f"targets are {targets.dtype} but the network computes in {dtype}: {way}.")

    def valid(self, engine, targets, output):
        """Return whether all values are right, where the form is, as a scalar that need not be there yet."""
        return engine.all_labels(targets, 256) if targets.dtype == np.uint8 else engine.all_finite(targets)

    def check_values(self, targets, output):
        """Raise ValueError, which says what is wrong, where values are not right."""
        check_finite("targets", targets)

    def __call__(self, at, outputs, targets):
        """Return the mean loss over the batch, a scalar of the engine's, and its gradient: `d_outputs`."""
        raise NotImplementedError

    def metrics(self, at, outputs, targets):
        """Return by name what else says how good outputs are: (a sum, the engine's scalar, and over how many)."""
        return {}

    def predictions(self, at, outputs):
        """Return what the outputs say, such as classes, where they are not the predictions themselves."""
        return outputs


@dataclass(frozen=True, repr=False)
class OfClasses(Loss):
    """The targets are labels, integers from 0 to classes - 1: (n,) for rows, (n, height, width) for maps of classes."""

    def check(self, targets, n, output, dtype):
        if len(output) not in (1, 3) or (len(output) == 3 and np.ndim(targets) == 1):
            raise ValueError(f"outputs of shape {output} are no row of classes: put Flatten() or Linear(...) last.")
        check_labels_form(targets, (n, *output[1:]), output[0])

    def valid(self, engine, targets, output):
        return engine.all_labels(targets, output[0])

    def check_values(self, targets, output):
        check_label_values(targets, output[0])

    def __call__(self, at, outputs, targets):
        loss, dz = self.of_rows(at.engine, as_rows(at, outputs), targets.reshape(-1))
        return loss, as_maps(at, dz, outputs.shape)

    def of_rows(self, engine, z, labels):
        """Return the mean loss of logits z (rows, classes), and its gradient."""
        raise NotImplementedError

    def metrics(self, at, outputs, targets):
        right = self.predictions(at, outputs) == targets
        return {"accuracy": (at.engine.count(right), right.size)}

    def predictions(self, at, outputs):
        found = at.engine.argmax(as_rows(at, outputs))
        return found if outputs.ndim == 2 else found.reshape(len(outputs), *outputs.shape[2:])


def check_tops(name, value):
    """Return numbers k as a tuple of ints. Raises TypeError or ValueError for what are none."""
    if not isinstance(value, tuple | list):
        raise TypeError(f"{name} must be a tuple of whole numbers, such as (5,), not {value!r}.")
    return tuple(check_count(f"each of {name}", k) for k in value)


@dataclass(frozen=True, repr=False)
class SoftmaxCrossEntropy(OfClasses):
    """`mean(-log softmax(z)[label])` over rows, or over the pixels of maps. The outputs z are logits.

    top: numbers k, each of which adds the metric "top k accuracy": how often the label is among the k largest logits.
    """

    top: tuple[int, ...] = ()

    operations = ("softmax_cross_entropy", "argmax")
    checks = (("top", check_tops),)

    def of_rows(self, engine, z, labels):
        return engine.softmax_cross_entropy(z, labels)

    def metrics(self, at, outputs, targets):
        found = super().metrics(at, outputs, targets)
        if self.top:
            rows, labels = as_rows(at, outputs), targets.reshape(-1)
            larger = (rows > rows[at.engine.asarray(np.arange(len(rows))), labels][:, None]).sum(axis=1)
            found |= {f"top {k} accuracy": (at.engine.count(larger < k), larger.size) for k in self.top}
        return found


@dataclass(frozen=True, repr=False)
class Hinge(OfClasses):
    """How far each wrong class comes within 1 of the right one's output: Weston and Watkins (1999)."""

    operations = ("hinge", "argmax")

    def of_rows(self, engine, z, labels):
        return engine.hinge(z, labels)


@dataclass(frozen=True, repr=False)
class BinaryCrossEntropy(Loss):
    """The targets are 0 or 1, in the network's dtype, and the outputs the logits of 1."""

    operations = ("binary_cross_entropy",)

    def valid(self, engine, targets, output):
        return ((targets == 0) | (targets == 1)).all()

    def check_values(self, targets, output):
        if not bool(self.valid(None, targets, output)):
            raise ValueError("targets of binary cross-entropy must be 0 or 1.")

    def __call__(self, at, outputs, targets):
        return at.engine.binary_cross_entropy(outputs, targets)

    metrics = OfClasses.metrics

    def predictions(self, at, outputs):
        return (outputs > 0).astype(outputs.dtype)


def check_peak(name, value):
    """Return the peak as a float, or None. Raises ValueError unless it is a finite number above 0."""
    return None if value is None else check_positive(name, value, np.float32)


@dataclass(frozen=True, repr=False)
class MeanSquaredError(Loss):
    """`mean((z - targets)^2)` over all values. uint8 targets are pixels, and count as 0 to 1.

    peak: where it is given, such as 1.0 for pixels, the metric "psnr" is the mean over examples of
    `10 log10(peak^2 / mean squared error)`, in decibels.
    """

    peak: float | None = None

    operations = ("mean_squared_error",)
    checks = (("peak", check_peak),)

    def __call__(self, at, outputs, targets):
        return at.engine.mean_squared_error(outputs, as_values(at, targets, outputs.dtype))

    def metrics(self, at, outputs, targets):
        if self.peak is None:
            return {}
        difference = (outputs - as_values(at, targets, outputs.dtype)).reshape(len(outputs), -1)
        errors = (difference * difference).mean(axis=1)
        return {"psnr": (10 * np.log10(self.peak**2 / errors).sum(), len(errors))}


def as_values(at, targets, dtype):
    """Return targets as they are, and pixels, uint8, as values from 0 to 1."""
    return at.engine.scale(targets, dtype) if targets.dtype == np.uint8 else targets


def as_rows(at, maps):
    """Return maps (n, classes, height, width) as rows (n * height * width, classes); rows as they are."""
    return maps if maps.ndim == 2 else at.engine.asarray(maps.transpose(0, 2, 3, 1)).reshape(-1, maps.shape[1])


def as_maps(at, rows, shape):
    """Return rows as maps of a shape (n, classes, height, width); or as they are, where the shape is that of rows."""
    if len(shape) == 2:
        return rows
    n, classes, height, width = shape
    return at.engine.asarray(rows.reshape(n, height, width, classes).transpose(0, 3, 1, 2))


def check_loss(loss):
    """Return `loss`. Raises TypeError for what is none."""
    if not isinstance(loss, Loss):
        raise TypeError(f"a loss is an object, such as SoftmaxCrossEntropy() of mlpkit.nn.losses, not {loss!r}.")
    lacks_rows = isinstance(loss, OfClasses) and type(loss).of_rows is OfClasses.of_rows
    if type(loss).__call__ is Loss.__call__ or (lacks_rows and type(loss).__call__ is OfClasses.__call__):
        raise TypeError(f"{loss!r} is no loss yet: it computes nothing of its own.")
    check_settings(loss)
    return loss
