// Row sums of a rows x cols float matrix: out[r] = sum_c in[r][c].
// One warp sums several rows at once: one float4 of each row is in flight in every lane.
// Needs cols to be a multiple of 4; rows that do not fill a group are summed one by one.
#include "reduce.h"

#include <cuda_runtime.h>

constexpr int WARPS = 8;
constexpr int ROWS = 4;

__device__ __forceinline__ float warp_sum(float sum) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    return sum;
}

__global__ void __launch_bounds__(WARPS * 32) reduce_kernel(const float* __restrict__ in, float* out, int rows, int cols) {
    const int first = (blockIdx.x * WARPS + threadIdx.x / 32) * ROWS;
    const int lane = threadIdx.x % 32;
    const int quads = cols / 4;
    if (first >= rows) return;
    const float4* values = reinterpret_cast<const float4*>(in) + static_cast<size_t>(first) * quads;
    float sum[ROWS] = {};
    if (first + ROWS <= rows) {
        for (int c = lane; c < quads; c += 32) {
            float4 v[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) v[r] = __ldcs(values + static_cast<size_t>(r) * quads + c);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sum[r] += (v[r].x + v[r].y) + (v[r].z + v[r].w);
        }
    } else {
        for (int r = 0; first + r < rows; ++r)
            for (int c = lane; c < quads; c += 32) {
                const float4 v = values[static_cast<size_t>(r) * quads + c];
                sum[r] += (v.x + v.y) + (v.z + v.w);
            }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float total = warp_sum(sum[r]);
        if (lane == 0 && first + r < rows) out[first + r] = total;
    }
}

void launch_reduce(const float* in, float* out, int rows, int cols) {
    const int per_block = WARPS * ROWS;
    reduce_kernel<<<(rows + per_block - 1) / per_block, WARPS * 32>>>(in, out, rows, cols);
}
