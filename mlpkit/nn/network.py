"""A network is a model with numbers: one vector of parameters, and layers that look at parts of it.

`theta` holds every parameter, `grad` the gradient of the loss with respect to each of them, in the same order, which is
the model's `layout`. A layer's `W`, `b`, `dW` and `db` are views. So an optimizer is one line on two vectors, saving is
one array, and comparing two engines is one comparison. `statistics` holds what a training keeps and does not optimize.
"""

import json
import warnings
from dataclasses import replace
from importlib import import_module
from itertools import count
from math import prod

import numpy as np

from mlpkit import engines
from mlpkit.checks import check_array, check_batch, check_choice, check_count, check_dtype, check_finite
from mlpkit.words import short_sentences

from .bound import BoundLayer, Mode, backward, forward
from .initialize import RULES, start
from .model import MLP, Model
from .norm import BatchNorm

MOST_BYTES = 2**26  # of the largest array between two layers, where nobody says how many rows to do at once


EXECUTORS = f"{__name__.partition('.')[0]}.executors"  # what runs networks stands above them: known by name alone
quiet = np.errstate(all="ignore")  # whatever a reader has set: an exponential that underflows is no news


def _fixed(name, what):
    """Return a property for a vector whose elements may change, but which stays the array that the layers look at."""

    def get(network):
        return getattr(network, f"_{name}")

    def put(network, value):
        if value is not get(network):  # it is, after `network.theta -= step`
            raise AttributeError(
                f"the layers look at this {name}, and would not see another: change it, network.{name}[:] = ..."
            )

    return property(get, put, doc=what)


