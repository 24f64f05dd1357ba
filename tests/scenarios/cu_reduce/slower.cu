// Row sums of a rows x cols float matrix: out[r] = sum_c in[r][c].
// One thread per row, 32 threads per block.
#include "reduce.h"

#include <cuda_runtime.h>

constexpr int THREADS = 32;

__global__ void reduce_kernel(const float* __restrict__ in, float* out, int rows, int cols) {
    const int row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) sum += in[static_cast<size_t>(row) * cols + c];
    out[row] = sum;
}

void launch_reduce(const float* in, float* out, int rows, int cols) {
    reduce_kernel<<<(rows + THREADS - 1) / THREADS, THREADS>>>(in, out, rows, cols);
}
