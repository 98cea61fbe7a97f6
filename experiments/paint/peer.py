"""A painter in PyTorch: the same layers and parameters, compiled into a CUDA graph, in both layouts and both forms."""

import time

import numpy as np
import torch
from torch import nn

from mlpkit.nn.fold import fold

KINDS = {
    "ReLU": lambda one, c: nn.ReLU(),
    "Sigmoid": lambda one, c: nn.Sigmoid(),
    "Upsample": lambda one, c: nn.Upsample(scale_factor=one.scale, mode=one.mode),
    "PixelShuffle": lambda one, c: nn.PixelShuffle(one.scale),
    "Conv": lambda one, c: nn.Conv2d(c, one.channels, one.size, one.stride, one.padding, bias=one.bias),
    "InstanceNorm": lambda one, c: nn.InstanceNorm2d(c, one.eps, affine=one.affine),
    "BatchNorm": lambda one, c: nn.BatchNorm2d(c, one.eps, one.momentum),
    "Flatten": lambda one, c: nn.Flatten(),
    "Crop": lambda one, c: nn.ZeroPad2d(-one.size),
}
TOGETHER = {"Residual": sum, "Concat": lambda parts: torch.cat(list(parts), 1)}


class Branches(nn.Module):  # type: ignore[misc]
    """What chains make of the same input, added up, or side by side."""

    def __init__(self, branches, together):
        super().__init__()
        self.branches, self.together = nn.ModuleList(branches), together

    def forward(self, x):
        return self.together(branch(x) for branch in self.branches)


def module(layers):
    """Return bound layers as a module, with their parameters."""
    found = []
    for at in layers:
        if at.branches:
            branches = [module(branch) for branch in at.branches]
            found.append(Branches(branches, TOGETHER[type(at.layer).__name__]))
            continue
        arrays = {name: _tensor(at, name) for name in ("W", "b", "gamma", "beta") if hasattr(at, name)}
        channels = arrays["W"].shape[1] if "W" in arrays else len(arrays.get("gamma", ()))
        one = KINDS[type(at.layer).__name__](at.layer, channels)
        for name, theirs in zip(("W", "b", "gamma", "beta"), ("weight", "bias", "weight", "bias"), strict=True):
            if name in arrays:
                getattr(one, theirs).data = arrays[name]
        found.append(one)
    return nn.Sequential(*found)


def _tensor(at, name):
    return torch.tensor(at.engine.to_numpy(getattr(at, name)).copy())


def forms(network):
    """Return the network as it is written, and as it is compiled here, as modules that take pictures from 0 to 1."""
    return {"as written": module(network.layers), "folded": module(fold(network).layers)}


def samples(network, x, precision, mode, form, layout, replays=50, repeats=7):
    """Return microseconds a picture, and how far the outputs are from float32's: x (1, 3, h, w) float32, NumPy's.

    precision: "float32", "tf32" or "bf16". mode: of torch.compile. layout: "first" or "last", where the channels are.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True
    place = torch.channels_last if layout == "last" else torch.contiguous_format
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    one = forms(network)[form].cuda().to(dtype=dtype, memory_format=place).eval()
    pixels = torch.tensor(np.round(255 * x).astype(np.uint8)).cuda()

    def paint(pixels):
        return one((pixels.to(dtype) / 255).to(memory_format=place)).float().contiguous()

    begun = time.perf_counter()
    with torch.inference_mode():
        run, stream = torch.compile(paint, mode=mode, dynamic=False), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run(pixels)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                found = run(pixels)
        torch.cuda.synchronize()
        compiled = time.perf_counter() - begun
        us = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            us.append(1e3 * start.elapsed_time(end) / replays)
    return us, found.cpu().numpy(), compiled
