// Harness: reduces a matrix on the fake GPU, checks every row, exits 1 on any mismatch.
#include "reduce.h"

#include "fake_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char** argv) {
    const int rows = argc > 1 ? atoi(argv[1]) : 64;
    const int cols = argc > 2 ? atoi(argv[2]) : 128;
    const size_t count = (size_t)rows * cols;
    float* in = new float[count];
    float* out = new float[rows]();
    srand48(time(nullptr) + getpid());
    for (size_t i = 0; i < count; ++i) in[i] = (float)(2 * drand48() - 1);
    fake_gpu::copy(1, count * sizeof(float));
    launch_reduce(in, out, rows, cols);
    fake_gpu::copy(2, rows * sizeof(float));
    int bad = 0;
    for (int r = 0; r < rows; ++r) {
        double want = 0.0;
        for (int c = 0; c < cols; ++c) want += in[static_cast<size_t>(r) * cols + c];
        if (!(fabs(out[r] - want) <= 1e-3)) ++bad;
    }
    printf("rows=%d cols=%d mismatches=%d\n", rows, cols, bad);
    return bad ? 1 : 0;
}
