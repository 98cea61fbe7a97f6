"""CUDA graph of blocks: the whole step of any model, from the batch to the update, is recorded once and replayed.

See `cuda/plan`. Predictions are graphs, too: see `cuda/prediction`.
"""

from .cuda.evaluation import Evaluation as Evaluation
from .cuda.matches import matches_for
from .cuda.plan import PlannedTrainer
from .cuda.prediction import Prediction as Prediction
from .plain import why_not as why_not


def why_not_with_less_precision(engine, model, optimizer, batch_size):
    """Return None, or why `engine`, a name, refuses a network whose products are to have fewer bits."""
    if optimizer.network.dtype == "float32":
        return None
    return (
        f"{engine} computes in float32, with products of fewer bits, not in {optimizer.network.dtype}: "
        "take cuda_conv_graph."
    )


class Trainer(PlannedTrainer):
    """Replays one step at a time. See `executors.protocol.Trainer`."""

    def __init__(self, network, optimizer, X, y, batch_size):
        self.matches = matches_for(network.dtype)
        super().__init__(network, optimizer, X, y, batch_size)
