"""Where each array of a model lies in one long vector: all computing with offsets is done here.

Arrays of two and more dimensions come first, in the order in which they are declared: these are the weights, which
decay. Vectors (biases, what a norm scales and shifts by) come last.
"""

from math import prod


class Layout:
    """Gives each declared array its place. shapes: a dict of shapes by name.

    `size`: of a vector that holds all; `n_decayed`: how many of its elements, the first ones, belong to weights.
    """

    def __init__(self, shapes):
        self.shapes = dict(shapes)
        self.slices, self.n_decayed, start = {}, 0, 0
        for name in sorted(self.shapes, key=lambda name: len(self.shapes[name]) < 2):  # stable: else as declared
            end = start + prod(self.shapes[name])
            self.slices[name] = slice(start, end)
            if len(self.shapes[name]) > 1:
                self.n_decayed = end
            start = end
        self.size = start

    def views(self, vector):
        """Return a dict of views by name, as declared, into a vector (size,) of any library's arrays."""
        return {name: vector[self.slices[name]].reshape(shape) for name, shape in self.shapes.items()}
