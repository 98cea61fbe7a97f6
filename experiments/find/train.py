"""One training of a detector, as a process of its own: `python -m experiments.find.train SETTINGS RESULT`.

The step's number decides the rate alone. Where no number of epochs is given, there are as many as fit into so many
seconds, by the time of a few steps: then how many there were is a part of the result.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.find.cells import several_of
from experiments.find.models import detector
from experiments.find.scenes import frozen, scenes
from experiments.find.voc import from_voc
from experiments.lab.bench import whole
from mlpkit.boxes import average_precision, detections
from mlpkit.nn.network import Network
from mlpkit.optim import AdamW
from mlpkit.optim.schedules import Cosine, WarmUp
from mlpkit.training.fit import fit

LEAST_SCORE = 0.01  # of detections that average precision sees
PROBE = 256  # steps whose time is taken


@dataclass(frozen=True)
class Task:
    """What is trained. data: "scenes", or a folder as Pascal VOC's. n: scenes, or variations of each photograph."""

    data: str = "scenes"
    seed: int = 0
    n: int = 80_000
    epochs: int | None = 60
    seconds: float = 215.0
    batch_size: int = 64
    lr: float = 4e-3
    weight_decay: float = 0.02
    engine: str = "cuda_conv_graph_tf32"
    processes: int = 8
    size: tuple[int, int] = (240, 320)
    box_weight: float = 1.0
    widths: tuple[int, ...] = (16, 32, 32, 32, 48, 48, 48, 48, 48)


def run(task, network_path=None, progress=print):
    """Train, judge, and return the run as JSON can hold it. network_path: where the network is saved, if at all."""
    begin = time.perf_counter()
    images, truth, test, classes = _data(task)
    model = detector(len(classes), images.shape[1:], task.widths, box_weight=task.box_weight)
    targets = model.loss.match(truth)
    progress(f"{len(images):,} images, {(targets[:, 0] >= 0).sum() / len(images):.1f} cells each with an object")
    epochs = task.epochs or _epochs(task, model, images, targets)
    steps = epochs * -(-len(images) // task.batch_size)
    network = Network(task.engine, model, seed=task.seed)
    rising = min(500, steps // 10 + 1)
    rate = WarmUp(Cosine(task.lr, steps - rising), rising)
    optimizer = AdamW(network, rate, weight_decay=task.weight_decay)
    made = time.perf_counter()

    def said(history):
        progress(f"seed {task.seed} epoch {len(history.epochs)}/{epochs}: {history.epochs[-1].train_loss:.4f}")
        if time.perf_counter() - made > 1.3 * task.seconds and not task.epochs:
            raise KeyboardInterrupt  # others came to the GPU since: what there is will be judged

    history = fit(network, optimizer, (images, targets), epochs=epochs, batch_size=task.batch_size, seed=task.seed,
                  on_epoch=said)  # fmt: skip
    if task.epochs:  # else seconds end it
        whole(history)
    trained = time.perf_counter()
    if network_path:
        network.save(network_path)
    result = {"task": asdict(task), "parameters": int(model.layout.size), "classes": list(classes)}
    result |= {"epochs": [len(history.epochs), epochs]}
    result |= {"loss": [round(float(epoch.train_loss), 5) for epoch in history.epochs]}
    result |= {"seconds": {"data": round(made - begin, 2), "training": round(trained - made, 2)}}
    return result | {"test": judged(network, *test)}


def judged(network, images, truth, batch_size=64):
    """Return AP of each threshold and class, and how many images and detections there were."""
    compiled = network.compiled(batch_size)
    outputs = [compiled(np.ascontiguousarray(images[i : i + batch_size])) for i in range(0, len(images), batch_size)]
    loss = network.model.loss
    found = detections(loss, np.concatenate(outputs), LEAST_SCORE)
    ap = average_precision(found, truth, loss.classes)
    said = {"ap50": float(np.nanmean(ap[0])), "ap50_95": float(np.nanmean(ap)), "ap": np.round(ap, 5).tolist()}
    return said | {"images": len(images), "detections": len(found.scores)}


def _data(task):
    """Return images, truth, (images, truth) of the test, and the classes' names."""
    if task.data == "scenes":
        images, truth = made(task)
        return images, truth, frozen(), [str(digit) for digit in range(10)]
    own = from_voc(task.data, size=task.size)
    images, truth = several_of(own.train, own.validation, task.n, task.seed, task.processes)
    return images, truth, own.test, own.classes


def made(task):
    """Return the scenes of a seed, made by several processes."""
    from concurrent.futures import ProcessPoolExecutor

    part = -(-task.n // task.processes)
    starts = range(0, task.n, part)
    with ProcessPoolExecutor(task.processes) as pool:
        counts = [min(part, task.n - start) for start in starts]
        found = pool.map(scenes, counts, [1000 + task.seed] * len(counts), ["train"] * len(counts), starts)
        images, truth = zip(*found, strict=True)
    return np.concatenate(images), np.concatenate(truth)


def _epochs(task, model, images, targets):
    network = Network(task.engine, model, seed=task.seed)
    few = PROBE * task.batch_size
    times = []
    fit(network, AdamW(network, 1e-4), (images[:few], targets[:few]), epochs=3, batch_size=task.batch_size,
        on_epoch=lambda history: times.append(time.perf_counter()))  # fmt: skip
    return max(1, int(task.seconds / ((times[-1] - times[-2]) * max(1.0, len(images) / few))))


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    settings |= {name: tuple(settings[name]) for name in ("size", "widths") if name in settings}
    result = Path(sys.argv[2])
    found = run(Task(**settings), result.with_suffix(".npz"), lambda text: print(text, flush=True))
    result.write_text(json.dumps(found))
    print({name: found["test"][name] for name in ("ap50", "ap50_95")}, found["seconds"])
