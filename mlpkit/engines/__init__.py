"""An engine is a module that does the arithmetic of training, in one particular way.

Every engine exports the same functions, so that two of them can be read side by side and swapped without a change
anywhere else. `Engine` lists those functions. `numpy_baseline` defines what each of them must compute; the others
are held to it by the tests, operation by operation and over a run of steps. An engine may also take whole steps or
epochs in a way of its own: see `train`.

In the signatures, `n` is the batch size; arrays have the network's dtype (float32, or float64 for a gradient check)
and labels are integers in `[0, classes)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from mlpkit.kernels import gpu

Array: TypeAlias = Any  # an engine's own array type: numpy.ndarray, cupy.ndarray, ...

BASELINE = "numpy_baseline"
INTERPRETED = ("python_lists", "python_loops")  # by Python, number by number: an epoch takes hours
NUMBA = (
    "numba_serial",
    "numba_parallel",
    "numba_fastmath",
    "numba_blocked",
    "numba_hybrid",
    "numba_step",
)
ON_GPU = (  # they need an NVIDIA GPU
    "cupy_naive",
    "cupy_fused",
    "cuda_graph_cublas",
    "cuda_graph",
    "cuda_graph_epoch",
    "cuda_three_kernels",
    "cuda_cluster",
    "cuda_persistent",
)
NAMES = (BASELINE, *INTERPRETED, *NUMBA, *ON_GPU)


class Engine(Protocol):
    """The functions that an engine module exports. Shapes and formulas: see `numpy_baseline`."""

    def asarray(self, array: Any, dtype: Any = None) -> Array:
        """Return `array` as this engine's array type, contiguous; not necessarily a copy."""

    def to_numpy(self, array: Array) -> Any:
        """Return an array, or a list of scalars such as losses, as a NumPy array on the host."""

    def synchronize(self) -> None:
        """Wait until all the work asked for so far is done. Call it before reading a clock."""

    def gather(self, X: Array, index: Array) -> Array:
        """Return the rows of `X` named by `index`."""

    def scale(self, pixels: Array, dtype: Any) -> Array:
        """Return uint8 pixels, 0 to 255, as numbers of `dtype` from 0 to 1."""

    def linear(self, x: Array, W: Array, b: Array) -> Array:
        """Return `z = x W + b`."""

    def linear_backward_weights(self, x: Array, dz: Array, dW: Array, db: Array) -> None:
        """Write the gradients of `W` and `b` into `dW` and `db`."""

    def linear_backward_input(self, dz: Array, W: Array) -> Array:
        """Return `dx`, the gradient of the layer's input."""

    def relu(self, z: Array) -> Array:
        """Return `a = max(z, 0)`."""

    def relu_backward(self, a: Array, da: Array) -> Array:
        """Return `dz`, from `da` and the activations that `relu` returned."""

    def softmax_cross_entropy(self, z: Array, labels: Array) -> tuple[Any, Array]:
        """Return the mean loss over the batch and its gradient `dz`."""

    def argmax(self, z: Array) -> Array:
        """Return the column of the largest value in each row."""

    def axpy(self, alpha: float, x: Array, y: Array) -> None:
        """Add `alpha * x` to `y` in place."""

    def sgd_update(self, theta: Array, grad: Array, lr: float) -> None:
        """Take one step of gradient descent, in place."""

    def momentum_update(self, theta: Array, grad: Array, velocity: Array, lr: float, momentum: float) -> None:
        """Take one step of gradient descent with momentum, in place."""

    def nesterov_update(self, theta: Array, grad: Array, velocity: Array, lr: float, momentum: float) -> None:
        """Take one step with Nesterov's momentum, in place."""

    def rmsprop_update(self, theta: Array, grad: Array, s: Array, lr: float, rho: float, eps: float) -> None:
        """Take one step of RMSprop, in place."""

    def adam_update(
        self,
        theta: Array,
        grad: Array,
        m: Array,
        v: Array,
        t: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
    ) -> None:
        """Take step number `t` (the first is 1) of Adam, in place."""


class EngineUnavailable(RuntimeError):
    """This machine lacks what an engine needs; the message says what, and how to get it."""


def load(name: str) -> Engine:
    """Import and return the engine called `name`.

    Raises ValueError for a name that no engine has, and EngineUnavailable where this machine can't run it: an engine
    says so by raising ImportError as it is imported, as `gpu.require()` does where CuPy finds no GPU. What else is
    raised there is its reason too.
    """
    if name not in NAMES:
        raise ValueError(f"there is no engine {name!r}; the engines are {', '.join(NAMES)}.")
    try:
        return cast(Engine, import_module(f"{__name__}.{name}"))
    except ImportError as error:
        reason = gpu.why_not() if error.name == "cupy" else error
        raise EngineUnavailable(f"engine {name} can't run on this machine: {reason}") from error
    except Exception as error:  # a broken library, or a variable that it can't make sense of, can raise anything
        reason = (name in ON_GPU and gpu.why_not()) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise EngineUnavailable(f"engine {name} can't run on this machine: {reason}") from error


def available() -> dict[str, str | None]:
    """Return each engine's name with None, or with the reason why this machine can't run it."""
    return {name: _why_not(name) for name in NAMES}


def _why_not(name: str) -> str | None:
    try:
        load(name)
    except EngineUnavailable as error:
        return str(error)
    return None


if TYPE_CHECKING:  # mypy rejects an engine here whose functions are missing or have other parameters
    from . import (
        cuda_cluster,
        cuda_graph,
        cuda_graph_cublas,
        cuda_graph_epoch,
        cuda_persistent,
        cuda_three_kernels,
        cupy_fused,
        cupy_naive,
        numba_blocked,
        numba_fastmath,
        numba_hybrid,
        numba_parallel,
        numba_serial,
        numba_step,
        numpy_baseline,
        python_lists,
        python_loops,
    )

    _engines: tuple[Engine, ...] = (
        numpy_baseline,
        python_lists,
        python_loops,
        numba_serial,
        numba_parallel,
        numba_fastmath,
        numba_blocked,
        numba_hybrid,
        numba_step,
        cupy_naive,
        cupy_fused,
        cuda_graph_cublas,
        cuda_graph,
        cuda_graph_epoch,
        cuda_three_kernels,
        cuda_persistent,
        cuda_cluster,
    )
