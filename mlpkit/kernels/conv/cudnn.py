"""NVIDIA's library, cuDNN: a pass is one of its graphs, and what it can do with it are its plans.

cuDNN is told what to compute as a graph of operations, here of one, with where each element lies in memory: "nchw" or
"nhwc". It then has a list of plans, tens of them: a kernel (its "engine") and the sizes of its tiles (its "knobs"), in
the order of what it expects of them. It does not try them.

Of float32 arrays cuDNN makes TF32 by default: its plans have notes, and those that say "tensor core" or that operands
are converted have to be sent away where float32 is meant. Needs the package `nvidia-cudnn-frontend` and the library.
"""

from functools import cache, partial
from importlib.util import find_spec

MOST_WORKSPACE = 2 << 30  # bytes: a plan that wants more is not tried
INSTALL = "pip install nvidia-cudnn-frontend==1.25.0 nvidia-cudnn-cu12"


def why_not():
    """Return why cuDNN can't be asked here, a sentence, or None where it can."""
    if find_spec("cudnn") is None:
        return f"cuDNN is left out, its package nvidia-cudnn-frontend is not installed: {INSTALL}."
    try:
        import cudnn

        cudnn.backend_version()
    except (ImportError, OSError, RuntimeError) as error:
        return f"cuDNN is left out, its library can't be loaded ({error}): {INSTALL}."
    return None


class Problem:
    """A pass in one layout, as one of cuDNN's graphs, and the plans that it has for it.

    shape: a `Shape`, or what else has its stride, padding and operands. precision: "float32", "tf32", "fp16" or "bf16".
    result: the type of the result, "float32", "fp16" or "bf16". repeats: without plans that may give other bits at each
    call. direct: without those that transform. followed: a forward pass, by a bias, the fourth array, and by ReLU.
    Raises ValueError where cuDNN has no plan.
    """

    def __init__(self, shape, which, precision, layout, result=None, repeats=False, direct=False, followed=False):
        import cudnn

        self.shape, self.which, self.precision, self.layout = shape, which, precision, layout
        self.operand = precision if precision in ("fp16", "bf16") else "float32"
        self.result = result or self.operand
        inside = {"intermediate_data_type": _types()["float32"]} if followed else {}
        self.graph = cudnn.pygraph(compute_data_type=_types()["float32"], handle=_handle(), **inside)
        a, b, out = shape.operands(which)
        first, second = (self._tensor(uid, each) for uid, each in ((1, a), (2, b)))
        steps = {"stride": [shape.stride] * 2, "padding": [shape.padding] * 2, "dilation": [1, 1]}
        operation = {
            "forward": partial(self.graph.conv_fprop, image=first, weight=second),
            "input_gradient": partial(self.graph.conv_dgrad, loss=first, filter=second),
            "weight_gradient": partial(self.graph.conv_wgrad, image=first, loss=second),
        }[which]
        found = operation(**steps)
        if followed:
            bias = self._tensor(4, (1, out[1], 1, 1))
            found = self.graph.relu(input=self.graph.bias(input=found, bias=bias))
        found.set_output(True).set_uid(3).set_data_type(_types()[self.result])
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
        except refusals() as error:
            raise ValueError(f"cuDNN has no plan for {self.shape}, {self.which}: {first_line(error)}") from error
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
        except refusals() as error:
            raise ValueError(first_line(error)) from error
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

    def call(self, index, arrays, workspace):
        """Return a function that runs a plan, which is built, on the current stream."""
        import cudnn
        from cupy.cuda import get_current_stream

        places = {uid: array.data.ptr for uid, array in enumerate(arrays, 1)}
        run, handle, buffer = self.graph.execute_plan_at_index, _handle(), workspace.ptr

        def call(_kept=(arrays, workspace)):
            cudnn.set_stream(handle=handle, stream=get_current_stream().ptr)
            run(places, buffer, index, handle)

        return call


def _strides(shape, layout):
    _, c, h, w = shape
    return [c * h * w, 1, w * c, c] if layout == "nhwc" else [c * h * w, h * w, w, 1]


@cache
def _types():
    import cudnn

    return {"float32": cudnn.data_type.FLOAT, "fp16": cudnn.data_type.HALF, "bf16": cudnn.data_type.BFLOAT16}


@cache
def _handle():
    import cudnn

    return cudnn.create_handle()


@cache
def refusals():
    import cudnn

    return cudnn.cudnnGraphNotSupportedError, RuntimeError


def first_line(error):
    return " ".join(str(error).split("\n")[0].split())[:200]
