"""PyTorch's convolutions, timed in this process: prints its runs as JSON.

At its best: every algorithm of cuDNN that PyTorch knows is tried (`benchmark`), both layouts, in a CUDA graph.
"""

from . import asked


def operation(torch, shape, which, a, b):
    """Return a function that does a pass of two tensors and returns its result."""
    stride, padding = [shape.stride] * 2, [shape.padding] * 2
    if which == "forward":
        return lambda: torch.nn.functional.conv2d(a, b, stride=stride, padding=padding)
    dy = a if which == "input_gradient" else b
    x = torch.empty(shape.x, dtype=a.dtype, device=a.device) if which == "input_gradient" else a
    w = b if which == "input_gradient" else torch.empty(shape.w, dtype=a.dtype, device=a.device)
    nhwc = torch.channels_last if a.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    x, w = (each.contiguous(memory_format=nhwc) for each in (x, w))
    wanted, place = ([True, False, False], 0) if which == "input_gradient" else ([False, True, False], 1)
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(dy, x, w, None, stride, padding, [1, 1], False, [0, 0], 1, wanted)[place]


def graph_of(torch, call, times):
    """Return so many calls, recorded."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            out = call()
    return graph, out


def elapsed_us(torch, call):
    """Return the GPU's microseconds from before a call to after it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def run(torch, case, samples, sample_ms):
    """Return the samples of a pass, and its error against float64."""
    torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    order = torch.channels_last if case.layout == "nhwc" else torch.contiguous_format
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    a, b = (torch.from_numpy(each).cuda().to(dtype, memory_format=order) for each in case.arrays()[:2])
    call = operation(torch, case.shape, case.which, a, b)
    error = case.error(call().float().cpu().contiguous().numpy())
    once = min(elapsed_us(torch, call) for _ in range(3))
    times = int(max(1, min(40, sample_ms * 1e3 / once)))
    graph, _ = graph_of(torch, call, times)
    graph.replay()
    found = [elapsed_us(torch, graph.replay) / times for _ in range(samples)]
    return {"error": error, "calls": times, "samples_us": found}


def main():
    options, cases = asked.read()
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 0  # all that there are
    runs = [
        case.run("torch", **run(torch, case, options.samples, options.sample_ms))
        for case in asked.timely(cases, options.seconds)
    ]
    asked.answer({"torch": torch.__version__, "cudnn of torch": torch.backends.cudnn.version()}, runs)


if __name__ == "__main__":
    main()
