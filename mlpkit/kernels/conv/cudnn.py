"""NVIDIA's library, cuDNN: all of its ways to compute a pass are timed, and the fastest one is kept.

cuDNN is told what to compute as a graph of operations, here of one, with where each number lies in memory: "nchw" or
"nhwc". It then has a list of plans, tens of them: a kernel (its "engine") and the sizes of its tiles (its "knobs"), in
the order of what it expects of them. It does not try them. `tuned` does, in both layouts.

Of float32 arrays cuDNN makes TF32 by default: its plans have notes, and those that say "tensor core" or that operands
are converted have to be sent away where float32 is meant. Needs the package `nvidia-cudnn-frontend` and the library.
"""

import time
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec

import numpy as np

from mlpkit.kernels.conv import ERRORS, Prepared, Rung
from mlpkit.kernels.conv.timing import quick_us

MOST_WORKSPACE = 2 << 30  # bytes: a plan that wants more is not tried
SECONDS = 1.0  # how long the plans of one layout are tried
LAYOUTS = ("nhwc", "nchw")
INSTALL = "pip install nvidia-cudnn-frontend==1.25.0 nvidia-cudnn-cu12"


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


def why_not(shape=None, which=None):
    """Return why cuDNN can't be asked here, a sentence, or None where it can."""
    if find_spec("cudnn") is None:
        return f"cuDNN is left out, its package nvidia-cudnn-frontend is not installed: {INSTALL}."
    try:
        import cudnn

        cudnn.backend_version()
    except (ImportError, OSError, RuntimeError) as error:
        return f"cuDNN is left out, its library can't be loaded ({error}): {INSTALL}."
    return None


def version():
    """Return the versions of cuDNN and of its package."""
    import cudnn

    return {"cudnn": cudnn.backend_version(), "nvidia-cudnn-frontend": cudnn.__version__}


class Problem:
    """A pass in one layout, as one of cuDNN's graphs, and the plans that it has for it.

    shape: a `Shape`, or what else has its stride, padding and operands. precision: "float32", "tf32" or "bf16". result:
    the type of the result, "float32" or "bf16". repeats: without plans that may give other bits at each call. direct:
    without those that transform. Raises ValueError where cuDNN has no plan.
    """

    def __init__(self, shape, which, precision, layout, result=None, repeats=False, direct=False):
        import cudnn

        self.shape, self.which, self.precision, self.layout = shape, which, precision, layout
        self.operand = "bf16" if precision == "bf16" else "float32"
        self.result = result or self.operand
        self.graph = cudnn.pygraph(compute_data_type=_types()["float32"], handle=_handle())
        a, b, out = shape.operands(which)
        first, second = (self._tensor(uid, each) for uid, each in ((1, a), (2, b)))
        steps = {"stride": [shape.stride] * 2, "padding": [shape.padding] * 2, "dilation": [1, 1]}
        operation = {
            "forward": partial(self.graph.conv_fprop, image=first, weight=second),
            "input_gradient": partial(self.graph.conv_dgrad, loss=first, filter=second),
            "weight_gradient": partial(self.graph.conv_wgrad, image=first, loss=second),
        }[which]
        found = operation(**steps).set_output(True).set_uid(3).set_data_type(_types()[self.result])
        found.set_dim(list(out)).set_stride(_strides(out, layout))
        notes = cudnn.numerical_note
        forbidden = [notes.NONDETERMINISTIC] if repeats else []
        transforms = "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13", "FFT"
        forbidden += [getattr(notes, name) for name in transforms] if direct else []
        if precision == "float32":
            forbidden += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS, notes.REDUCED_PRECISION_REDUCTION]
        self._find_plans(cudnn.heur_mode, forbidden)

    def _tensor(self, uid, shape):
        return self.graph.tensor(
            dim=list(shape), stride=_strides(shape, self.layout), data_type=_types()[self.operand], uid=uid
        )

    def _find_plans(self, modes, forbidden):
        try:
            self.graph.validate()
            self.graph.build_operation_graph()
            self.graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
        except _refusals() as error:
            raise ValueError(f"cuDNN has no plan for {self.shape}, {self.which}: {_first_line(error)}") from error
        self.graph.deselect_numeric_notes(forbidden)
        self.graph.deselect_workspace_greater_than(MOST_WORKSPACE)
        self.plans = self.graph.get_execution_plan_count()

    def name(self, index):
        """Return cuDNN's name of a plan."""
        return self.graph.get_plan_name_at_index(index)

    def different(self):
        """Return the numbers of the plans in cuDNN's order, without repetitions: it guesses in three ways."""
        first: dict[str, int] = {}
        for index in range(self.plans):
            first.setdefault(self.name(index), index)
        return list(first.values())

    def build(self, index):
        """Make a plan ready, and return how many bytes of workspace it needs. Raises ValueError where it can't be."""
        try:
            self.graph.build_plan_at_index(index)
        except _refusals() as error:
            raise ValueError(_first_line(error)) from error
        return self.graph.get_workspace_size_plan_at_index(index)

    def first(self):
        """Return the number of the first plan that can be built, and its workspace. Raises ValueError without any."""
        reason = "there is none"
        for index in self.different():
            try:
                return index, self.build(index)
            except ValueError as error:
                reason = str(error)
        raise ValueError(f"cuDNN can build no plan for {self.shape}, {self.which}: {reason}.")

    def place(self, a, b):
        """Return two operands, float32 arrays stored by rows, in this layout and type, and an array for the result."""
        import cupy

        dtype = np.uint16 if self.result == "bf16" else np.float32
        out = cupy.empty(_stored(self.shape.operands(self.which)[2], self.layout), dtype)
        operands = [_to_layout(each, self.layout) for each in (a, b)]
        return (*map(to_bf16, operands), out) if self.operand == "bf16" else (*operands, out)

    def call(self, index, arrays, workspace):
        """Return a function that runs a plan, which is built, on the current stream."""
        import cudnn
        from cupy.cuda import get_current_stream

        places = {uid: array.data.ptr for uid, array in enumerate(arrays, 1)}
        run, handle, room = self.graph.execute_plan_at_index, _handle(), workspace.ptr

        def call(_kept=(arrays, workspace)):
            cudnn.set_stream(handle=handle, stream=get_current_stream().ptr)
            run(places, room, index, handle)

        return call

    def result_of(self, out):
        """Return a result as float32 in the order of the ladder's shapes."""
        import cupy

        out = from_bf16(out) if self.result == "bf16" else out
        return cupy.ascontiguousarray(out.transpose(0, 3, 1, 2) if self.layout == "nhwc" else out)


