"""Which kernels a call launches, and what each takes of the GPU: read from the graph that recorded the call.

So the kernels of libraries can be looked at too: CUDA's driver knows a function's registers whoever wrote it.
"""

from mlpkit.kernels.driver import call, cuda

_OF = cuda.CUfunction_attribute


def kernels_of(graph, most_threads=2048):
    """Return a dict for each kernel of a recorded graph; most_threads: those that a multiprocessor can hold.

    kernel: its name; blocks, threads a block; registers a thread; shared_bytes of a block, both kinds; spilled_bytes of
    a thread, arrays that are not in registers among them; occupancy: the part of a multiprocessor's threads.
    """
    handle = cuda.CUgraph(graph.graph)
    _, count = call(cuda.cuGraphGetNodes, handle)
    nodes, _ = call(cuda.cuGraphGetNodes, handle, count)
    return [_describe(node, most_threads) for node in nodes if _is_kernel(node)]


def _is_kernel(node):
    return call(cuda.cuGraphNodeGetType, node) == [cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL]


def _describe(node, most_threads):
    (params,) = call(cuda.cuGraphKernelNodeGetParams, node)
    function = params.func
    if not int(function):
        (function,) = call(cuda.cuKernelGetFunction, params.kern)
    (name,) = call(cuda.cuFuncGetName, function)
    threads, dynamic = params.blockDimX * params.blockDimY * params.blockDimZ, params.sharedMemBytes
    (blocks,) = call(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, threads, dynamic)
    return {
        "kernel": name.decode()[:160],
        "blocks": params.gridDimX * params.gridDimY * params.gridDimZ,
        "threads": threads,
        "registers": _attribute(function, _OF.CU_FUNC_ATTRIBUTE_NUM_REGS),
        "shared_bytes": _attribute(function, _OF.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) + dynamic,
        "spilled_bytes": _attribute(function, _OF.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
        "occupancy": blocks * threads / most_threads,
    }


def _attribute(function, which):
    (found,) = call(cuda.cuFuncGetAttribute, which, function)
    return found
