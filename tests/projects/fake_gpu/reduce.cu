// Row sums of a rows x cols float matrix: out[r] = sum_c in[r][c].
// The slow baseline: one thread per block, one atomicAdd per element.
#include "reduce.h"

#include "fake_gpu.h"

__global__ void reduce_kernel(const float* __restrict__ in, float* out, int cols) {
    const size_t i = blockIdx.x;
    const int row = static_cast<int>(i / cols);
    atomicAdd(&out[row], in[i]);
}

void launch_reduce(const float* in, float* out, int rows, int cols) {
    const dim3 block(1, 1, 1);
    const dim3 grid(static_cast<unsigned>(static_cast<size_t>(rows) * cols));
    LAUNCH("_Z13reduce_kernelPKfPfi", reduce_kernel, grid, block, in, out, cols);
}
