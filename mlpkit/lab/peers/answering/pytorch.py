"""PyTorch, channels last, in a CUDA graph: its own kernels one by one, and what `torch.compile` makes of all of them.

In bf16 parameters and activations are of 16 bits. Pixels go to the GPU as bytes, from memory that it reads itself.
"""

from types import SimpleNamespace

import torch
from torch.nn import functional as F

from mlpkit.lab.clock import device_us

from . import Way, each_array, through


def ways(task, n, precision):
    """Yield the ways; the compiled one for the sizes that are to be compiled, and where the compiler does not fail."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    places = task.places()
    each_array(places, lambda array: on_gpu(array, dtype))

    def forward(x):
        return through(places, OPERATIONS, x.to(dtype) / 255).float()

    yield way("graph", forward, task.x[:n])
    if n not in task.compiled:
        return
    torch._dynamo.reset()
    try:
        compiled = way("compiled, graph", torch.compile(forward, dynamic=False, fullgraph=True), task.x[:n])
    except torch._dynamo.exc.TorchDynamoException:
        return
    yield compiled


def on_gpu(array, dtype):
    found = torch.from_numpy(array).to("cuda", dtype)
    return found.contiguous(memory_format=torch.channels_last) if found.ndim == 4 else found


def way(name, forward, pixels):
    """Return a `Way` of a graph of `forward`."""
    x = torch.from_numpy(pixels).to("cuda", memory_format=torch.channels_last)
    host, side = torch.from_numpy(pixels.copy()).pin_memory(), torch.cuda.Stream()
    with torch.inference_mode():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # where PyTorch wants the runs before a capture; the first one compiles
            for _ in range(3):
                forward(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            z = forward(x)

    def answer(pixels):
        host.copy_(torch.from_numpy(pixels))
        x.copy_(host, non_blocking=True)
        graph.replay()
        return z.cpu().numpy()

    return Way(name, lambda times: device_us(graph.replay, times), answer, forward)


def flatten(at, x):
    return x.permute(0, 2, 3, 1).reshape(len(x), -1) if x.ndim == 4 else x


OPERATIONS = SimpleNamespace(
    Conv=lambda at, x: F.conv2d(x, at.W, getattr(at, "b", None), at.layer.stride, at.layer.padding),
    Linear=lambda at, x: torch.addmm(at.b, x, at.W),
    ReLU=lambda at, x: torch.relu(x),
    MaxPool=lambda at, x: F.max_pool2d(x, at.layer.size, at.layer.stride),
    Flatten=flatten,
)
