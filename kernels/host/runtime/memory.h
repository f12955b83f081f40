// The launch's buffers and threadgroup variables, and the shadow that finds races and unwritten memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../include/linnet_host/runtime.h"

namespace linnet_host {

enum class BufferKind : uint32_t { Input = 0, Output = 1, InitializedOutput = 2 };

// Who runs, and how many barriers it has passed: what decides whether two accesses are ordered.
struct Clock {
  // Numbers threads over the whole grid from 1.
  uint32_t thread;
  uint32_t simdgroup;
  uint32_t group;
  // Barriers passed that order device memory and threadgroup memory, of the group and of the simdgroup.
  uint32_t group_epoch[2];
  uint32_t simd_epoch[2];
};

// Adds a buffer of the launch; `contents` may be null for outputs.
void add_buffer(BufferKind kind, size_t item_bytes, size_t bytes, const void* contents);
void add_function_constant(unsigned index, size_t bytes, const void* value);

// Fails when an output has bytes that no thread wrote.
void check_outputs_written();
// Calls `write` with each output, in order.
void each_output(void (*write)(const void* data, size_t bytes));

// Frees the threadgroup variables of the group that ended.
void end_group_memory();

// The running thread's clock, or null outside of kernels. Defined by the scheduler.
extern const Clock* current_clock;

}  // namespace linnet_host
