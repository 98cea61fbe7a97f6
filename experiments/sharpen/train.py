"""Networks that enlarge, each trained on patches of a folder of pictures, in a process of its own."""

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from experiments.lab.bench import whole
from experiments.lab.deadline import Deadline
from mlpkit.data.bicubic import resize, weights
from mlpkit.data.patches import eightfold, patches
from mlpkit.data.pictures import PHOTOS, pictures
from mlpkit.nn import enlarging
from mlpkit.nn.image_losses import Charbonnier
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.training.fit import fit
from mlpkit.training.recipe import Recipe

# Sizes in which each picture counts, and how many patches at most. T91: as FSRCNN was trained. Photographs are large,
# and out of focus in large parts: they are shrunk further, and the patches with most detail are taken.
SOURCES = {"t91": ((1, 0.9, 0.8, 0.7, 0.6), None), "photos": ((1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4), 6_000)}
UNSEEN = "astronaut", "chelsea", "coffee"  # photographs that come along, and that no network is trained on
SIZES = {2: 24, 3: 16, 4: 16}  # of a patch, by scale, in pixels of the small picture
MANY = 100_000  # epochs, of which time ends all but some
LOSSES = {"mse": MeanSquaredError(peak=1.0), "charbonnier": Charbonnier(peak=1.0)}


@dataclass(frozen=True)
class Choice:
    """What is trained: a kind of network, for a scale, on "t91" or "photos", from a seed."""

    kind: str = "own"
    scale: int = 2
    data: str = "t91"
    seed: int = 0
    channels: int = 16
    depth: int = 4
    loss: str = "mse"
    lr: float = 1e-3
    batch_size: int = 32
    engine: str = "cuda_conv_graph"

    @property
    def name(self):
        own = f"-{self.channels}x{self.depth}" if self.kind == "own" else ""
        return f"{self.kind}{own}-x{self.scale}-{self.data}-{self.loss}-{self.lr:g}-seed{self.seed}"

    def model(self, size):
        """Return the model for small pictures with their halo; of SRCNN, for pictures that bicubic has enlarged."""
        loss = LOSSES[self.loss]
        if self.kind == "own":
            return enlarging.enlarger(size, self.scale, self.channels, self.depth, loss)
        if self.kind == "espcn":
            return enlarging.espcn(size, self.scale, loss)
        return enlarging.srcnn(size, {"srcnn915": 1, "srcnn955": 5}[self.kind], loss)

    @property
    def sees_small(self):
        return not self.kind.startswith("srcnn")


def data_for(choice, t91):
    """Return (X, y) to train on: float32 and uint8; of each patch one of eight ways to lie."""
    named = pictures({"t91": t91, "photos": PHOTOS}[choice.data], grey=None)
    found = [picture for name, picture in named.items() if choice.data != "photos" or name not in UNSEEN]
    size, (shrunk, most) = SIZES[choice.scale], SOURCES[choice.data]
    halo, _ = enlarging.geometry(choice.model(64))
    if choice.sees_small:
        X, y = patches(found, choice.scale, size, halo, shrunk)
    else:
        more = -(-halo // choice.scale) + 2  # the halo of the enlarged picture, in pixels of the small one
        X, y = patches(found, choice.scale, size, more, shrunk)
        cut = more * choice.scale - halo
        parts = (enlarged(part, choice.scale) for part in np.array_split(X, -(-len(X) // 128)))
        X = np.concatenate([part[..., cut:-cut, cut:-cut] for part in parts])
    some = np.argsort(-detail(y), kind="stable")[:most]
    return X[some], y[some]


def detail(y):
    """Return for each patch (n, 1, h, w) the mean square of how far neighbours differ, across and down."""
    y = y.astype(np.float32)
    return sum(np.square(np.diff(y, axis=axis)).mean((1, 2, 3)) for axis in (-1, -2))


def recipe_for(choice, X):
    """Return the recipe of a training, of one epoch."""
    return Recipe(
        optimizer="adam", lr=choice.lr, schedule="cosine", batch_size=choice.batch_size, epochs=1, seed=choice.seed,
        model=choice.model(X.shape[-1]), init="he" if choice.kind != "espcn" else "xavier",
    )  # fmt: skip


def enlarged(small, scale):
    return resize(small, [scale * length for length in small.shape[-2:]])


def begun(choice, recipe):
    """Return the network with its first weights."""
    network = recipe.make_network(choice.engine)
    if choice.kind == "own":
        enlarging.begin_as_bicubic(network, bicubic_of(choice.scale))
    return network


def bicubic_of(scale):
    """Return the weights (scale, 5) of bicubic, which makes `scale` pixels between the five nearest ones."""
    return weights(9, 9 * scale)[4 * scale : 5 * scale, 2:7]


def train(choice, X, y, folder, seconds=None, epochs=None, wait=lambda: None):
    """Train so many epochs, or about `seconds()`; save the network and what was seen; return its path.

    Where seconds decide, the network is saved after each epoch, and what was seen at the end.

    wait: is called once the data are there: where several are trained at once, they begin at once.
    X, y: of `data_for`.
    """
    X, y = eightfold(X), eightfold(y)
    wait()
    start = time.perf_counter()
    recipe = recipe_for(choice, X)
    if epochs is None:
        recipe = recipe.but(schedule=Deadline(choice.lr, seconds()))
    network, path = begun(choice, recipe), Path(folder) / f"{choice.name}.npz"
    history = _fitted(network, recipe, X, y, epochs, path)
    network.save(path)
    losses = [float(np.mean(part)) for part in np.array_split(history.loss, min(len(history.loss), 100))]
    seen = {**vars(choice), "parameters": network.layout.size, "examples": len(y), "epochs": len(history.epochs),
            "steps": len(history.loss), "seconds": time.perf_counter() - start, "losses": losses}  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(seen))
    return path


def _fitted(network, recipe, X, y, epochs, path):
    """Return the history of a training of so many epochs, or until its schedule's time is over."""
    optimizer = recipe.but(epochs=epochs or 1).make_optimizer(network, len(y))
    fitted = partial(fit, network, optimizer, (X, y), batch_size=recipe.batch_size, seed=recipe.seed)
    if epochs is not None:
        return whole(fitted(epochs=epochs))
    deadline = recipe.schedule

    def look(history):
        deadline.look(len(history.loss))
        network.save(path)
        if deadline.over:
            raise KeyboardInterrupt  # the answer to which is the history

    history = fitted(epochs=MANY, on_epoch=look)
    return history if deadline.over else whole(history)
