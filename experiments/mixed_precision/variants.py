"""Which numbers a training multiplies, and in which it keeps its weights. No GPU is needed to read this."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """products: what the factors of a matrix product are rounded to. weights: what they are kept and updated in.

    scale: what the loss is multiplied by before the gradients, which are divided by it after.
    """

    products: str
    weights: str = "float32"
    scale: float = 1.0


VARIANTS = {
    "float32": Variant("float32"),
    "TF32": Variant("tf32"),
    "bfloat16": Variant("bfloat16"),
    "bfloat16, weights too": Variant("bfloat16", weights="bfloat16"),
    "float16": Variant("float16"),
    "float16, loss x 1024": Variant("float16", scale=1024.0),
}
