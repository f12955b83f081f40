// Reads one launch from standard input, runs it, writes the outputs to standard output. src/job.rs writes what this
// reads.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <vector>

#include "memory.h"
#include "scheduler.h"

using namespace linnet_host;

namespace {

constexpr uint32_t MAGIC = 0x314a484c;
constexpr unsigned MAX_SECONDS = 120;

void read_exactly(void* target, size_t bytes) {
  if (fread(target, 1, bytes, stdin) != bytes) {
    fprintf(stderr, "linnet-host: runner: the launch is cut short\n");
    exit(65);
  }
}

template <typename T>
T read_value() {
  T value;
  read_exactly(&value, sizeof(value));
  return value;
}

void write_output(const void* data, size_t bytes) {
  if (fwrite(data, 1, bytes, stdout) != bytes) exit(65);
}

// What Apple's GPUs do with subnormal floats: read and write them as zero.
void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" ::"r"(control | (1u << 24)));
#endif
}

}  // namespace

// Memory ends with the process; a kernel's is freed when it matters.
extern "C" const char* __asan_default_options() { return "detect_leaks=0:exitcode=67"; }
extern "C" const char* __ubsan_default_options() { return "exitcode=68"; }

int main() {
  alarm(MAX_SECONDS);
  if (read_value<uint32_t>() != MAGIC) {
    fprintf(stderr, "linnet-host: runner: not a launch\n");
    return 65;
  }
  uint32_t grid[3], threadgroup[3];
  read_exactly(grid, sizeof(grid));
  read_exactly(threadgroup, sizeof(threadgroup));
  const auto schedule = static_cast<Schedule>(read_value<uint32_t>());
  const bool flush = read_value<uint32_t>() != 0;
  const auto seed = read_value<uint64_t>();
  const auto buffer_count = read_value<uint32_t>();
  std::vector<unsigned char> contents;
  for (uint32_t i = 0; i < buffer_count; ++i) {
    const auto kind = static_cast<BufferKind>(read_value<uint32_t>());
    const auto item_bytes = read_value<uint32_t>();
    const auto bytes = read_value<uint64_t>();
    contents.resize(bytes);
    if (kind != BufferKind::Output) read_exactly(contents.data(), bytes);
    add_buffer(kind, item_bytes, bytes, kind == BufferKind::Output ? nullptr : contents.data());
  }
  const auto constant_count = read_value<uint32_t>();
  for (uint32_t i = 0; i < constant_count; ++i) {
    const auto index = read_value<uint32_t>();
    unsigned char value[16];
    read_exactly(value, sizeof(value));
    add_function_constant(index, sizeof(value), value);
  }
  if (flush) flush_denormals();
  run_grid(grid, threadgroup, schedule, seed);
  check_outputs_written();
  each_output(write_output);
  return fflush(stdout) == 0 ? 0 : 65;
}
