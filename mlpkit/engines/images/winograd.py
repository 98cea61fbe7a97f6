"""Winograd's minimal filtering for kernels of 3 x 3 and a stride of 1: fewer products, for more sums.

One dimension first. F(m, r) computes m outputs of a filter of r taps, `y[i] = sum(g[p] d[i + p])`, from t = m + r - 1
numbers d with t products instead of m * r. Where the matrices come from (Toom 1963, Cook 1966):

1. Two polynomials of degree m - 1 and r - 1 multiply to one of degree t - 1, which t values decide. So evaluate both at
   t points, multiply the values, and interpolate. One point may be "infinity", whose value is the highest coefficient.
   Evaluation at a is a row (1, a, a^2, ...). Interpolation through the finite points, M(x) = prod(x - a_j), weighs the
   value at a_j with the polynomial `M(x) / (x - a_j)` divided by `f_j = prod(a_j - a_i, i != j)`, and infinity's with M
   itself.
2. With A and G for the two evaluations, B for the interpolation and a dot for number by number, the product of the
   polynomials a and g is `B [(A a) . (G g)]`. It is linear in a, from m numbers to t. A filter is the transposed map,
   from t numbers to m: where the product adds g[p] a[i] to place i + p, the filter adds g[p] d[i + p] to place i. To
   transpose is to read the factors from right to left (Winograd 1980):

       y = A^T [(G g) . (B^T d)]

A is (t, m), G (t, r), B (t, t). The divisions by f_j are left to the rows of G, which are computed once; then row j of
B^T has the coefficients of M(x) / (x - a_j), which for small integers a_j are integers. Points 0, 1, -1 give F(2, 3),
and 2, -2 beside them F(4, 3): the matrices of Lavin and Gray (2015), arXiv:1509.09308, but for signs. More points make
large numbers that cancel, and so errors grow.

In two dimensions the maps are applied to rows, then to columns. A tile of t x t numbers gives m x m outputs,

    Y = A^T [(G g G^T) . (B^T d B)] A,

with t * t products instead of 9 m * m: 16 for 36 if m = 2, 36 for 144 if m = 4. The sum over the channels is taken
before A is applied, and so is a matrix product for each of the t * t places. The map is linear in g and in d, and its
gradients are its transposes: that of g is `G^T [(A dY A^T) . (B^T d B)] G`. The gradient of d is a convolution of dY
again.
"""

from functools import cache

import numpy as np

from .pieces import clear, join, pieces, places, product, put_bias_gradient, split, taps, with_bias

POINTS = (0, 1, -1, 2, -2)
TAPS = 3


@cache
def cook_toom(m, r=TAPS):
    """Return A (t, m), G (t, r) and B (t, t) of F(m, r), float64, for t = m + r - 1 <= 6."""
    t = m + r - 1
    finite = np.array(POINTS[: t - 1], float)
    A, G = (np.vstack([np.vander(finite, n, increasing=True), np.eye(n)[-1:]]) for n in (m, r))
    B = np.zeros((t, t))
    for j, point in enumerate(finite):
        others = np.delete(finite, j)
        B[: t - 1, j] = np.poly(others)[::-1]
        G[j] /= np.prod(point - others)
    B[:, -1] = np.poly(finite)[::-1]
    return A, G, B


class Winograd:
    """The three operations of a convolution with tiles of m x m outputs; `others` has them for what is not 3 x 3."""

    def __init__(self, m, others):
        self.m, self.others = m, others
        self.A, self.G, self.B = cook_toom(m)

    def conv(self, x, W, b, stride, padding):
        if not fits(W, stride):
            return self.others.conv(x, W, b, stride, padding)
        z = self.correlate(x, W, padding, places(x.shape, TAPS, stride, padding))
        clear(z, x, TAPS, stride, padding)
        return with_bias(z, b)

    def conv_backward_weights(self, x, dz, dW, db, stride, padding):
        if not fits(dW, stride):
            return self.others.conv_backward_weights(x, dz, dW, db, stride, padding)
        (c_out, c), (h, w) = dW.shape[:2], dz.shape[2:]
        dU = np.zeros((len(self.B) ** 2, c_out, c), x.dtype)
        for at, rows, columns in self.pieces(len(x), c + c_out, h, w, x.itemsize):
            V = self.tiles(x[at], padding, rows, columns)
            dM = both(self.A, split(dz[at], rows, columns, self.m))
            dU += flat(dM) @ flat(V).swapaxes(1, 2)
        dW[...] = both(self.G.T, dU.reshape(*self.B.shape, c_out, c)).transpose(2, 3, 0, 1)
        put_bias_gradient(dz, db)

    def conv_backward_input(self, dz, W, shape, stride, padding):
        if not fits(W, stride):
            return self.others.conv_backward_input(dz, W, shape, stride, padding)
        flipped = W.swapaxes(0, 1)[:, :, ::-1, ::-1]
        return self.correlate(dz, flipped, TAPS - 1 - padding, shape[2:])

    def correlate(self, x, W, padding, size):
        """Return z (n, c_out, *size), without a bias. A negative padding leaves out the image's border."""
        (c_out, c), (h, w) = W.shape[:2], size
        U = flat(both(self.G, W.transpose(2, 3, 0, 1)))
        z = np.empty((len(x), c_out, h, w), x.dtype)
        for at, rows, columns in self.pieces(len(x), c + c_out, h, w, x.itemsize):
            M = product(U, flat(self.tiles(x[at], padding, rows, columns)))
            Y = both(self.A.T, M.reshape(*self.B.shape, c_out, -1))
            z[at] = join(Y.reshape(self.m, self.m, c_out, -1, rows, columns), z[at].shape, 0)
        return z

    def tiles(self, x, padding, rows, columns):
        """Return `B^T d B` (t, t, c, n, rows, columns) of the tiles d of x (n, c, ., .), so many down and across."""
        phases = split(x, rows + 1, columns + 1, self.m, padding)
        D = np.empty((*self.B.shape, x.shape[1], len(x), rows, columns), x.dtype)
        for place, tap in zip(np.ndindex(self.B.shape), taps(phases, len(self.B), rows, columns), strict=True):
            D[place] = tap
        return both(self.B.T, D)

    def pieces(self, n, channels, h, w, itemsize):
        """Yield slices of n images, with how many tiles there are down and across."""
        rows, columns = -(-h // self.m), -(-w // self.m)
        for at in pieces(n, 2 * self.B.size * channels * rows * columns * itemsize):
            yield at, rows, columns


def fits(W, stride):
    return W.shape[2:] == (TAPS, TAPS) and stride == 1


def both(M, D):
    """Return `M D M^T` of each of many small matrices D: of the first two axes of an array, in its dtype."""
    M = M.astype(D.dtype)
    down = (M @ D.reshape(len(D), -1)).reshape(len(M), D.shape[1], -1)
    return np.matmul(M, down).reshape(len(M), len(M), *D.shape[2:])


def flat(D):
    """Return an array (t, t, channels, ...) as t * t matrices of its channels."""
    return D.reshape(D.shape[0] * D.shape[1], D.shape[2], -1)
