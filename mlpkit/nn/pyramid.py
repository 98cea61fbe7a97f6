"""An image, and below it its half, as in Adelson et al. (1984): the same convolutions find what is twice as large."""

from dataclasses import dataclass

from .conv import check_image, from_0
from .layers import Layer


@dataclass(frozen=True, repr=False)
class Pyramid(Layer):
    """Images (c, h, w) become (c, h + gap + h / 2, w): then `gap` rows of zeros, then means of 2 x 2, beside zeros."""

    gap: int = 8
    operations = "avg_pool", "avg_pool_backward", "concat", "add"
    checks = (("gap", from_0),)

    def output(self, shape):
        check_image(shape)
        if shape[1] % 2 or shape[2] % 2 or self.gap > shape[1]:
            raise ValueError(f"it takes even edges, not below its gap, and gets {shape[1]} x {shape[2]}")
        return shape[0], shape[1] * 3 // 2 + self.gap, shape[2]

    def forward(self, at, x):
        at.shape = x.shape
        return _stacked(at.engine, x, at.engine.avg_pool(x, 2, 2), self.gap)

    def backward(self, at, dy):
        whole, half = (1 * level for level in _levels(dy, self.gap))  # whose numbers lie one after another
        return at.engine.add(whole, at.engine.avg_pool_backward(half, at.shape, 2, 2)) if at.wants_dx else None


class Levels(Pyramid):
    """What a `Pyramid` of that gap put together comes apart, as rows: the whole, then its half."""

    def output(self, shape):
        check_image(shape)
        if (shape[1] - self.gap) % 3 or shape[1] <= self.gap or shape[2] % 2:
            raise ValueError(f"{shape[1]} x {shape[2]} is no image, {self.gap} rows and half an image")
        return (shape[0] * shape[2] * (shape[1] - self.gap) * 5 // 6,)

    def forward(self, at, x):
        at.shape = x.shape
        return at.engine.concat([level.reshape(len(x), -1) for level in _levels(x, self.gap)])

    def backward(self, at, dy):
        n, c, _, w = at.shape
        size = dy.shape[1] * 4 // 5  # of the whole
        parts = dy[:, :size].reshape(n, c, -1, w), dy[:, size:].reshape(n, c, -1, w // 2)
        return _stacked(at.engine, *parts, self.gap)


def _stacked(engine, whole, half, gap):
    flat = half.reshape(-1, 1, *half.shape[2:])
    parts = whole, 0 * whole[:, :, :gap], engine.concat([flat, 0 * flat]).swapaxes(1, 2)  # (n c, h / 2, 2, w / 2)
    return engine.concat([part.reshape(len(flat), -1) for part in parts]).reshape(*whole.shape[:2], -1, whole.shape[3])


def _levels(y, gap):
    h = (y.shape[2] - gap) * 2 // 3
    return y[:, :, :h], y[:, :, h + gap :, : y.shape[3] // 2]