# Layouts and types


def _strides(shape, layout):
    _, c, h, w = shape
    return [c * h * w, 1, w * c, c] if layout == "nhwc" else [c * h * w, h * w, w, 1]


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


@cache
def _types():
    import cudnn

    return {"float32": cudnn.data_type.FLOAT, "bf16": cudnn.data_type.BFLOAT16}


@cache
def _handle():
    import cudnn

    return cudnn.create_handle()


@cache
def _refusals():
    import cudnn

    return cudnn.cudnnGraphNotSupportedError, RuntimeError


def _first_line(error):
    return " ".join(str(error).split("\n")[0].split())[:200]


# Which plan is the fastest


@cache
def tuned(shape, which, precision, repeats=False, seconds=SECONDS):
    """Return the `Choice` among all plans of both layouts, each tried for so many seconds, and its `Problem`, built.

    Raises ValueError where cuDNN has none.
    """
    import cupy

    rng = cupy.random.default_rng(0)
    a, b = (rng.standard_normal(each, np.float32) for each in shape.operands(which)[:2])
    case, found, reasons = (a, b, exact(shape, which, a, b)), [], []
    for layout, result in _variants(which, precision):
        try:
            found += trials(Problem(shape, which, precision, layout, result, repeats), *case, seconds)
        except ValueError as error:
            reasons.append(str(error))
    if not found:
        raise ValueError(reasons[0] if reasons else f"none of cuDNN's plans runs for {shape}, {which}.")
    best = min(found, key=lambda choice: choice.us)
    problem = Problem(shape, which, precision, best.layout, best.result, repeats)
    problem.build(best.index)
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
    return [(layout, result) for layout in LAYOUTS for result in results]


def trials(problem, a, b, right, seconds=SECONDS, progress=lambda text: None):
    """Return a `Choice` for each plan of a problem that runs, in cuDNN's order, tried within so many seconds.

    a, b, right: operands, and their result. A plan whose result is too far off for its class is none: some transforms
    are, of large sums. progress: is told why.
    """
    import cupy

    arrays, found = problem.place(a, b), list[dict]()
    until, best, tried = time.perf_counter() + seconds, float("inf"), 0
    for index in problem.different():
        if found and time.perf_counter() > until:
            break
        tried += 1
        try:
            size = problem.build(index)
            call = problem.call(index, arrays, cupy.cuda.alloc(max(1, size)))
            check(call, lambda: problem.result_of(arrays[2]), right, ERRORS[problem.precision])
            us = quick_us(call, best)
        except (ValueError, *_refusals()) as error:  # such as a kernel that this GPU has not
            progress(f"{problem.name(index)}: {_first_line(error)}")
            continue
        best = min(us, best)
        found.append({"plan": problem.name(index), "index": index, "us": us, "workspace": size})
    counts = {"tried": tried, "plans": len(problem.different()), "layout": problem.layout, "result": problem.result}
    counts["first_us"] = found[0]["us"] if found else None
    return [Choice(**each, **counts) for each in found]


def check(call, result, right, most):
    """Raise ValueError where a call's result is further off than `most`, as a part of the norm."""
    import cupy

    call()
    error = float(cupy.linalg.norm((result() - right).ravel()) / cupy.linalg.norm(right.ravel()))
    if not error < most:  # nor where it is NaN
        raise ValueError(f"its result is off by {error:.1e} of its norm.")


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


def prepare(precision, seconds, shape, which, a, b):
    """Return `Prepared` for a pass by the fastest of cuDNN's plans; its `Choice` is the first that it keeps.

    seconds: how long plans are tried, in each layout. a, b: float32 CuPy arrays stored by rows, as `Shape.operands`
    says. Raises ValueError where cuDNN has no plan, or is missing.
    """
    if reason := why_not():
        raise ValueError(reason)
    import cupy

    choice, problem = tuned(shape, which, precision, seconds=seconds)
    arrays, workspace = problem.place(a, b), cupy.cuda.alloc(max(1, choice.workspace))
    call = problem.call(choice.index, arrays, workspace)
    return Prepared(call, lambda: problem.result_of(arrays[2]), choice.workspace, (choice, problem, arrays, workspace))


def rungs(seconds=SECONDS):
    """Return cuDNN as rungs, by name, that try its plans for so many seconds in each layout."""
    labels = {"float32": "cuDNN, float32", "tf32": "cuDNN, TF32", "bf16": "cuDNN, bfloat16"}
    return {
        f"cudnn_{precision}": Rung(label, (), precision, "nhwc", partial(prepare, precision, seconds), why_not)
        for precision, label in labels.items()
    }


RUNGS = rungs()