class Network:
    """A model on an engine, with its first weights.

    engine: an engine module, or its name. model: a `Model`. seed: of the first weights and of dropout, the same numbers
    on every engine. init: "he" or "xavier". dtype: float32, or float64 for a gradient check.

    Raises ValueError for what makes no network, or an engine that lacks an operation; and what `engines.load` raises.
    """

    def __init__(self, engine=engines.BASELINE, model=MLP, *, seed=0, init="he", dtype=np.float32):
        self.engine = engines.load(engine) if isinstance(engine, str) else engine
        self.model, self.dtype = check_model(model), check_dtype(dtype)
        check_choice("initialization", init, RULES)
        check_operations(self.engine, model)
        self.mode = Mode(check_count("seed", seed, least=0), self.dtype, training=True)
        layouts, n = (model.layout, model.statistics), model.layout.size
        first = [start(layout, model.ones, int(seed), init) for layout in layouts]
        both = self.engine.asarray(np.concatenate(first, dtype=self.dtype, casting="same_kind"))
        self._theta, self._statistics = both[:n], both[n:]
        self._grad = np.zeros_like(self._theta)  # where theta is
        self.layers = self._build(model.walk)
        self.at_loss = BoundLayer(model.loss, ("loss",), self.engine, self.mode, (), True)

    theta = _fixed("theta", "Every weight, then every bias: (n,), in the network's dtype.")
    grad = _fixed("grad", "The gradient of the loss with respect to each element of `theta`: (n,).")
    statistics = _fixed("statistics", "What a training keeps and does not optimize, such as running means: (m,).")

    @property
    def layout(self):
        """Where each parameter lies in `theta`: a `Layout`."""
        return self.model.layout

    @property
    def n_weights(self):
        """The number of weights: `theta[:n_weights]` are the weights, the rest is not decayed."""
        return self.layout.n_decayed

    def views(self, vector):
        """Return a dict of views by name into `vector`, which is laid out as `theta` is."""
        return self.layout.views(vector)

    def _build(self, declared):
        """Return the bound layers, each of which has those that it is made of."""
        layers: dict[tuple[int, ...], BoundLayer] = {}
        for path, layer, _, learns_before in reversed(declared):  # those inside others come first
            number = count()
            branches = tuple([layers[*path, next(number)] for _ in branch] for branch in layer.branches())
            layers[path] = BoundLayer(layer, path, self.engine, self.mode, branches, learns_before)
        arrays = {**self.views(self.theta), **self.model.statistics.views(self.statistics)}
        for prefix, views in (("", arrays), ("d", self.views(self.grad))):
            for name, view in views.items():
                *path, array = name.split(".")
                layers[tuple(map(int, path))].set(prefix + array, view)
        return [layers[number,] for number in range(len(self.model.layers))]

    @quiet
    def forward(self, x, training=False, step=0, keep=()):
        """Return the outputs (n, *model.output) of the batch `x`, in the network's dtype or uint8 pixels.

        x: (n, *model.input), or rows. training: dropout drops, norms use the batch's statistics, and layers keep what
        `backward` needs; else nothing of the pass stays, so several threads may ask at once. step: which dropout's.
        keep: paths of layers, as "3", or "5.1" for layer 1 in layer 5: then a dict of their outputs is returned, too.
        """
        if keep:
            run = self.run(x, keep, training, step)
            return run.outputs, run.activations
        if training:
            self.mode.step = step
            return forward(self.layers, self.as_input(x))
        mode = replace(self.mode, training=False)
        return forward([at.copied(mode) for at in self.layers], self.as_input(x))

    def run(self, x, keep=(), training=False, step=0, frozen=False):
        """Return a `Pass` of the batch x: outputs, the activations that are to be kept, and a way back to them."""
        from .passes import Pass  # only few want it

        return Pass(self, self.as_input(x), keep, training, step, frozen)

    @quiet
    def gradients(self, x, targets, of=("input",), training=False):
        """Return the mean loss of a batch, and a dict of its gradients with respect to activations, or the input.

        of: "input" or paths of layers, see `forward`. Arguments and errors beside: as `loss_and_grad`, whose gradient
        of the parameters stays as it is.
        """
        self.check_targets(targets, check_batch(x, self.model.input, self.dtype))
        run = self.run(x, training=training)
        loss, d_outputs = self.model.loss(self.at_loss, run.outputs, targets)
        return loss, run.backward(d_outputs, of)

    def as_input(self, x):
        """Return the batch `x` in the network's dtype, (n, *model.input): uint8 pixels become values from 0 to 1."""
        check_batch(x, self.model.input, self.dtype)
        x = self.engine.scale(x, self.dtype) if x.dtype == np.uint8 else x
        return x if x.shape[1:] == self.model.input else x.reshape(len(x), *self.model.input)

    @quiet
    def forward_backward(self, x, targets, step=0, layers=None):
        """Return the mean loss of the batch, a scalar of the engine's, and leave its gradient in `grad`.

        x: as for `forward`. targets: what the model's loss compares with. They are not looked at, which would make a
        GPU wait: see `loss_and_grad`. layers: bound ones that compute the same, in the place of the network's own.
        """
        layers, self.mode.step = layers or self.layers, step
        loss, d_outputs = self.model.loss(self.at_loss, forward(layers, self.as_input(x)), targets)
        backward(layers, d_outputs)
        return loss

    def loss_and_grad(self, x, targets, step=0):
        """Do what `forward_backward` does, once the targets are checked.

        targets: for classes, labels (n,), integers from 0 to classes - 1. Raises ValueError or TypeError for others.
        """
        self.check_targets(targets, check_batch(x, self.model.input, self.dtype))
        return self.forward_backward(x, targets, step)

    @quiet
    def loss(self, x, targets, training=False):
        """Return the mean loss of the batch, and leave `grad` as it is. Arguments and errors: as `loss_and_grad`."""
        self.check_targets(targets, check_batch(x, self.model.input, self.dtype))
        return self.model.loss(self.at_loss, self.forward(x, training), targets)[0]

    def check_targets(self, targets, n):
        """Raise ValueError or TypeError unless `targets` are what the model's loss compares n outputs with."""
        loss, output = self.model.loss, self.model.output
        loss.check(targets, n, output, self.dtype)
        loss.check_values(targets, output)

    @quiet
    def predict(self, X, batch_size=None):
        """Return the prediction for each row of `X`, a NumPy array: for classes the most likely one, (n,) integers.

        batch_size: rows that are in memory at once; as many as fit into 64 MiB where None.
        """
        self._check_inputs(X)
        parts = (check_finite("the network's outputs", self.forward(x)) for x in self._batches(X, batch_size))
        found = (self.model.loss.predictions(self.at_loss, outputs) for outputs in parts)
        return np.concatenate([self.engine.to_numpy(part) for part in found])

    def compiled(self, n, **options):
        """Return a function of at most n rows that returns their outputs, with the parameters of now.

        options: of the engine's executor, such as a precision; see `executors.protocol.Prediction`.
        """
        return import_module(EXECUTORS).of(self.engine).Prediction(self, n, **options)

    @quiet
    def evaluate(self, X, targets, batch_size=None):
        """Return a dict of the mean "loss" over a whole data set, batch by batch, and of what else the loss measures.

        That is, for classes, the "accuracy". X (n, ...), targets: NumPy's or the engine's. batch_size: as above.
        """
        self._check_inputs(X)
        self.check_targets(targets, len(X))
        return self.ask_evaluation(X, targets, batch_size)()

    def ask_evaluation(self, X, targets, batch_size=None):
        """Ask for what `evaluate` returns, of data that were checked: return a function that waits for it."""
        names, counts, asked = ["loss"], [], []
        for x, y in zip(self._batches(X, batch_size), self._batches(targets, batch_size), strict=True):
            outputs = self.forward(x)
            metrics = self.model.loss.metrics(self.at_loss, outputs, y)
            names = ["loss", *metrics]
            counts.append([len(x), *(count for _, count in metrics.values())])
            asked += [self.model.loss(self.at_loss, outputs, y)[0], *(total for total, _ in metrics.values())]
        found = self.engine.fetch(*asked)

        def wait():
            of = np.array([float(value) for value in found()]).reshape(-1, len(names))
            of[:, 0] *= np.array(counts)[:, 0]  # a mean, and the others are sums
            return dict(zip(names, (of.sum(axis=0) / np.sum(counts, axis=0)).tolist(), strict=True))

        return wait

    def _check_inputs(self, X):
        check_batch(X, self.model.input, self.dtype)
        check_finite("inputs", X)  # of NaN the largest output is the first one: it would pass for a prediction
        if not in_range(self, X):
            warn_of_range(X)

    def _batches(self, array, batch_size):
        widest = max(map(prod, (self.model.input, *(shape for _, _, shape, _ in self.model.walk))))
        rows = max(1, MOST_BYTES // (widest * self.dtype.itemsize)) if batch_size is None else batch_size
        check_count("batch_size", rows)
        array = self.engine.asarray(array)
        return [array[i : i + rows] for i in range(0, len(array), rows)]

    def set_theta(self, theta):
        """Copy a vector of finite parameters (n,), a NumPy array, into the network. ValueError for any other."""
        self.theta[:] = self._checked("parameters", theta, self.layout)

    def set_statistics(self, statistics):
        """Copy a vector of finite running statistics, a NumPy array, into the network. ValueError for any other."""
        self.statistics[:] = self._checked("statistics", statistics, self.model.statistics)

    def _checked(self, what, vector, layout):
        check_vector(what, vector, layout)
        return self.engine.asarray(check_finite(what, np.asarray(vector).astype(self.dtype, casting="same_kind")))

    def __reduce__(self):
        """Let a copy, and another process, have the network with the values of now."""
        vectors = map(self.engine.to_numpy, (self.theta, self.statistics))
        name = vars(self.engine)["__name__"].rpartition(".")[2]
        return type(self)._restored, (name, self.model, self.mode.seed, self.dtype, *vectors)

    @classmethod
    def _restored(cls, engine, model, seed, dtype, theta, statistics):
        network = cls(engine, model, seed=seed, dtype=dtype)
        network.theta[:], network.statistics[:] = map(network.engine.asarray, (theta, statistics))
        return network

    def save(self, path):
        """Write model, parameters and statistics to the .npz file `path`, atomically."""
        from mlpkit.npz import save_npz  # a training reads and writes no network

        vectors = {name: self.engine.to_numpy(getattr(self, name)) for name in ("theta", "statistics")}
        save_npz(path, model=json.dumps(self.model.to_dict()), **vectors)

    @classmethod
    @short_sentences()
    def load(cls, path, engine=engines.BASELINE):
        """Read a network that `save` wrote. Raises ValueError where the file is not one."""
        from mlpkit.npz import load_npz

        arrays = load_npz(path, ("model", "theta", "statistics"))
        theta, statistics = arrays["theta"], arrays["statistics"]
        try:  # before a network is made: a model that is wrong can ask for any amount of memory
            model, dtype = Model.from_dict(json.loads(str(arrays["model"]))), check_dtype(theta.dtype)
            model.check_read()
            check_vector("parameters", theta, model.layout)
            check_vector("statistics", statistics, model.statistics)
            for name, vector in (("parameters", theta), ("statistics", statistics)):
                check_finite(name, vector)
            for name, array in model.statistics.views(statistics).items():
                if name.endswith(".variance") and (array < 0).any():
                    raise ValueError(f"its {name} is below 0.")
            if statistics.dtype != dtype:
                raise ValueError(f"its parameters are {dtype}, and its statistics {statistics.dtype}.")
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} holds no network: {error}") from error
        return cls._restored(engine, model, 0, dtype, theta, statistics)


