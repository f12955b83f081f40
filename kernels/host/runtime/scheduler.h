// Runs a grid: one fiber per thread, one threadgroup after the other.
#pragma once

#include <stdint.h>

namespace linnet_host {

// In which order the threads of a group take their turns. Results may not depend on it.
enum class Schedule : uint32_t { Forward = 0, Reverse = 1, Shuffled = 2 };

void run_grid(const uint32_t grid[3], const uint32_t threadgroup[3], Schedule schedule, uint64_t seed);

}  // namespace linnet_host
