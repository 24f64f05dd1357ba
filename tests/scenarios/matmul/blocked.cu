#include "matmul.cuh"

#include <cuda_runtime.h>

// Each block computes 64 x 64 of C from shared tiles 16 deep; each of its 256 threads keeps 4 x 4 sums in registers.
constexpr int BLOCK = 64;
constexpr int DEPTH = 16;
constexpr int PER = 4;
constexpr int SIDE = BLOCK / PER;

__global__ void __launch_bounds__(SIDE * SIDE) matmul_kernel(const float* __restrict__ a, const float* __restrict__ b, float* c, int m, int n, int k) {
    __shared__ float as[DEPTH][BLOCK + 1];
    __shared__ float bs[DEPTH][BLOCK];
    const int tx = threadIdx.x % SIDE, ty = threadIdx.x / SIDE;
    const int row0 = blockIdx.y * BLOCK, col0 = blockIdx.x * BLOCK;
    float sum[PER][PER] = {};
    for (int t = 0; t < k; t += DEPTH) {
        for (int i = threadIdx.x; i < BLOCK * DEPTH; i += SIDE * SIDE) {
            const int r = i / DEPTH, d = i % DEPTH;
            as[d][r] = row0 + r < m && t + d < k ? a[static_cast<size_t>(row0 + r) * k + t + d] : 0.0f;
            const int e = i / BLOCK, q = i % BLOCK;
            bs[e][q] = t + e < k && col0 + q < n ? b[static_cast<size_t>(t + e) * n + col0 + q] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            float x[PER], y[PER];
#pragma unroll
            for (int i = 0; i < PER; ++i) {
                x[i] = as[d][ty + i * SIDE];
                y[i] = bs[d][tx + i * SIDE];
            }
#pragma unroll
            for (int i = 0; i < PER; ++i)
#pragma unroll
                for (int j = 0; j < PER; ++j) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < PER; ++i)
        for (int j = 0; j < PER; ++j) {
            const int row = row0 + ty + i * SIDE, col = col0 + tx + j * SIDE;
            if (row < m && col < n) c[static_cast<size_t>(row) * n + col] = sum[i][j];
        }
}

void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 grid((n + BLOCK - 1) / BLOCK, (m + BLOCK - 1) / BLOCK);
    matmul_kernel<<<grid, SIDE * SIDE>>>(a, b, c, m, n, k);
}
