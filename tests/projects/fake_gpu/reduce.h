#pragma once
#include <stddef.h>
void launch_reduce(const float* in, float* out, int rows, int cols);
