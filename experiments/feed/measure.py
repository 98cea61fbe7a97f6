"""How the record "feed" is made: the parts of `copies` and `memory`, and steps that are fed in turns."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, product
from typing import Any

import numpy as np

from experiments.lab import quiet, results
from experiments.lab.bench import RTOL, GateError, Stepper, relative_error
from experiments.lab.clock import called_and_done_us, in_turns, seconds_of
from mlpkit import data, engines
from mlpkit.engines import BASELINE
from mlpkit.training.recipe import Recipe

from .copies import copies, gathers
from .memory import allocations, out_of_memory, training_memory, without_pool
from .step import ENGINE, Images
from .tandem import Ahead, in_tandem
from .variants import VARIANTS, NotFed, Overlapped

AHEAD = 4  # epochs, each prepared while the one before it is trained
RECIPE = Recipe(lr=0.1)  # at 0.2 and batch 1024, float32's rounding alone moves the first losses by 0.3 %


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    samples: of each copy and allocation. copies, allocations: sizes in bytes. A sample of a way to feed is the mean of
    an epoch's steps; `epochs` of them. check_steps: whose losses are compared with the baseline's. shares: of a batch,
    for the CPU; a sample of those is the mean of `tandem_steps` steps.
    """

    samples: int = 25
    copies: tuple[int, ...] = tuple(4096 * 4**k for k in range(9))
    batch_sizes: tuple[int, ...] = (128, 1024)
    epochs: int = 7
    check_steps: int = 20
    allocations: tuple[int, ...] = (1 << 12, 1 << 20, 1 << 26)
    tandem_batch_sizes: tuple[int, ...] = (128, 4096)
    shares: tuple[float, ...] = (0, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1)
    tandem_steps: int = 50
    recipe: Recipe = RECIPE


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Measure everything, and return the record. train: (X, y), X uint8 pixels; MNIST's where None is given.

    Raises EngineUnavailable where there is no GPU, and GateError where a way to feed computes something else.
    """
    engines.load(ENGINE)  # or why there is none
    images = Images(*(train or data.load().train))
    record = results.new("feed", plan=asdict(plan) | {"recipe": plan.recipe.to_dict()})
    return results.collect(record, _found(images, plan, progress), save)


def _found(images, plan, progress):
    for part in PARTS:
        progress(part.__name__.replace("_", " "))
        yield from part(images, plan)


def check(losses, images, recipe, what):
    """Return the largest relative difference of first losses from the baseline's. Raises GateError above RTOL."""
    wanted = Stepper(BASELINE, recipe, (images.X["float32"], images.y)).take(len(losses))[1]
    error = relative_error(losses, wanted)
    if not error <= RTOL:
        raise GateError(f"{what} differs from {BASELINE}: its losses are off by {error:.1e}, in relation.")
    return error


def feeds(images, plan):
    """Yield times a step of each way to feed, and of the parts that are the host's; the ways take turns."""
    for batch_size in plan.batch_sizes:
        recipe = plan.recipe.but(batch_size=batch_size)
        variants = {kind.title: kind(images, recipe) for kind in VARIANTS}
        found = {title: _checked(way, images, recipe, plan) for title, way in variants.items()}
        orders = {title: map(partial(images.full_batches, recipe), count()) for title in variants}
        calls = {title: partial(_fed, way, orders[title]) for title, way in variants.items()}
        for title, samples in in_turns(calls, 1 + plan.epochs).items():
            call_us, samples_us, parts = zip(*samples[1:], strict=True)  # the first warms up
            yield found[title] | {"call_us": [*call_us], "samples_us": [*samples_us], "parts": [*parts]}


