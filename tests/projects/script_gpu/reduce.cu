// Row sums. The build reads the cost below; nothing here is compiled.
__global__ void reduce_kernel(const float* in, float* out, int cols) {
    const int cost = 1000;
    out[blockIdx.x] += in[blockIdx.x * cols + cost];
}
