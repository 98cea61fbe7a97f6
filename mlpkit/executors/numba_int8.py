"""As `numba_conv`, with predictions in integers unless another precision is asked for."""

from functools import partial

from .direct import prediction
from .numba_conv import Evaluation as Evaluation
from .numba_conv import Trainer as Trainer
from .numba_conv import why_not as why_not

Prediction = partial(prediction, precision="int8")
