// Matrix transpose with a verifying harness in one file; the kernel is naive:
// reads are coalesced, writes are strided.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <random>
#include <vector>

constexpr int BLOCK_X = 32;
constexpr int BLOCK_Y = 8;

__device__ __forceinline__ size_t flat(int row, int col, int width) {
    return static_cast<size_t>(row) * width + col;
}

__global__ void transpose_naive(const float* in, float* out, int width, int height) {
    __shared__ float tile[BLOCK_X][BLOCK_X + 1];
    const int x = blockIdx.x * BLOCK_X, y = blockIdx.y * BLOCK_X;
    for (int r = threadIdx.y; r < BLOCK_X - 1; r += BLOCK_Y) {
        if (x + threadIdx.x < width && y + r < height) tile[r][threadIdx.x] = in[flat(y + r, x + threadIdx.x, width)];
    }
    __syncthreads();
    for (int r = threadIdx.y; r < BLOCK_X; r += BLOCK_Y) {
        if (y + threadIdx.x < height && x + r < width) out[flat(x + r, y + threadIdx.x, height)] = tile[threadIdx.x][r];
    }
}

__global__ void scale_inplace(float* x, size_t n, float a) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) x[i] *= a;
}

int main(int argc, char** argv) {
    const int n = argc > 1 ? std::atoi(argv[1]) : 8192;
    std::vector<float> h(static_cast<size_t>(n) * n), r(h.size());
    std::mt19937 gen(std::random_device{}());
    std::uniform_int_distribution<int> dist(-1000, 1000);
    for (size_t i = 0; i < h.size(); ++i) h[i] = static_cast<float>((i * 2654435761u >> 7) % 4093) + (i % 97 == 0 ? dist(gen) : 0);
    float *a, *b;
    cudaMalloc(&a, h.size() * 4);
    cudaMalloc(&b, h.size() * 4);
    cudaMemcpy(a, h.data(), h.size() * 4, cudaMemcpyHostToDevice);
    cudaMemset(b, 0xff, h.size() * 4);
    scale_inplace<<<1024, 256>>>(a, h.size(), 2.0f);
    const dim3 block(BLOCK_X, BLOCK_Y), grid((n + BLOCK_X - 1) / BLOCK_X, (n + BLOCK_X - 1) / BLOCK_X);
    for (int it = 0; it < 5; ++it) transpose_naive<<<grid, block>>>(a, b, n, n);
    if (cudaDeviceSynchronize() != cudaSuccess) { std::fprintf(stderr, "%s\n", cudaGetErrorString(cudaGetLastError())); return 2; }
    cudaMemcpy(r.data(), b, r.size() * 4, cudaMemcpyDeviceToHost);
    size_t bad = 0;
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) bad += r[static_cast<size_t>(j) * n + i] != 2.0f * h[static_cast<size_t>(i) * n + j];
    std::printf("n=%d mismatches=%zu\n", n, bad);
    return bad ? 1 : 0;
}
