"""Few large images as more, smaller ones: bands of rows, each with the rows around it that its windows reach.

A convolution that wants many images, one in each lane of a vector register, gets them so; what it computes is the same.
"""

import numpy as np

LEAST = 8  # rows of a band: those around it are copied twice


class Bands:
    """How images are cut for a convolution with windows of `size`, and so their results, (n, c, rows, columns).

    loops: `cut_bands` and `add_bands`, compiled. count: of an image.
    """

    @classmethod
    def of(cls, loops, n, wanted, rows, *window):
        """Return those of n images that make as many as are wanted, or come near; None where images do, or are none."""
        count = min(rows // LEAST, -(-wanted // n)) if n else 1
        return cls(loops, count, rows, *window) if count > 1 else None

    def __init__(self, loops, count, rows, size, stride, padding):
        self.loops, self.count, self.rows, self.padding = loops, count, rows, padding
        self.each = -(-rows // count)  # rows of a band of results
        self.step = self.each * stride  # rows from where a band begins to where the next one does
        self.height = self.step - stride + size

    def cut(self, x):
        """Return x (n, c, h, w) as (n * count, c, ...): what results' rows are made of, padding included."""
        return self.loops.cut_bands(np.ascontiguousarray(x), self.count, self.step, self.height, self.padding)

    def cut_results(self, z):
        """Return z (n, c, rows, columns) as (n * count, c, rows of a band, columns); zeros are behind the last row."""
        return self.loops.cut_bands(np.ascontiguousarray(z), self.count, self.each, self.each, 0)

    def merge_results(self, z):
        """Return what `cut_results` has cut, whole again."""
        shape = len(z) // self.count, z.shape[1], self.rows, z.shape[3]
        return self.loops.add_bands(z, self.count, self.each, shape, 0)

    def add_up(self, dx, shape):
        """Return gradients (n, c, h, w) of images that `cut` has cut: rows of two bands get the sum of both."""
        return self.loops.add_bands(dx, self.count, self.step, shape, self.padding)
