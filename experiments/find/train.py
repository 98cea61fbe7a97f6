"""One training of a detector, as a process of its own: `python -m experiments.find.train SETTINGS RESULT`.

The step's number decides the rate alone. Where no number of epochs is given, there are as many as fit into so many
seconds, see `Deadline`: then how many there were is a part of the result. Other processes then make new scenes
meanwhile, and no scene is shown longer than it takes to make as many.
"""

import gc
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.find.cells import several_of
from experiments.find.models import FORMS, detector
from experiments.find.scenes import EDGE, frozen, scenes
from experiments.find.voc import from_voc
from experiments.lab.bench import whole
from experiments.lab.deadline import Deadline
from mlpkit.boxes import average_precision, detections
from mlpkit.nn.network import Network
from mlpkit.optim import AdamW
from mlpkit.optim.schedules import Cosine, WarmUp
from mlpkit.training.fit import fit

LEAST_SCORE = 0.03  # of detections that average precision sees
RISING = 500  # steps at most, in which the rate rises
PARTS_A_TIME = 24  # in which processes make scenes
ROUND = 2  # epochs between two looks at whether new scenes are there


@dataclass(frozen=True)
class Task:
    """What is trained. data: "scenes", or a folder as Pascal VOC's. n: scenes, or variations of each photograph.

    part: of the scenes, such as "varied". processes: that make them. form: a name in `models.FORMS`.
    """

    data: str = "scenes"
    part: str = "varied"
    seed: int = 0
    n: int = 32_000
    epochs: int | None = None
    seconds: float = 450.0
    batch_size: int = 128
    lr: float = 8e-3
    weight_decay: float = 0.02
    engine: str = "cuda_conv_graph_tf32"
    processes: int = 8
    size: tuple[int, int] = (240, 320)
    box_weight: float = 1.0
    form: str = "scenes"


def run(task, network_path=None, progress=print):
    """Train, judge, and return the run as JSON can hold it. network_path: where the network is saved, if at all."""
    begin = time.perf_counter()
    with ProcessPoolExecutor(task.processes) as pool:
        data = _Scenes(task, pool) if task.data == "scenes" else _Photographs(task)
        model = detector(len(data.classes), data.shape, FORMS[task.form], box_weight=task.box_weight)
        data.begin(model.loss)
        network = Network(task.engine, model, seed=task.seed)
        made = time.perf_counter()
        losses = _trained(task, network, data, begin, progress)
        pool.shutdown(cancel_futures=True)
    trained = time.perf_counter()
    if network_path:
        network.save(network_path)
    result = {"task": asdict(task), "parameters": int(model.layout.size), "classes": list(data.classes)}
    result |= {"epochs": [len(losses)] * 2, "images": data.count, "loss": [round(loss, 5) for loss in losses]}
    result |= {"seconds": {"data": round(made - begin, 2), "training": round(trained - made, 2)}}
    return result | {"test": judged(network, *data.test)}


def _trained(task, network, data, begin, progress):
    """Train so many epochs, or until so many seconds after `begin`; return the mean loss of each."""
    losses: list[float] = []

    def said(history):
        losses.append(float(history.epochs[-1].train_loss))
        progress(f"seed {task.seed} epoch {len(losses)}: {losses[-1]:.4f}, {data.count:,} images")

    if task.epochs:
        steps = task.epochs * -(-len(data.now[0]) // task.batch_size)
        rising = min(RISING, steps // 10 + 1)
        optimizer = AdamW(network, WarmUp(Cosine(task.lr, steps - rising), rising), weight_decay=task.weight_decay)
        options = dict(epochs=task.epochs, batch_size=task.batch_size, seed=task.seed, on_epoch=said)
        history = fit(network, optimizer, data.now, **options)
        whole(history)
    else:
        deadline = Deadline(task.lr, begin + task.seconds - time.perf_counter(), RISING)
        _until(deadline, task, network, data, said, losses)
    return losses


def _until(deadline, task, network, data, said, losses):
    """Train until the time is over, some epochs at a time, with what is new then."""
    optimizer = AdamW(network, deadline, weight_decay=task.weight_decay)

    def look(history):
        said(history)
        deadline.look(optimizer.steps)

    while not deadline.over:
        epochs, seed = min(ROUND, deadline.epochs_left), 1000 * task.seed + len(losses)
        history = fit(network, optimizer, data.now, epochs=epochs, batch_size=task.batch_size, seed=seed, on_epoch=look)
        whole(history)
        gc.collect()  # what is left of a trainer may hold its scenes on the GPU
        data.renew()


def judged(network, images, truth, batch_size=64):
    """Return AP of each threshold and class, and how many images and detections there were."""
    compiled = network.compiled(batch_size)
    outputs = [compiled(np.ascontiguousarray(images[i : i + batch_size])) for i in range(0, len(images), batch_size)]
    loss = network.model.loss
    found = detections(loss, np.concatenate(outputs), LEAST_SCORE)
    ap = average_precision(found, truth, loss.classes)
    said = {"ap50": float(np.nanmean(ap[0])), "ap50_95": float(np.nanmean(ap)), "ap": np.round(ap, 5).tolist()}
    return said | {"images": len(images), "detections": len(found.scores)}


class _Photographs:
    """Photographs with boxes, in variations that stay. now: images and targets; test: those of the test; classes."""

    def __init__(self, task):
        own = from_voc(task.data, size=task.size)
        self.images, self.truth = several_of(own.train, own.validation, task.n, task.seed, task.processes)
        self.test, self.classes, self.shape, self.count = own.test, own.classes, own.test.X.shape[1:], len(self.images)

    def begin(self, loss):
        """Match boxes to cells."""
        self.now = self.images, loss.match(self.truth)

    def renew(self):
        """Nothing is new."""


class _Scenes:
    """Scenes of a seed, and the next ones, which are made meanwhile. now: images and targets. count: so far."""

    def __init__(self, task, pool):
        self.task, self.pool, self.count = task, pool, 0
        self.test, self.classes, self.shape = frozen(), [str(digit) for digit in range(10)], (1, EDGE, EDGE)

    def begin(self, loss):
        """Make the first scenes."""
        self.loss = loss
        self._ask()
        self._take()

    def renew(self):
        """Take the next scenes, if they are there."""
        if all(part.done() for part in self.parts):
            self._take()

    def _ask(self):
        n, seed = self.task.n, 1000 + self.task.seed
        step = -(-n // PARTS_A_TIME)
        self.parts = [self.pool.submit(_matched, self.loss, min(step, n - start), seed, self.task.part,
                                       self.count + start) for start in range(0, n, step)]  # fmt: skip

    def _take(self):
        images, targets = zip(*(part.result() for part in self.parts), strict=True)
        self.now = np.concatenate(images), np.concatenate(targets)
        self.count += self.task.n
        if not self.task.epochs:
            self._ask()


def _matched(loss, *which):
    found = scenes(*which)
    return found.images, loss.match(found.truth)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    settings["size"] = tuple(settings["size"])
    result = Path(sys.argv[2])
    found = run(Task(**settings), result.with_suffix(".npz"), lambda text: print(text, flush=True))
    result.write_text(json.dumps(found))
    print({name: found["test"][name] for name in ("ap50", "ap50_95")}, found["seconds"])
