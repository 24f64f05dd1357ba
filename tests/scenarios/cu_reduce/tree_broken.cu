// Row sums of a rows x cols float matrix: out[r] = sum_c in[r][c].
// One block per row, tree reduction in shared memory, no atomics.
#include "reduce.h"

#include <cuda_runtime.h>

constexpr int THREADS = 128

__global__ void reduce_kernel(const float* __restrict__ in, float* out, int cols) {
    __shared__ float part[THREADS];
    const float* row = in + static_cast<size_t>(blockIdx.x) * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += THREADS) sum += row[c];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

void launch_reduce(const float* in, float* out, int rows, int cols) {
    reduce_kernel<<<rows, THREADS>>>(in, out, cols);
}
