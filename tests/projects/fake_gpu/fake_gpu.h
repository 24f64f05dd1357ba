// A FAKE GPU for tests: kernels run on the CPU, one thread after the other, and the time is counted, not measured.
// Where the kernel recorder would be loaded (TACHYON_RECORD is set) it writes what the recorder would write.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define __global__
inline thread_local dim3 blockIdx, threadIdx, blockDim, gridDim;

namespace fake_gpu {
inline uint64_t now = 1000000, cost = 0;
inline int kernels = 0, names = 0;
inline FILE* record = nullptr;

inline void finish() {
    if (record) {
        fprintf(record, "E %d\n", kernels);
        fclose(record);
        record = nullptr;
    }
}

inline void begin() {
    const char* prefix = getenv("TACHYON_RECORD");
    if (record || !prefix) return;
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
    record = fopen(path, "w");
    if (!record) return;
    fprintf(record, "tachyon-recorder 1 %d\n", static_cast<int>(getpid()));
    uint64_t hash = 1469598103934665603ull;
    FILE* self = fopen("/proc/self/exe", "r");
    for (int c; (c = getc(self)) != EOF;) hash = (hash ^ (unsigned char)c) * 1099511628211ull;
    fclose(self);
    fprintf(record, "M %016llx\n", static_cast<unsigned long long>(hash));
    atexit(finish);
}

// A copy between host and device: kind 1 is HtoD, 2 is DtoH.
inline void copy(int kind, uint64_t bytes) {
    begin();
    if (record) fprintf(record, "C %d %llu %llu %llu\n", kind, (unsigned long long)bytes, (unsigned long long)now, (unsigned long long)(now + bytes));
    now += bytes;
}

template <typename Kernel, typename... Args>
void launch(const char* mangled, dim3 grid, dim3 block, Kernel kernel, Args... args) {
    begin();
    cost = 2000 + static_cast<uint64_t>(getpid() % 3);
    gridDim = grid;
    blockDim = block;
    for (unsigned b = 0; b < grid.x; ++b)
        for (unsigned t = 0; t < block.x; ++t) {
            blockIdx = dim3(b);
            threadIdx = dim3(t);
            kernel(args...);
        }
    cost += 10ull * grid.x;
    if (record) {
        fprintf(record, "N %d %s\n", names, mangled);
        fprintf(record, "K %d %llu %llu %u %u %u %u %u %u 0 7 0\n", names, (unsigned long long)now, (unsigned long long)(now + cost), grid.x, grid.y, grid.z, block.x, block.y, block.z);
        ++names;
        ++kernels;
    }
    now += cost + 100;
}
}  // namespace fake_gpu

inline void atomicAdd(float* where, float value) {
    fake_gpu::cost += 40;
    *where += value;
}

#define LAUNCH(mangled, kernel, grid, block, ...) fake_gpu::launch(mangled, grid, block, kernel, __VA_ARGS__)
