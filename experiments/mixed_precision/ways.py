"""Which numbers a training multiplies, and in which it keeps its weights. No GPU is needed to read this."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """products: what the factors of a matrix product are rounded to. weights: what they are kept and updated in.

    scale: what the loss is multiplied by before the gradients, which are divided by it after.
    """

    products: str
    weights: str = "float32"
    scale: float = 1.0


WAYS = {
    "float32": Way("float32"),
    "TF32": Way("tf32"),
    "bfloat16": Way("bfloat16"),
    "bfloat16, weights too": Way("bfloat16", weights="bfloat16"),
    "float16": Way("float16"),
    "float16, loss x 1024": Way("float16", scale=1024.0),
}
