"""NVIDIA's library, cuDNN: all of its ways to compute a pass are timed, and the fastest one is kept.

It has tens of plans for a pass, in each of two layouts, "nhwc" and "nchw", and does not try them: see
`mlpkit.kernels.conv.cudnn`. `tuned` does.
"""

import time
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from experiments.lab.clock import quick_us
from mlpkit.kernels.conv.cudnn import Problem, first_line, refusals
from mlpkit.kernels.conv.cudnn import why_not as why_not

from . import Prepared, Rung, errors_of, why_too_far

SECONDS = 1.0  # how long the plans of one layout are tried
LAYOUTS = ("nhwc", "nchw")
DTYPES = {"float32": np.float32, "fp16": np.float16, "bf16": np.uint16}
CLASSES = {"float32": "float32", "tf32": "tf32", "fp16": "tf32", "bf16": "bf16"}  # fp16 has TF32's significant bits


@dataclass(frozen=True)
class Choice:
    """The plan that was the fastest, and how it was found.

    layout: of all arrays. result: the result's type. plan: cuDNN's name of it, an engine and its knobs. us: its time.
    first_us: that of the plan which cuDNN puts first. workspace: bytes. tried: how many plans ran, of how many.
    repeats: whether it gives the same bits at each call, by its notes.
    """

    layout: str
    result: str
    plan: str
    index: int
    us: float
    first_us: float
    workspace: int
    tried: int
    plans: int
    repeats: bool = False


def version():
    """Return the versions of cuDNN and of its package."""
    import cudnn

    return {"cudnn": cudnn.backend_version(), "nvidia-cudnn-frontend": cudnn.__version__}


# Layouts and types


def place(problem, a, b, *bias):
    """Return operands, float32 arrays stored by rows, as a problem wants them, with an array for the result third."""
    import cupy

    out = cupy.empty(_stored(problem.shape.operands(problem.which)[2], problem.layout), DTYPES[problem.result])
    stored = [_to_layout(each, problem.layout) for each in (a, b, *bias)]
    if problem.operand == "bf16":
        first, second, *more = map(to_bf16, stored)
    else:
        first, second, *more = (each.astype(DTYPES[problem.operand], copy=False) for each in stored)
    return (first, second, out, *more)


def result_of(problem, out):
    """Return a result as float32 in the order of the ladder's shapes."""
    import cupy

    out = from_bf16(out) if problem.result == "bf16" else out.astype(np.float32, copy=False)
    return cupy.ascontiguousarray(out.transpose(0, 3, 1, 2) if problem.layout == "nhwc" else out)


def _stored(shape, layout):
    n, c, h, w = shape
    return (n, h, w, c) if layout == "nhwc" else shape


def _to_layout(array, layout):
    import cupy

    return cupy.ascontiguousarray(array.transpose(0, 2, 3, 1) if layout == "nhwc" else array)


def to_bf16(array):
    """Return float32 numbers rounded to bfloat16, the 16 bits of each as an integer."""
    return _kernels()[0](array)


def from_bf16(array):
    """Return the numbers whose bits these are, as float32."""
    return _kernels()[1](array)


@cache
def _kernels():
    import cupy

    even = "unsigned bits = __float_as_uint(x); y = isnan(x) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16"
    return (
        cupy.ElementwiseKernel("float32 x", "uint16 y", even, "to_bf16"),
        cupy.ElementwiseKernel("uint16 x", "float32 y", "y = __uint_as_float((unsigned)x << 16)", "from_bf16"),
    )


# Which plan is the fastest


@cache
def tuned(shape, which, precision, repeats=False, seconds=SECONDS, followed=False):
    """Return the `Choice` among all plans of both layouts, each tried for so many seconds, and its `Problem`, built.

    followed: a forward pass, by a bias and ReLU. Raises ValueError where cuDNN has none.
    """
    import cupy

    rng = cupy.random.default_rng(0)
    a, b = (rng.standard_normal(each, np.float32) for each in shape.operands(which)[:2])
    bias = [rng.standard_normal((1, shape.channels_out, 1, 1), np.float32)] if followed else []
    right, found, reasons = exact(shape, which, a, b), [], []
    right = cupy.maximum(right + bias[0], 0) if bias else right
    for layout, result in _variants(which, precision):
        try:
            problem = Problem(shape, which, precision, layout, result, repeats, followed=followed)
            found += trials(problem, a, b, right, seconds, bias=bias)
        except ValueError as error:
            reasons.append(str(error))
    if not found:
        raise ValueError(reasons[0] if reasons else f"none of cuDNN's plans runs for {shape}, {which}.")
    best = min(found, key=lambda choice: choice.us)
    problem = Problem(shape, which, precision, best.layout, best.result, repeats, followed=followed)
    problem.build(best.index)
    if followed:
        return best, problem
    return replace(best, repeats=repeats or _repeats(problem, best)), problem


def _repeats(problem, choice):
    """Say whether a plan gives the same bits at each call, by its notes: whether it is left where others are not."""
    same = Problem(problem.shape, problem.which, problem.precision, problem.layout, problem.result, repeats=True)
    try:
        same.build(choice.index)
    except ValueError:
        return False
    return same.name(choice.index) == choice.plan


def _variants(which, precision):
    results = ("float32", "bf16") if (which, precision) == ("weight_gradient", "bf16") else (None,)
    results = ("float32", "fp16") if precision == "fp16" else results
    return [(layout, result) for layout in LAYOUTS for result in results]


