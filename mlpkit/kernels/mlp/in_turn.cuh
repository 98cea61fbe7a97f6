// Kernels that begin before the one ahead of them has ended, where the chip has that: see overlap.py.

#include "ptx.cuh"

// Until the kernel ahead is done. From then on the next one may begin: what it reads before it waits itself is older than
// this kernel, and so there.
__device__ void wait_for_the_kernel_ahead() {
#if __CUDA_ARCH__ >= 900
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
#endif
}
