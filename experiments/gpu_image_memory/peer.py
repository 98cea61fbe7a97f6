"""What a peer takes of a GPU's memory: `python -m experiments.gpu_image_memory.peer NAME RECIPE`, in JSON.

Each has a process of its own: how PyTorch looks for cuDNN's algorithms, whose workspaces differ, is settled for a whole
process, and peers settle it differently. Beside its arrays PyTorch keeps workspaces for cuBLAS, which are as large
whatever the network: they are told separately. What a graph has freed while it was captured stays its own: it counts,
though PyTorch calls it free.
"""

import json
import sys
from importlib import import_module

from experiments.lab import peers, processes
from mlpkit.training.recipe import Recipe


def main(name, recipe):
    prepare, task = import_module(f"experiments.lab.peers.{name}").prepare, peers.problem(recipe)
    import torch  # as the peer does

    steps = prepare(task)
    steps(4)
    processes.wait_to_be_asked()
    torch.cuda.reset_peak_memory_stats()
    steps(4)
    most, allocated = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    pools = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) != (0, 0)]
    graph = sum(each["total_size"] - each["allocated_size"] for each in pools)
    torch._C._cuda_clearCublasWorkspaces()
    workspaces = allocated - torch.cuda.memory_allocated()
    examples = task.X.nbytes + task.y.nbytes + task.rows().nbytes  # and their order
    print(json.dumps({"bytes": most - examples - workspaces + graph, "workspaces": workspaces, "graph": graph}))


if __name__ == "__main__":
    main(sys.argv[1], Recipe.from_dict(json.loads(sys.argv[2])))
