"""The same queue behind gRPC: bytes of an image in, the likeliest class and its probability out. Needs grpcio.

`python -m experiments.serving.grpc_service NETWORK.npz PORT` serves; with a rate and seconds behind it, it asks the
service at this port. There is no .proto: requests and responses are bytes.
"""

import asyncio
import json
import sys
import time

import grpc
import numpy as np

from experiments.lab.queueing import arrivals
from mlpkit.nn.network import Network
from mlpkit.serving.batching import Batcher
from mlpkit.serving.calibration import probabilities

METHOD = "/mlpkit.Service/Classify"


async def serve(path, port):
    """Serve the network in a file until the process ends."""
    loop = asyncio.get_running_loop()
    network = Network.load(path, "numba_conv")
    compiled = network.compiled(64)
    batcher = Batcher([lambda rows: probabilities(compiled(rows))], 64, deliver=loop.call_soon_threadsafe)

    async def classify(body, context):
        future = loop.create_future()
        batcher.submit(np.frombuffer(body, np.uint8).reshape(1, *network.model.input), future=future)
        [row] = (await future).tolist()
        return json.dumps({"name": str(row.index(max(row))), "probability": max(row)}).encode()

    server = grpc.aio.server()
    methods = {"Classify": grpc.unary_unary_rpc_method_handler(classify)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("mlpkit.Service", methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def load(port, rate, seconds):
    """Ask `rate` times a second, by chance; return the number of responses and latencies in us, from the due times."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(METHOD)
        await ask(bytes(784), wait_for_ready=True)
        begin, latencies = time.perf_counter(), []

        async def one(start):
            await ask(bytes(784))
            latencies.append(1e6 * (time.perf_counter() - start))

        tasks = []
        for due in begin + arrivals(rate, int(rate * seconds)):
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            tasks.append(asyncio.ensure_future(one(due)))
        await asyncio.gather(*tasks)
    p50, p99 = np.percentile(latencies, (50, 99)).round().tolist()
    return {"responses": len(latencies), "offered": rate, "p50": p50, "p99": p99}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(serve(*sys.argv[1:]))
    else:
        print(json.dumps(asyncio.run(load(int(sys.argv[2]), *map(float, sys.argv[3:])))))
