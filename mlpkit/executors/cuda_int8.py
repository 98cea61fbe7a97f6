"""As `cuda_conv_graph`, with predictions in integers unless another precision is asked for."""

from . import cuda_conv_graph
from .cuda.integers import Integers
from .cuda_conv_graph import Evaluation as Evaluation
from .cuda_conv_graph import Trainer as Trainer
from .cuda_conv_graph import why_not as why_not
from .integers import integers_of


class Prediction(cuda_conv_graph.Prediction):
    """Predictions in integers, or in the network's type. See `executors.protocol.Prediction`.

    Raises ValueError for layers that no kernel of bytes does, and what `integers_of` raises.
    """

    def __init__(self, network, n, precision="int8", calibration=None):
        integers = integers_of(network, precision, calibration)
        super().__init__(network, n, whole=integers and Integers(integers, n))
