#include "sum.h"

// Row sums of a row-major matrix; the slow baseline walks it column by column.
void row_sums(const float* in, float* out, int rows, int cols) {
    for (int r = 0; r < rows; ++r) out[r] = 0.0f;
    for (int c = 0; c < cols; ++c)
        for (int r = 0; r < rows; ++r) out[r] += in[static_cast<long>(r) * cols + c];
}
