"""What a peer takes of a GPU's memory: `python -m mlpkit.lab.experiments.gpu_image_memory.peer NAME RECIPE`, in JSON.

Each has a process of its own: how PyTorch looks for cuDNN's algorithms, whose workspaces differ, is settled for a whole
process, and peers settle it differently.
"""

import json
import sys
from importlib import import_module

from mlpkit.lab import peers
from mlpkit.training.recipe import Recipe


def most_bytes(name, recipe):
    """Return the most bytes that PyTorch had allocated in some steps, the examples and their order left out."""
    prepare, task = import_module(f"mlpkit.lab.peers.{name}").prepare, peers.problem(recipe)
    import torch  # as the peer does

    steps = prepare(task)
    steps(4)
    torch.cuda.reset_peak_memory_stats()
    steps(4)
    return torch.cuda.max_memory_allocated() - task.X.nbytes - task.y.nbytes - task.rows().nbytes


if __name__ == "__main__":
    print(json.dumps(most_bytes(sys.argv[1], Recipe.from_dict(json.loads(sys.argv[2])))))
