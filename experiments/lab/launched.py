"""Which kernels a call launches, and what each takes of the GPU: read from the graph that recorded the call.

So the kernels of libraries can be looked at too: CUDA's driver knows a function's registers whoever wrote it.
"""

import ctypes

from mlpkit.kernels import driver

KERNEL, SHARED, LOCAL, REGISTERS = 0, 1, 3, 4  # CUgraphNodeType, and three of CUfunction_attribute
_pointer, _unsigned = ctypes.c_void_p, ctypes.c_uint


class _Params(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", _pointer),
        ("blocks", _unsigned * 3),
        ("threads", _unsigned * 3),
        ("shared_bytes", _unsigned),
        ("arguments", _pointer),
        ("extra", _pointer),
        ("kernel", _pointer),
        ("context", _pointer),
    )


def kernels_of(graph, most_threads=2048):
    """Return a dict for each kernel of a recorded graph; most_threads: those that a multiprocessor can hold.

    kernel: its name; blocks, threads a block; registers a thread; shared_bytes of a block, both kinds; spilled_bytes of
    a thread, arrays that are not in registers among them; occupancy: the part of a multiprocessor's threads.
    """
    count = ctypes.c_size_t()
    _ask("cuGraphGetNodes", _pointer(graph.graph), None, ctypes.byref(count))
    nodes = (_pointer * count.value)()
    _ask("cuGraphGetNodes", _pointer(graph.graph), nodes, ctypes.byref(count))
    return [_describe(_pointer(node), most_threads) for node in nodes if _kind(_pointer(node)) == KERNEL]


def _kind(node):
    found = ctypes.c_int()
    _ask("cuGraphNodeGetType", node, ctypes.byref(found))
    return found.value


def _describe(node, most_threads):
    params = _Params()
    _ask("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(params))
    function = _pointer(params.function)
    if not function:
        _ask("cuKernelGetFunction", ctypes.byref(function), _pointer(params.kernel))
    name, blocks = ctypes.c_char_p(), ctypes.c_int()
    _ask("cuFuncGetName", ctypes.byref(name), function)
    x, y, z = params.threads
    threads, dynamic = x * y * z, params.shared_bytes
    ask = (ctypes.byref(blocks), function, ctypes.c_int(threads), ctypes.c_size_t(dynamic))
    _ask("cuOccupancyMaxActiveBlocksPerMultiprocessor", *ask)
    across, down, deep = params.blocks
    return {
        "kernel": (name.value or b"").decode()[:160],
        "blocks": across * down * deep,
        "threads": threads,
        "registers": _attribute(function, REGISTERS),
        "shared_bytes": _attribute(function, SHARED) + dynamic,
        "spilled_bytes": _attribute(function, LOCAL),
        "occupancy": blocks.value * threads / most_threads,
    }


def _attribute(function, which):
    found = ctypes.c_int()
    _ask("cuFuncGetAttribute", ctypes.byref(found), ctypes.c_int(which), function)
    return found.value


def _ask(name, *arguments):
    if status := getattr(driver.load(), name)(*arguments):
        raise RuntimeError(f"CUDA's driver refused {name}: status {status}.")
