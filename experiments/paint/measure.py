"""How the record "paint" is made: a trunk of our own, pictures that are trained, and networks that paint."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.lab import results
from experiments.lab.bench import whole
from mlpkit import engines, machine
from mlpkit.data.pictures import pictures
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.network import Network
from mlpkit.nn.painting import painter
from mlpkit.nn.perceptual import cut
from mlpkit.optim import Adam
from mlpkit.optim.schedules import Cosine, WarmUp
from mlpkit.training.fit import fit

from . import show, styles, training, trunks
from .lbfgs import lbfgs

GRAPH, EAGER = "cuda_conv_graph", "cupy_conv"  # a network is trained by steps of a graph, a picture step by step
MARKS = (1, 3, 10, 20, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300)  # steps whose losses are kept
SHORT = 400  # pixels of a photograph's shorter side, for training
HERE = Path(__file__).parent  # where networks are kept
UNSEEN = "astronaut", "chelsea", "coffee"  # photographs that come along, and that no network is trained on


@dataclass(frozen=True)
class Plan:
    """What is painted. looks: (trunk, style, style_weight). painters: (trunk, style, seconds of training).

    compared: how many of the unseen pictures each painter is compared on with a picture that is trained, and how many
    of these with L-BFGS, too. Unseen pictures are read from `unseen`, a folder.
    """

    looks: tuple = tuple(
        (trunk, *each)
        for trunk in trunks.TRUNKS
        for each in (("strokes", 30.0), ("strokes", 300.0), ("mosaic", 100.0), ("waves", 100.0))
    )
    painters: tuple = (
        ("own", "strokes", 200),
        ("edges", "strokes", 200),
        ("own", "mosaic", 200),
        ("chance", "strokes", 100),
    )
    compared: tuple = (10, 3)
    size: int = 512
    crop: int = 256
    batch: int = 4
    pieces: int = 2400
    steps: int = 300
    own_epochs: int = 12
    own_pieces: int = 16384
    unseen: str = ""
    engines: tuple = (GRAPH, EAGER)


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure all of the plan, and return the record. Raises `engines.EngineUnavailable` without a GPU."""
    engines.load(plan.engines[0])  # or why there is none
    return results.collect(new(), runs(plan, progress), save)


def new():
    libraries = {name: machine.version(name) for name in ("torch", "cupy-cuda13x")}
    return results.new("paint", libraries=libraries, weights=training.WEIGHTS, layers=training.STYLE_LAYERS)


def runs(plan, progress):
    photos = {name: shrunk(picture) for name, picture in pictures().items() if name not in UNSEEN}
    unseen = {name: show.fitted(picture, plan.size) for name, picture in pictures(plan.unseen).items()}
    yield own_run(plan, photos, progress)
    for trunk, style, weight in plan.looks:
        yield look_run(plan, show.fitted(pictures()["chelsea"], plan.crop), trunk, style, weight, progress)
    for trunk, style, seconds in plan.painters:
        yield painter_run(plan, photos, unseen, trunk, style, seconds, progress)


def shrunk(picture, short=SHORT):
    """Return a picture whose shorter side has at most so many pixels, as bytes."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    scale = min(1, short / min(image.size))
    size = round(image.width * scale), round(image.height * scale)
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS)).transpose(2, 0, 1)


def own_run(plan, photos, progress, path=None):
    """Train a network to tell of which photograph a piece is, and keep its convolutions."""
    count = plan.own_pieces
    train, other = (
        training.crops(list(photos.values()), n, 64, seed, jitter=True)
        for seed, n in ((0, count), (1, plan.own_pieces // 8))
    )
    network = Network(plan.engines[0], trunks.classifier(len(photos)))
    trunks.centre(network)
    begun, steps = time.perf_counter(), plan.own_epochs * -(-count // 128)
    history = fit(network, Adam(network, Cosine(1e-3, steps)), train, other, epochs=plan.own_epochs)
    whole(history)
    trunks.save_own(network, path or trunks.OWN)
    progress(f"own: {history.validation}")
    found = {"accuracy": history.validation["accuracy"][-1], "seconds": time.perf_counter() - begun}
    return {"kind": "own", "photographs": len(photos), "pieces": plan.own_pieces} | found


def look_run(plan, photo, trunk, style, weight, progress, folder=None):
    """Train one picture, and keep it."""
    name = f"{trunk}-{style}-{weight:g}"
    loss = loss_of(plan.engines[1], trunk, style, photo.shape, style_weight=weight)
    curve, parts, picture = trained(loss, photo, plan.steps)
    show.keep(name, picture, folder or show.KEPT)
    progress(f"{name}: {curve}")
    return {"kind": "look", "trunk": trunk, "style": style, "style_weight": weight, "curve": curve, "parts": parts}


def trained(loss, photo, steps, by=training.paint):
    """Return a trained picture's losses at MARKS, its parts of the loss as it is shown, and the picture."""
    curve: dict[int, float] = {}
    for step, canvas, value in by(loss, photo, steps):  # noqa: B007 (the last one is used)
        if step in MARKS or step == steps:
            curve[step] = float(value)
    engine = loss.trunk.engine
    picture = engine.to_numpy(canvas.theta).reshape(photo.shape).clip(0, 1)
    return curve, parts_of(loss, canvas, picture, photo), picture


