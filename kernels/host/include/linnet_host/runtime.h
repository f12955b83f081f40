// What a kernel compiled for the host asks of the runner: its place in the grid, its buffers, and meeting points with
// the other threads. Implemented in runtime/.
#pragma once
#pragma clang system_header

#include <stddef.h>
#include <stdint.h>

namespace linnet_host {

// Where an operation stands in the kernel's source. Used as a default argument, so that it names the caller's line.
struct Site {
  const char* file;
  int line;
};
#define LINNET_HOST_HERE ::linnet_host::Site{__builtin_FILE(), __builtin_LINE()}

typedef unsigned Uint3 __attribute__((ext_vector_type(3)));

// One thread's attributes, named as in the Metal Shading Language Specification, table "Attributes for kernel function
// input arguments".
struct Attributes {
  Uint3 thread_position_in_grid;
  Uint3 thread_position_in_threadgroup;
  Uint3 threadgroup_position_in_grid;
  Uint3 threadgroups_per_grid;
  Uint3 threads_per_grid;
  Uint3 threads_per_threadgroup;
  Uint3 dispatch_threads_per_threadgroup;
  Uint3 grid_size;
  Uint3 grid_origin;
  unsigned thread_index_in_threadgroup;
  unsigned thread_index_in_simdgroup;
  unsigned thread_index_in_quadgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned quadgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup;
  unsigned quadgroups_per_threadgroup;
  unsigned dispatch_simdgroups_per_threadgroup;
  unsigned dispatch_quadgroups_per_threadgroup;
  unsigned thread_execution_width;
  unsigned threads_per_simdgroup;
};

constexpr unsigned SIMD_WIDTH = 32;
// The largest value that one lane can hand to the others: a vector of four 32-bit or 64-bit elements.
constexpr size_t LANE_BYTES = 32;

// What all lanes of a simdgroup brought to one operation.
struct Lanes {
  alignas(32) unsigned char values[SIMD_WIDTH][LANE_BYTES];
  // Lanes that exist: fewer than 32 at the ragged edge of a grid.
  unsigned count;
  // The lane that asks.
  unsigned self;
};

extern "C" {

// Hands `bytes` bytes to the simdgroup and waits until every lane has come to the same operation. It is a fault if one
// cannot come. `uniform` is a number that all lanes must agree on (a shuffle's distance, say).
const Lanes* linnet_host_exchange(const char* operation, const void* value, size_t bytes, int64_t uniform, Site site);

// Waits for the whole threadgroup. `flags` are mem_flags.
void linnet_host_threadgroup_barrier(unsigned flags, Site site);

// Waits for the simdgroup.
void linnet_host_simdgroup_barrier(unsigned flags, Site site);

// The threadgroup's variable declared at `site`: made, filled with garbage, when its first thread asks.
void* linnet_host_threadgroup_memory(size_t bytes, const char* name, Site site);

// An argument's memory.
void* linnet_host_buffer(unsigned index);

// The value set for a function constant, or null when it was left undefined.
const void* linnet_host_function_constant(unsigned index, size_t bytes);

// Tells the race detector of an atomic access; `reads` is false for a plain store.
void linnet_host_atomic_access(const volatile void* address, size_t bytes, bool reads, Site site);

// Ends the run: `kind` is a word, `message` a sentence.
[[noreturn]] void linnet_host_fault(const char* kind, Site site, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// The kernel, called once per thread. Defined in the generated source.
void linnet_host_kernel(const Attributes& attributes);
}

}  // namespace linnet_host