def _checked(way, images, recipe, plan):
    """Return what is known of a way to feed before it is timed: the error of its losses, too."""
    found = {"kind": "feed", "way": way.title, "dtype": way.dtype, "batch_size": way.n}
    order = images.full_batches(recipe)[: plan.check_steps * way.n]
    losses = way.step.engine.to_numpy(way.epoch(order))
    if way.title != NotFed.title:
        found["loss_error"] = check(losses, images, recipe, f"the way {way.title!r}")
    way.step.restart()
    return found | {"steps": len(images.y) // way.n}


def _fed(way, orders):
    """Return the microseconds a step, in the next epoch, of asking, of all, and of the host's parts in another one."""
    order = next(orders)
    times = _a_step(partial(way.epoch, order), len(order) // way.n)
    return *times, {part: round(us, 2) for part, us in way.watched(order).items()}


def _a_step(epoch, steps):
    return np.round(np.divide(called_and_done_us(epoch), steps), 3).tolist()


def sends(images, plan):
    """Yield the host's time to ask for a copy and for the step that waits for it, while the GPU has nothing to do."""
    way, samples = Overlapped(images, plan.recipe), []
    way.gather(0, images.full_batches(plan.recipe)[: way.n])
    for _ in range(5 * plan.samples):
        way.step.number[...] = 0  # there is room for the losses of an epoch
        samples.append(round(called_and_done_us(partial(way.send, 0, None))[0], 2))
    yield {"kind": "call", "what": "send a batch", "samples_us": samples}


def rows(images, plan):
    """Yield times of the two alone, by the rows that they have: a step on the GPU, a gradient on the CPU."""
    for batch_size, share in product(plan.tandem_batch_sizes, plan.shares):
        cpu_rows = round(share * batch_size)
        for side, n, clock in (("CPU", cpu_rows, _cpu_rows), ("GPU", batch_size - cpu_rows, _gpu_rows)):
            if n:
                found = {"kind": "rows", "side": side, "batch_size": batch_size, "rows": n}
                yield found | {"samples_us": clock(images, plan.recipe.but(batch_size=n), plan)}


def _cpu_rows(images, recipe, plan):
    network, index = recipe.make_network(BASELINE), images.full_batches(recipe)[: recipe.batch_size]
    X, y = images.X["float32"], images.y

    def gradient():
        network.loss_and_grad(X[index], y[index])

    quiet.settle(gradient, 0.02)
    return [round(seconds_of(gradient) * 1e6, 2) for _ in range(plan.samples)]


def _gpu_rows(images, recipe, plan):
    way, order = NotFed(images, recipe), images.full_batches(recipe)[: 100 * recipe.batch_size]
    epoch, steps = partial(way.epoch, order), len(order) // recipe.batch_size
    return [_a_step(epoch, steps)[1] for _ in range(1 + plan.epochs)][1:]


def tandem(images, plan):
    """Yield times a step by the CPU's share of each batch; the shares take turns."""
    for batch_size in plan.tandem_batch_sizes:
        recipe = plan.recipe.but(batch_size=batch_size)
        order = images.full_batches(recipe)[: plan.tandem_steps * batch_size]
        steps, first = len(order) // batch_size, order[: plan.check_steps * batch_size]
        pairs = {share: in_tandem(images, recipe, share) for share in plan.shares}
        errors = {
            share: check(pair.losses(first), images, recipe, f"a share of {share} on the CPU")
            for share, pair in pairs.items()
        }
        calls = {share: partial(_rested, partial(pair.epoch, order), steps) for share, pair in pairs.items()}
        for share, samples in in_turns(calls, plan.epochs).items():
            call_us, samples_us = map(list, zip(*samples, strict=True))
            found = {"kind": "tandem", "batch_size": batch_size, "share": share, "loss_error": errors[share]}
            yield found | {"call_us": call_us, "samples_us": samples_us}


def _rested(epoch, steps):
    quiet.rest()
    epoch()
    return _a_step(epoch, steps)


def prepare(images, plan):
    """Yield times an epoch: of preparing it, of training, of one after the other, and of both at once."""
    for what, augment in (("order", False), ("shifted images", True)):
        ahead = Ahead(images, plan.recipe, augment)
        variants: dict[str, Any] = {
            "prepare": (1, partial(ahead.prepare, 0)),
            "train": (1, ahead.train),
            "in sequence": (AHEAD, partial(ahead.epochs, AHEAD, at_once=False)),
            "at once": (AHEAD, partial(ahead.epochs, AHEAD, at_once=True)),
        }
        calls = {how: partial(_an_epoch, call, epochs) for how, (epochs, call) in variants.items()}
        for how, samples in in_turns(calls, 1 + plan.epochs).items():
            yield {"kind": "ahead", "what": what, "how": how, "samples_us": samples[1:]}  # the first warms up


def _an_epoch(call, epochs):
    return round(called_and_done_us(call)[1] / epochs, 1)


PARTS = (
    *(copies, feeds, gathers, sends, allocations, without_pool, training_memory, out_of_memory),
    *(rows, tandem, prepare),
)
