// Kernels that compute nothing: to find out what it costs to ask for a kernel.

extern "C" __global__ void nothing() {}

// Keep the GPU busy for so many nanoseconds, so that the host can ask for work ahead of it.
extern "C" __global__ void wait(long long nanoseconds) {
    long long now, end;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
    end += nanoseconds;
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now < end);
}
