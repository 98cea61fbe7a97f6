"""A model as blocks: runs of layers that are computed together, each with a way forward and a way back.

A block takes over some layers that follow each other, and has

    forward(x: Value) -> Value           keeps what its backward needs, and no more
    backward(dy: Value) -> Value | None  writes the layers' gradients; drops what was kept, as soon as it is used
    wants: "nchw", "planes" or None      the layout in which x must come; None takes any. "stored": it takes any, but
                                         best what its products read, see `Value`
    gives                                optional: the layout that the next block wants; it is set once, before the
                                         first forward, and a block that can, writes its result so

`dy` comes in the layout in which `forward` gave its result, and what is returned lies as `x` did; the gradient of what
is "stored" lies as "planes". It is None where the first of the places has no `wants_dx`. A block makes what it writes
with `cupy.empty` whenever it is called: where that lies is planned, see `arena`. What lasts from step to step (scales,
tensor maps by address) is made in its constructor, or kept by address. Parameters are read from the places as they are
now (`at.W`), gradients are written (`at.dW`). All goes to the current stream, nothing waits, and the same calls follow
each other in every step: a step is recorded as a graph.

A module of blocks has a function

    match(places, i, shape, n, mode) -> None, or (number of layers that it takes over, block)

places: of the network or of a Residual, the block would begin with places[i]. shape: of an example there, such as
(64, 26, 26). n: the batch size; there are other blocks for another one. mode: one of `MODES`, the precision class.
"""

from typing import Any, NamedTuple

from mlpkit.kernels.conv import planes

# The modes of `planes` by precision class: float32 as three products of halves, TF32's digits as one product of halves
MODES = {"float32": planes.MODES["fp16x3"], "tf32": planes.MODES["fp16"], "bf16": planes.MODES["bf16"]}


class Value(NamedTuple):
    """What goes from block to block: activations, or their gradients, of a batch.

    layout: "nchw" is what layers know: float32 (n, channels, height, width), or rows (n, channels). "planes" is
    `planes.images_as_planes`: float32 (n, c / 4, height, width, 4), or for bf16 uint16 (n, c / 8, height, width, 8); c
    is `channels` rounded up to a multiple of 16, and what was added is zero, in gradients too. "stored": the array is a
    `planes.Stored`, planes as products read them, of float32 as halves; only who `gives` it may make it.
    """

    array: Any
    layout: str
    channels: int