def check_model(model):
    """Return `model`. Raises TypeError unless it is a Model."""
    if not isinstance(model, Model):
        raise TypeError(f"model must be a Model, such as mlp(784, 128, 10), not {model!r}.")
    return model


def check_is_network(network):
    """Return `network`. Raises TypeError for what is none, such as its model or its outputs."""
    if not hasattr(network, "theta") or not hasattr(network, "model"):
        raise TypeError(f"network must be a Network, such as Network(model=...), not {type(network).__name__}.")
    return network


@quiet
def in_range(network, X):
    """Return whether inputs, arrays of the host's or of the engine's, are around 1, as a network expects them.

    Bytes are divided by 255. MNIST times 8 made SGD diverge at its usual rate, and divided by 16 it took Adam's.
    """
    some = network.engine.to_numpy(X[:1000])  # on a GPU the first sum of a kind would wait for a compiler
    if X.dtype == np.uint8:
        highest = some.max()
        return (highest > 15) | (highest == 0)
    square = (some * some).mean()
    layers = network.model.layers
    takes_any = bool(layers) and isinstance(layers[0], BatchNorm)
    return (square < 16) & (square > 4e-4) | (square == 0) | takes_any


def warn_of_range(X):
    """Warn of inputs that are not around 1, and say what to do."""
    lowest, highest = float(X.min()), float(X.max())
    way = f"a network learns from values around 1: divide all that it gets by {max(highest, -lowest):g}"
    if X.dtype == np.uint8:
        way = f"a network divides bytes by 255: multiply all that it gets by {255 // int(highest)}"
    warnings.warn(f"inputs go from {lowest:g} to {highest:g}, and {way}.", UserWarning, 5)


def check_operations(engine, model):
    """Raise ValueError where an engine lacks an operation that a model needs, TypeError for what is no engine."""
    if not hasattr(engine, "__name__"):
        raise TypeError(f"engine must be a name, such as {engines.BASELINE!r}, or an engine's module, not {engine!r}.")
    missing = [name for name in model.operations if not hasattr(engine, name)]
    name = engine.__name__.rpartition(".")[2]
    if missing:
        raise ValueError(f"engine {name} has no {', '.join(missing)}, which this model needs: take another engine.")
    for _, layer, shape, _ in model.walk if not hasattr(engine, "conv") else ():
        if layer.operations and len(shape) > 1:
            raise ValueError(f"engine {name} computes rows, and {layer!r} gets images: put Flatten() before it.")


def check_vector(what, vector, layout):
    """Raise ValueError unless `vector` has as many elements as a `Layout`."""
    check_array(f"these {what}", vector)
    if vector.shape != (layout.size,):
        raise ValueError(f"these {what} have shape {vector.shape}, but the network's have ({layout.size},).")