def by_lbfgs(loss, photo, steps):
    canvas, x = training.canvas(loss, photo), loss.trunk.engine.asarray(photo[None])
    for step, value in enumerate(lbfgs(canvas, x, x, steps), 1):
        yield step, canvas, value


def parts_of(loss, network, picture, photo):
    """Return a dict of the loss's parts for a picture as it is shown, both from 0 to 1, as floats."""
    y, x = (loss.trunk.engine.asarray(each[None].astype(np.float32)) for each in (picture, photo))
    return {name: float(part) for name, part in loss.parts(network.at_loss, y, x)[0].items()}


def loss_of(engine, trunk, style, shape, **weights):
    network, paths = trunks.TRUNKS[trunk](shape, engine)
    return training.style_loss(network, paths, styles.STYLES[style](256), **weights)


def painter_run(plan, photos, unseen, trunk, style, seconds, progress, folder=None):
    """Train a network to paint for so many seconds, keep it, and compare it on pictures that it never saw."""
    name, graph, shape = f"{trunk}-{style}", plan.engines[0], (3, plan.crop, plan.crop)
    X, _ = training.crops(list(photos.values()), plan.pieces, plan.crop, larger=2)
    network = Network(graph, painter(shape, loss_of(graph, trunk, style, shape, kind=training.Even)))
    begun = time.perf_counter()
    fit(network, Adam(network, 1e-4), (X[:160], X[:160]), epochs=1, batch_size=plan.batch)  # and all is compiled
    middle = time.perf_counter()
    fit(network, Adam(network, 1e-4), (X[:800], X[:800]), epochs=1, batch_size=plan.batch)
    a_step = (time.perf_counter() - middle) / -(-len(X[:800]) // plan.batch)
    epochs = max(1, round(seconds / a_step / (len(X) // plan.batch)))
    progress(f"{name}: {1e3 * a_step:.1f} ms a step, {epochs} epochs")
    schedule = WarmUp(Cosine(2e-3, epochs * len(X) // plan.batch), 100)
    history = fit(network, Adam(network, schedule), (X, X), epochs=epochs, batch_size=plan.batch)
    whole(history)
    about = {"kind": "painter", "trunk": trunk, "style": style, "engine": graph, "steps": len(history.loss)}
    about |= {"parameters": network.layout.size}
    groups = np.array(history.loss)[: len(history.loss) // 60 * 60].reshape(-1, 60)
    about |= {"seconds": time.perf_counter() - begun, "losses": groups.mean(axis=1).tolist()}
    plain = cut(network, shape, loss=MeanSquaredError())
    save_painter(plain, folder or HERE, name)
    found = {}
    for number, (title, photo) in enumerate(list(unseen.items())[: plan.compared[0]]):
        found[title] = compared(
            plan, plain, trunk, style, photo, number < plan.compared[1], (folder, f"{name}-{title}")
        )
        progress(f"{name} {title}: {found[title]}")
    return about | {"pictures": found}


def compared(plan, plain, trunk, style, photo, both, where):
    """Return the loss's parts for what the painter makes of a photograph, and for a picture that is trained for it."""
    eager = plan.engines[1]
    loss = loss_of(eager, trunk, style, photo.shape)
    large = cut(plain, photo.shape, engine=eager, loss=loss)
    picture = large.engine.to_numpy(large.forward(large.engine.asarray(photo[None])))[0]
    curve, parts, by_steps = trained(loss, photo, plan.steps)
    found = {"network": parts_of(loss, large, picture, photo), "adam": parts, "adam_curve": curve}
    if both:
        curve, parts, _ = trained(loss, photo, plan.steps, by_lbfgs)
        found |= {"lbfgs": parts, "lbfgs_curve": curve}
    if where[0]:
        show.keep(where[1], picture, where[0])
        show.keep(f"{where[1]}-trained", by_steps, where[0])
    return found


def save_painter(network, folder, name):
    """Keep a painter's parameters, as fp16."""
    np.savez(Path(folder) / f"{name}.npz", theta=network.engine.to_numpy(network.theta).astype(np.float16))


def load_painter(name, shape, engine="numpy_k2row", folder=None):
    """Return the painter that `save_painter` kept, for pictures of a shape."""
    network = Network(engine, painter(shape))
    with np.load(Path(folder or HERE) / f"{name}.npz") as arrays:
        network.set_theta(arrays["theta"].astype(np.float32))
    return network
