"""PyTorch, channels last, in a CUDA graph: its own kernels one by one, and what `torch.compile` makes of all of them.

Of pictures, in which are few channels and many pixels, both layouts are tried.

In fp16 and bf16 parameters and activations are of 16 bits. What a program calls is one more graph, with both copies in
it: of pixels, as bytes, from memory that the GPU reads itself, and of the outputs. NumPy copies the pixels there: of
many, PyTorch would do it in threads, and each call waits for the one that got a core last. Here that took up to 8 ms.
"""

from types import SimpleNamespace

import torch
import torch._inductor.config as compiler
from torch.nn import functional as F

from experiments.lab.clock import device_us

from . import Variant, each_array, through

PICTURE = 100_000  # pixels


def variants(task, n, precision):
    """Yield the ways; the compiled one where the compiler does not fail."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    compiler.compile_threads = 1  # processes of its own would take the cores of others that compile beside this one
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
    yield from in_layout("graph", task, n, dtype, torch.channels_last)
    if task.x[0, 0].size > PICTURE:
        yield from in_layout("channels first, graph", task, n, dtype, torch.contiguous_format)


def in_layout(name, task, n, dtype, layout):
    """Yield the ways with a layout of images; the compiled one where the compiler does not fail."""
    bound_layers = task.bound_layers()
    each_array(bound_layers, lambda array: on_gpu(array, dtype, layout))

    def forward(x):
        return through(bound_layers, OPERATIONS, x.to(dtype) / 255).float()

    yield way(name, forward, task.x[:n], layout)
    torch._dynamo.reset()
    try:
        compiled = torch.compile(forward, dynamic=False, fullgraph=True)
        found = way(f"compiled, {name}", compiled, task.x[:n], layout)
    except torch._dynamo.exc.TorchDynamoException:
        return
    yield found


def on_gpu(array, dtype, layout):
    found = torch.from_numpy(array).to("cuda", dtype)
    return found.contiguous(memory_format=layout) if found.ndim == 4 else found


def way(name, forward, pixels, layout):
    """Return a `Variant` of a graph of `forward`."""
    x = torch.from_numpy(pixels).to("cuda", memory_format=layout)
    with torch.inference_mode():
        sent, back = torch.from_numpy(pixels.copy()).pin_memory(), forward(x).cpu().pin_memory()
    there, here = sent.numpy(), back.numpy()

    def with_copies():
        x.copy_(sent, non_blocking=True)
        back.copy_(forward(x), non_blocking=True)

    graph, whole = graph_of(lambda: forward(x)), graph_of(with_copies)

    def predict(pixels):
        there[...] = pixels
        whole.replay()
        torch.cuda.current_stream().synchronize()
        return here.copy()

    return Variant(name, lambda times: device_us(graph.replay, times), predict, (x, forward))


def graph_of(work):
    """Return a CUDA graph of `work`."""
    side = torch.cuda.Stream()
    with torch.inference_mode():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # where PyTorch wants the runs before a capture; the first one compiles
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    return graph


def flatten(at, x):
    return x.permute(0, 2, 3, 1).reshape(len(x), -1) if x.ndim == 4 else x


OPERATIONS = SimpleNamespace(
    Conv=lambda at, x: F.conv2d(x, at.W, getattr(at, "b", None), at.layer.stride, at.layer.padding),
    Linear=lambda at, x: torch.addmm(at.b, x, at.W),
    ReLU=lambda at, x: torch.relu(x),
    MaxPool=lambda at, x: F.max_pool2d(x, at.layer.size, at.layer.stride),
    Flatten=flatten,
    Crop=lambda at, x: x[..., at.layer.size : -at.layer.size, at.layer.size : -at.layer.size],
    PixelShuffle=lambda at, x: F.pixel_shuffle(x, at.layer.scale),
)
