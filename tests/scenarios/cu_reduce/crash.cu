// Row sums of a rows x cols float matrix: out[r] = sum_c in[r][c].
// One warp per row, float4 loads, shuffle reduction.
#include "reduce.h"

#include <cuda_runtime.h>

constexpr int WARPS = 4;

__global__ void reduce_kernel(const float* __restrict__ in, float* out, int rows, int cols) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float4* values = reinterpret_cast<const float4*>(in) + static_cast<size_t>(row) * cols;
    float sum = 0.0f;
    for (int c = lane; c < cols / 4; c += 32) {
        const float4 v = values[c];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (lane == 0) out[row] = sum;
}

void launch_reduce(const float* in, float* out, int rows, int cols) {
    reduce_kernel<<<(rows + WARPS - 1) / WARPS, WARPS * 32>>>(in, out, rows, cols);
}