def trials(problem, a, b, right, seconds=SECONDS, progress=lambda text: None, bias=()):
    """Return a `Choice` for each plan of a problem that runs, in cuDNN's order, tried within so many seconds.

    a, b, right: operands, and their result. A plan whose result is too far off for its class is none: some transforms
    are, of large sums. progress: is told why.
    """
    import cupy

    arrays, found = place(problem, a, b, *bias), list[dict]()
    until, best, tried = time.perf_counter() + seconds, float("inf"), 0
    for index in problem.different():
        if found and time.perf_counter() > until:
            break
        tried += 1
        try:
            size = problem.build(index)
            call = problem.call(index, arrays, cupy.cuda.alloc(max(1, size)))
            check(call, lambda: result_of(problem, arrays[2]), right, CLASSES[problem.precision])
            us = quick_us(call, best)
        except (ValueError, *refusals()) as error:  # such as a kernel that this GPU has not
            progress(f"{problem.name(index)}: {first_line(error)}")
            continue
        best = min(us, best)
        found.append({"plan": problem.name(index), "index": index, "us": us, "workspace": size})
    counts = {"tried": tried, "plans": len(problem.different()), "layout": problem.layout, "result": problem.result}
    counts["first_us"] = found[0]["us"] if found else None
    return [Choice(**each, **counts) for each in found]


def check(call, result, right, precision):
    """Raise ValueError where a call's result is further off than a class allows, or one of its rows."""
    call()
    if reason := why_too_far(errors_of(result(), right), precision):
        raise ValueError(reason)


def exact(shape, which, a, b):
    """Return a pass's result in float64: a product for each place of the window. a, b: CuPy's arrays, or NumPy's."""
    import cupy

    xp, pad, step = cupy.get_array_module(a), shape.padding, shape.stride
    a, b = a.astype(np.float64), b.astype(np.float64)
    (n, c, h, w), out = shape.x, xp.zeros(shape.operands(which)[2])
    x = xp.zeros((n, c, h + 2 * pad, w + 2 * pad))
    inner = x[:, :, pad : pad + h, pad : pad + w]
    if which != "input_gradient":
        inner[...] = a
    for p, q in np.ndindex(shape.kernel, shape.kernel):
        rows, columns = (slice(at, at + step * (m - 1) + 1, step) for at, m in ((p, shape.y[2]), (q, shape.y[3])))
        seen = x[:, :, rows, columns]
        if which == "forward":
            out += xp.tensordot(seen, b[:, :, p, q], (1, 1)).transpose(0, 3, 1, 2)
        elif which == "input_gradient":
            seen += xp.tensordot(a, b[:, :, p, q], (1, 0)).transpose(0, 3, 1, 2)
        else:
            out[:, :, p, q] = xp.tensordot(b, seen, ((0, 2, 3), (0, 2, 3)))
    return inner.copy() if which == "input_gradient" else out


# The rungs


def prepare(precision, seconds, shape, which, a, b, *bias):
    """Return `Prepared` for a pass by the fastest of cuDNN's plans; its `Choice` is the first that it keeps.

    seconds: how long plans are tried, in each layout. a, b: float32 CuPy arrays stored by rows, as `Shape.operands`
    says. bias: (1, channels, 1, 1) float32, of a forward pass that is followed by it and by ReLU, in the same kernel.
    Raises ValueError where cuDNN has no plan, or is missing.
    """
    if reason := why_not():
        raise ValueError(reason)
    import cupy

    choice, problem = tuned(shape, which, precision, seconds=seconds, followed=bool(bias))
    arrays, workspace = place(problem, a, b, *bias), cupy.cuda.alloc(max(1, choice.workspace))
    call = problem.call(choice.index, arrays, workspace)
    return Prepared(call, lambda: result_of(problem, arrays[2]), choice.workspace, (choice, problem, arrays, workspace))


def prepare_fp16(seconds, shape, which, a, b):
    """As `prepare`, of products in fp16: to make operands fp16, and of a result float32, is part of the pass."""
    import cupy

    product = prepare("fp16", seconds, shape, which, a, b)
    _, problem, arrays, _ = product.keeps
    made = [(half, _to_layout(each, problem.layout)) for half, each in zip(arrays, (a, b), strict=False)]
    result = cupy.empty(arrays[2].shape, np.float32)

    def call():
        for half, each in made:
            cupy.copyto(half, each)
        product.call()
        if problem.result == "fp16":
            cupy.copyto(result, arrays[2])

    taken = sum(half.nbytes for half, _ in made) + (arrays[2].nbytes if problem.result == "fp16" else 0)
    return Prepared(call, product.result, product.workspace + taken, (*product.keeps, made, result))


def _why_not(shape, which):
    return why_not()


def rungs(seconds=SECONDS):
    """Return cuDNN as rungs, by name, that try its plans for so many seconds in each layout."""
    labels = {"float32": "cuDNN, float32", "tf32": "cuDNN, TF32", "bf16": "cuDNN, bfloat16"}
    return {
        f"cudnn_{precision}": Rung(label, (), precision, "nhwc", partial(prepare, precision, seconds), _why_not)
        for precision, label in labels.items()
    }


def rung_fp16(seconds=SECONDS):
    """Return cuDNN's fp16 as a rung: what it may do where others may have fp16 when they are asked for TF32."""
    return Rung("cuDNN, fp16", (), CLASSES["fp16"], "nhwc", partial(prepare_fp16, seconds), _why_not)


RUNGS = rungs()
