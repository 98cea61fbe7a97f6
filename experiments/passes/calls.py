"""What is compared with what, timed in turns: updates, what lies between the products of a step, and these products."""

from functools import partial
from itertools import cycle

import numpy as np
from numba import njit
from threadpoolctl import threadpool_limits

from experiments.lab.clock import in_turns, seconds_of, steps_in
from experiments.lab.products import of_step
from mlpkit.engines import numba_hybrid, numba_step, numpy_baseline
from mlpkit.engines.loops import gemm
from mlpkit.nn.models import MLP

from .parts import repeat
from .updates import LADDER, STATE, UPDATES, divide_by_root, roots, vectors


def samples_us(calls, plan, settle=0.0):
    """Return the samples of each of the calls, taken in turns, in microseconds."""
    samplers = {}
    for name, call in calls.items():
        call()
        times = steps_in(plan.sample_seconds, min(seconds_of(call) for _ in range(3)), most=10_000)
        samplers[name] = partial(_sample_us, call, times)
    return in_turns(samplers, plan.samples, lambda name: repeat(calls[name], settle))


def _sample_us(call, times):
    return round(seconds_of(call, times=times) * 1e6, 4)


def ladder(plan, progress):
    """Yield times of each rung of Adam, with the square roots that its compiled code has."""
    settings = UPDATES["adam"][1].values()
    for offset in (0, 16):
        progress(f"ladder of Adam, {offset} bytes after a cache line")
        arrays, calls, counts = vectors(MLP.layout.size, 4, offset), {}, {}
        for rung, (function, error_model) in LADDER.items():
            compiled = njit(error_model=error_model)(function)
            compiled(*arrays, *settings)
            calls[rung], counts[rung] = partial(compiled, *arrays, *settings), roots(compiled)
        calls["vectors that overlap"] = partial(compiled, *arrays[:3], arrays[2], *settings)
        counts["vectors that overlap"] = counts[rung]
        for rung, samples in samples_us(calls, plan).items():
            yield {"kind": "ladder", "rung": rung, "offset": offset, "roots": counts[rung], "samples_us": samples}


def division(plan, progress):
    """Yield nanoseconds of a division by a root."""
    progress("division and square root")
    a, b = vectors(2_048, 2, 0)
    samples = samples_us({"": partial(divide_by_root, a, b, 1000)}, plan)[""]
    yield {"kind": "root", "samples_ns": [us / len(a) for us in samples]}  # 1000 times over: us are ns


def updates(plan, progress):
    """Yield times of each update, by the number of parameters and the way."""
    for n in plan.sizes:
        for name in UPDATES:
            progress(f"update of {n:,} parameters with {name}")
            for way, samples in samples_us(update_calls(name, n), plan).items():
                yield {"kind": "update", "name": name, "n": n, "way": way, "samples_us": samples}


def update_calls(name, n):
    """Return a call without arguments for each way to update n parameters: NumPy, `out=`, fused, on all cores."""
    with_out, settings = UPDATES[name]
    arrays = vectors(n, 2 + len(STATE[name]))
    spares = vectors(n, 2 if "eps" in settings else 1)
    function = f"{name}_update"
    return {
        "NumPy": partial(getattr(numpy_baseline, function), *arrays, **settings),
        "NumPy, out=": partial(with_out, *arrays, *settings.values(), *spares),
        "fused": partial(getattr(numba_hybrid.fused, function), *arrays, *settings.values()),
        "fused, all cores": partial(getattr(numba_step.fused, function), *arrays, *settings.values()),
    }


def layers(train, plan, progress):
    """Yield times of what lies between two products, by the batch and the way."""
    for batch_size in plan.batch_sizes:
        for name, calls in layer_calls(train, batch_size).items():
            progress(f"{name} at batch {batch_size}")
            for way, samples in samples_us(calls, plan).items():
                yield {"kind": "layer", "name": name, "batch_size": batch_size, "way": way, "samples_us": samples}


def layer_calls(train, n):
    """Return calls[operation][way] for what lies between the products, at a batch of n."""
    rng, (_, hidden, *_, classes) = np.random.default_rng(0), MLP.sizes()
    z, z2, a, da, da2 = (rng.normal(size=(n, hidden)).astype(np.float32) for _ in range(5))
    b = np.zeros(hidden, np.float32)
    logits, logits2 = (rng.normal(size=(n, classes)).astype(np.float32) for _ in range(2))
    last, labels = np.zeros(classes, np.float32), rng.integers(classes, size=n)
    plain, fused, shared = numpy_baseline, numba_hybrid.fused, numba_step.fused
    return {
        "gather": {
            "NumPy": _rows_of(plain.gather, train, n, seed=0),
            "fused": _rows_of(fused.gather, train, n, seed=1),
            "fused, all cores": _rows_of(shared.gather, train, n, seed=2),
        },
        "bias and ReLU": {
            "NumPy": lambda: plain.relu(z + b),
            "fused": partial(fused.add_bias_relu, z2, b),
            "fused, all cores": partial(shared.add_bias_relu, z2, b),
        },
        "softmax and loss": {
            "NumPy": lambda: plain.softmax_cross_entropy(logits + last, labels),
            "fused": partial(fused.cross_entropy, logits2, last, labels, n),
        },
        "ReLU backward": {
            "NumPy": partial(plain.relu_backward, a, da),
            "fused": partial(fused.relu_backward_in_place, a, da2),
            "fused, all cores": partial(shared.relu_backward_in_place, a, da2),
        },
        "bias gradient": {
            "NumPy": partial(np.sum, da, axis=0, out=b.copy()),
            "fused": partial(fused.sum_rows, da, b.copy()),
        },
    }


def _rows_of(gather, train, n, seed):
    """Return a call that gathers n rows of the training set, other ones at each call."""
    X, rng = train[0], np.random.default_rng(seed)
    batches = cycle([rng.integers(len(X), size=n) for _ in range(400)])
    return lambda: gather(X, next(batches))


def products(plan, progress):
    """Yield times of all the matrix products of a step, by the batch: BLAS's and the workbook's."""
    for batch_size in plan.batch_sizes:
        progress(f"the products of a step at batch {batch_size}")
        step = of_step(batch_size)
        arrays = [product.arrays() for product in step]
        names = {"kind": "products", "batch_size": batch_size, "flops": sum(product.flops for product in step)}
        for threads, ours, where in ((1, gemm.multiply, "one core"), (None, gemm.matmul, "all cores")):
            calls = {"BLAS": partial(_multiply_all, np.matmul, arrays), "tiles": partial(_multiply_all, ours, arrays)}
            with threadpool_limits(threads):
                for way, samples in samples_us(calls, plan, plan.settle).items():
                    yield names | {"way": f"{way}, {where}", "samples_us": samples}


def _multiply_all(multiply, arrays):
    for a, b, out in arrays:
        multiply(a, b, out)
