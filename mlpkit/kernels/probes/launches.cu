// Kernels that compute nothing: to find out what it costs to ask for a kernel.

#include "ptx.cuh"

extern "C" __global__ void nothing() {}

// Keep the GPU busy for so many nanoseconds, so that the host can ask for work ahead of it.
extern "C" __global__ void wait(long long nanoseconds) {
    const long long end = globaltimer() + nanoseconds;
    while (globaltimer() < end) {
    }
}
