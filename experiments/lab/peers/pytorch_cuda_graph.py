"""PyTorch, compiled, CUDA graph: the whole compiled step is captured and replayed; Python asks for one thing a step.

A graph of 13 steps is no faster. The mode "max-autotune-no-cudagraphs" tries 20 kernels for each kind of matrix
product, which takes 20 s each on an H200: for the largest it kept this one, for 128 x 128 it found one 2 us faster.
"""

import torch

from .pytorch_cuda_compiled import Training

# Forward convolutions and what lies between products are tried; products of matrices were, see above.
TUNED = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN"}


def prepare(problem, precision="highest", **how):
    """Return steps(n). how: the rest of what `Training` is told."""
    training = Training("cuda", problem, precision, **how)
    graph = capture(training.step, training.state)
    return training.repeat(graph.replay)


def capture(step, state, warmup=3):
    """Return a CUDA graph of `step`, and leave the tensors of `state` as they were."""
    before = [tensor.clone() for tensor in state]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # where PyTorch wants the steps before a capture; the first one compiles
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, value in zip(state, before, strict=True):
        tensor.copy_(value)
    return graph
