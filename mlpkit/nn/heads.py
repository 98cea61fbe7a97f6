"""Several losses on one network: each looks at some of the outputs, and at some of the targets."""

from dataclasses import dataclass
from functools import reduce
from operator import and_

from mlpkit.checks import check_array, check_count, check_positive

from .losses import Loss, OfClasses, check_loss


@dataclass(frozen=True, repr=False)
class Heads(Loss):
    """The sum of losses, each of which has some channels of the outputs, in order, and some columns of the targets.

    parts: tuples (channels, loss), or (channels, loss, weight). Along axis 1 the outputs of all heads lie side by side;
    so do their targets, in one array of the network's dtype, or of a larger integer's where all are labels. Labels are
    one column: an array (n, 1 + 4), say, for a class and a box. Metrics have the head's number before their names.
    """

    parts: tuple

    def __post_init__(self):
        found = []
        for part in self.parts if isinstance(self.parts, tuple | list) else [self.parts]:
            if not isinstance(part, tuple | list) or len(part) not in (2, 3):
                raise TypeError(f"a head is a tuple, such as (10, SoftmaxCrossEntropy()), not {part!r}.")
            channels, loss, *weight = part
            weight = check_positive("the weight of a head", weight[0] if weight else 1.0)
            found.append((check_count("the channels of a head", channels), check_loss(loss), weight))
        if not found:
            raise ValueError("Heads need at least one part, such as (10, SoftmaxCrossEntropy()).")
        object.__setattr__(self, "parts", tuple(found))

    @property
    def operations(self):  # type: ignore[override]
        return tuple(dict.fromkeys(["concat", *(name for _, loss, _ in self.parts for name in loss.operations)]))

    def cut(self, outputs, targets):
        """Yield for each head its loss, its weight, its outputs, its targets, and where its outputs are."""
        start = column = 0
        for channels, loss, weight in self.parts:
            here = slice(start, start + channels)
            columns = columns_of(channels, loss)
            of = None if targets is None else targets[:, column : column + columns]
            if of is not None and isinstance(loss, OfClasses):
                of = of[:, 0].astype("int64", copy=False)
            yield loss, weight, None if outputs is None else outputs[:, here], of, here
            start, column = here.stop, column + columns

    def check(self, targets, n, output, dtype):
        check_array("targets", targets)
        channels = sum(channels for channels, _, _ in self.parts)
        columns = sum(columns_of(channels, loss) for channels, loss, _ in self.parts)
        if output[:1] != (channels,):
            raise ValueError(f"the heads take {channels} channels, and the network puts out {output}.")
        if targets.shape != (n, columns, *output[1:]):
            raise ValueError(f"targets must have shape {(n, columns, *output[1:])}, not {targets.shape}.")
        for (channels, _, _), (loss, _, _, of, _) in zip(self.parts, self.cut(None, targets), strict=True):
            loss.check(of, n, (channels, *output[1:]), dtype)

    def whole(self, targets):
        """Return whether all labels are whole numbers, a scalar: others would be cut off."""
        column, found = 0, []
        for channels, loss, _ in self.parts:
            if isinstance(loss, OfClasses):
                found.append(targets[:, column] == targets[:, column].round())
            column += columns_of(channels, loss)
        return reduce(and_, (each.all() for each in found), True)

    def valid(self, engine, targets, output):
        parts = self.cut(None, targets)
        found = (loss.valid(engine, of, (here.stop - here.start, *output[1:])) for loss, _, _, of, here in parts)
        return reduce(and_, found) & self.whole(targets)

    def check_values(self, targets, output):
        if not bool(self.whole(targets)):
            raise ValueError("labels must be whole numbers, in the column of a head, too.")
        for loss, _, _, of, here in self.cut(None, targets):
            loss.check_values(of, (here.stop - here.start, *output[1:]))

    def __call__(self, at, outputs, targets):
        total, parts = 0, []
        for loss, weight, z, of, _ in self.cut(outputs, targets):
            value, dz = loss(at, at.engine.asarray(z), at.engine.asarray(of))
            total = total + weight * value
            parts.append(dz * dz.dtype.type(weight))
        return total, at.engine.concat(parts)

    def metrics(self, at, outputs, targets):
        found: dict[str, tuple] = {}
        for number, (loss, _, z, of, _) in enumerate(self.cut(outputs, targets)):
            own = loss.metrics(at, at.engine.asarray(z), at.engine.asarray(of))
            found |= {f"{number} {name}": value for name, value in own.items()}
        return found


def columns_of(channels, loss):
    """Return how many columns of the targets are a head's: labels are one, whatever the number of classes."""
    return 1 if isinstance(loss, OfClasses) else channels
