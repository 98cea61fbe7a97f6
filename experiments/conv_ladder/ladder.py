"""The rungs of all modules, in the ladder's order, and which of them to take for a pass."""

from mlpkit import kernels
from mlpkit.checks import check_choice
from mlpkit.kernels.conv import PASSES

from .rungs import ERRORS, blocked, cores, cudnn, fourier, implicit, product, winograd

MODULES = (cores, product, implicit, winograd, fourier, blocked, cudnn)
RUNGS = {name: rung for module in MODULES for name, rung in module.RUNGS.items()}
OURS = tuple(name for name in RUNGS if name not in cudnn.RUNGS)

# In each class those that were ahead at most of the shapes of the record "conv_choice", the first one that can: of the
# two passes that make images, and of the one that makes filters. With few channels, the number at the end at most, a
# tensor core's tile would be mostly zeros, and CUDA cores are ahead. `choose` looks closer.
PREFERRED = {
    "float32": (("planes_fp16x3", "tf32x3"), ("planes_fp16x3", "tf32x3"), 16),
    "tf32": (("planes_tf32", "tf32"), ("planes_fp16", "tf32"), 4),
    "bf16": (("planes_bf16", "bf16"), ("planes_bf16", "bf16"), 0),
}
ON_CORES = ("one_channel", "registers", "direct")


def fits(rung, capability):
    """Say whether a rung's kernels are for GPUs of a compute capability, given as its digits, such as "90"."""
    return all(kernels.is_for(file, capability) for file in rung.files)


def best(shape, which, precision, capability="90"):
    """Return the name of the rung to take for a pass, in a class, or one that is more precise.

    capability: the GPU's, as for `fits`. Nothing is timed: see `choose.fastest`. Raises ValueError for a pass or a
    class that there is not, and where no rung can.
    """
    check_choice("pass", which, PASSES)
    check_choice("precision", precision, tuple(ERRORS))
    images, filters, few = PREFERRED[precision]
    preferred = filters if which == "weight_gradient" else images
    on_cores = ON_CORES if few else ()  # those store float32
    is_narrow = min(shape.channels, shape.channels_out) <= few
    for name in (*on_cores, *preferred) if is_narrow else (*preferred, *on_cores):
        if fits(RUNGS[name], capability) and not RUNGS[name].why_not(shape, which):
            return name
    raise ValueError(f"no rung of the ladder can do {which} of {shape} in {precision}.")
