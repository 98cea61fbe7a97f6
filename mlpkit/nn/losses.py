"""How wrong is an output? A loss says what it compares outputs with, and which operation of an engine computes it."""

from dataclasses import dataclass

from mlpkit.checks import check_array, check_finite, check_labels, check_labels_form


@dataclass(frozen=True)
class Loss:
    """The mean loss of a batch of outputs z (n, outputs). operation: the engine's function; its formula stands there.

    It is compared with numbers (n, outputs), in the network's dtype.
    """

    operation: str

    def check(self, targets, n, shape, dtype):
        """Raise ValueError or TypeError unless `targets` are what the outputs (n, *shape) can be compared with."""
        self.check_form(targets, n, shape, dtype)
        check_finite("targets", targets)

    def check_form(self, targets, n, shape, dtype):
        """Check shape and dtype alone: no number is looked at, which would make a GPU wait."""
        check_array("targets", targets)
        if targets.shape != (n, *shape):
            raise ValueError(f"targets must have shape {(n, *shape)}, not {targets.shape}.")
        if targets.dtype != dtype:
            raise TypeError(f"targets are {targets.dtype} but the network computes in {dtype}: convert them.")

    def passes(self, engine, targets, shape):
        """Return whether the numbers are right, where the form is, as a scalar that need not be there yet."""
        return engine.all_finite(targets)

    def answers(self, engine, z):
        """Return what the outputs say, to be compared with the targets; None where they only measure."""
        return None


class YesOrNo(Loss):
    """The targets are 0 or 1, and the outputs the logits of 1."""

    def check(self, targets, n, shape, dtype):
        super().check(targets, n, shape, dtype)
        if not bool(self.passes(None, targets, shape)):
            raise ValueError("targets of binary cross-entropy must be 0 or 1.")

    def passes(self, engine, targets, shape):
        return ((targets == 0) | (targets == 1)).all()

    def answers(self, engine, z):
        return (z > 0).astype(z.dtype)


class OfClasses(Loss):
    """The targets are labels (n,), from 0 to classes - 1; the largest of a row's outputs is its answer."""

    def check(self, targets, n, shape, dtype):
        self.check_form(targets, n, shape, dtype)
        check_labels(targets, n, shape[0])

    def check_form(self, targets, n, shape, dtype):
        if len(shape) != 1:
            raise ValueError(f"outputs of shape {shape} are no row of classes: put Flatten() or Linear(...) last.")
        check_labels_form(targets, n)

    def passes(self, engine, targets, shape):
        return engine.all_labels(targets, shape[0])

    def answers(self, engine, z):
        return engine.argmax(z)


_OF_CLASSES = map(OfClasses, ("softmax_cross_entropy", "hinge"))
LOSSES = {loss.operation: loss for loss in (*_OF_CLASSES, YesOrNo("binary_cross_entropy"), Loss("mean_squared_error"))}
