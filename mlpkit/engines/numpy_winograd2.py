"""NumPy, Winograd F(2x2, 3x3): tiles of 2 x 2 outputs, with 16 products where the sum has 36.

The transforms, where they come from and what they cost is in `images.winograd`. In float32 its errors are those of
im2col: 2.6e-7 beside 3.0e-7, root mean square, relative to the outputs' (64 channels of 28 x 28 normal numbers, an
Intel processor with AVX-512).

Kernels of 3 x 3 with a stride of 1. All others take `numpy_im2col`'s way, and its workspace.

Workspace: 6 MiB, or 16 images where that is more, and 6 copies of the kernels.
"""

from . import numpy_im2col
from .images.winograd import Winograd
from .numpy_baseline import *

OWN = ("conv", "conv_backward_weights", "conv_backward_input")

_form = Winograd(2, numpy_im2col)
conv, conv_backward_weights, conv_backward_input = _form.conv, _form.conv_backward_weights, _form.conv_backward_input
