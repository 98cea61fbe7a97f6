// Sums of rows, with faults to find: nvcc -lineinfo faulty.cu -o faulty; ./faulty right|outside|race|print [rows]

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int COLUMNS = 1000, THREADS = 256;
enum Fault { RIGHT, OUTSIDE, RACE, PRINT };

template <Fault FAULT>
__global__ void sum_row(const float* x, float* sums) {
    __shared__ float part[THREADS];
    const float* row = x + (size_t)blockIdx.x * COLUMNS;
    const int end = FAULT == OUTSIDE ? COLUMNS + 24 : COLUMNS;  // rounded up to a multiple of THREADS
    float sum = 0;
    for (int i = threadIdx.x; i < end; i += THREADS) sum += row[i];
    part[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (FAULT != RACE) __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (FAULT == PRINT && blockIdx.x < 2 && threadIdx.x % 100 == 0)
        printf("block %d, thread %3d: its own sum is %g\n", blockIdx.x, threadIdx.x, sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

int main(int count, char** words) {
    const char* names[] = {"right", "outside", "race", "print"};
    void (*kernels[])(const float*, float*) = {sum_row<RIGHT>, sum_row<OUTSIDE>, sum_row<RACE>, sum_row<PRINT>};
    int fault = 0;
    while (fault < 4 && (count < 2 || strcmp(words[1], names[fault]))) fault++;
    if (fault == 4) return printf("say right, outside, race or print\n"), 2;
    const int rows = count > 2 ? atoi(words[2]) : 512;

    std::vector<float> ones(rows * COLUMNS, 1), found(rows);
    float *x, *sums;
    cudaMalloc(&x, sizeof(float) * ones.size());
    cudaMalloc(&sums, sizeof(float) * rows);
    cudaMemcpy(x, ones.data(), sizeof(float) * ones.size(), cudaMemcpyHostToDevice);
    kernels[fault]<<<rows, THREADS>>>(x, sums);
    const cudaError_t error = cudaMemcpy(found.data(), sums, sizeof(float) * rows, cudaMemcpyDeviceToHost);
    if (error) return printf("%s\n", cudaGetErrorString(error)), 1;
    int wrong = 0;
    for (float sum : found) wrong += sum != COLUMNS;
    printf("%d of %d sums are wrong\n", wrong, rows);
}
