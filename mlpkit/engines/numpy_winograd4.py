"""NumPy, Winograd F(4x4, 3x3): tiles of 4 x 4 outputs, with 36 products where the sum has 144.

A quarter of the products for transforms with numbers up to 8, see `images.winograd`. In float32 its errors are six
times those of im2col: 1.7e-6 beside 3.0e-7, root mean square, relative to the outputs', and 3e-5 at most (64 channels
of 28 x 28 normal numbers, an Intel processor with AVX-512). The losses of 20 steps of the Fashion-MNIST network, SGD
with a rate of 0.01, are the baseline's to 4e-7.

Kernels of 3 x 3 with a stride of 1. All others take `numpy_im2col`'s way, and its workspace.

Workspace: 6 MiB, or 12 images where that is more, and 10 copies of the kernels.
"""

from . import numpy_im2col
from .images.winograd import Winograd
from .numpy_baseline import *

OWN = ("conv", "conv_backward_weights", "conv_backward_input")

_form = Winograd(4, numpy_im2col)
conv, conv_backward_weights, conv_backward_input = _form.conv, _form.conv_backward_weights, _form.conv_backward_input
