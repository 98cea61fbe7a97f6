"""An evaluation whose kernels are compiled while a training begins, our own and CuPy's."""

from functools import cached_property, partial
from typing import Any

from mlpkit.executors import plain
from mlpkit.kernels.compiling import beside, settle

ROWS = 1024  # that are rehearsed with: enough for the kernels of many rows

_compiled: set[Any] = set()  # what needs no more rehearsal: kinds, and of what


class Rehearsed:
    """An evaluation that is made when it is called first. Meanwhile the first of its kind is rehearsed on some rows.

    kind(network, X, y): returns one, see `executors.protocol.Evaluation`.
    """

    def __init__(self, kind, network, X, y):
        self.make = partial(kind, network, X, y)
        rows = X[:ROWS], y[:ROWS]
        name = network.engine.__name__  # of a rank's engine, too, which is no module
        of = kind, name, repr(network.model), network.dtype, *((each.shape, each.dtype) for each in rows)
        if of not in _compiled:
            _compiled.add(of)
            beside(lambda: kind(network, *rows)()())  # to the end: nobody else may have its memory before

    @cached_property
    def made(self):
        """The evaluation on all rows."""
        settle()  # else what is being compiled there would be compiled here once more
        return self.make()

    def __call__(self):
        return self.made()


class Evaluation(Rehearsed):
    """See `executors.protocol.Evaluation`."""

    def __init__(self, network, X, y):
        super().__init__(plain.Evaluation, network, X, y)
