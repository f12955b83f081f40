// Buffers are allocations of exactly their size, so that AddressSanitizer sees every step beyond them. Beside each lies
// a shadow with one cell a byte: who wrote and who read it last, and when. clang calls __sanitizer_cov_load and store
// for every access in a kernel.

#include "memory.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vector>

namespace linnet_host {

namespace {

constexpr size_t MAX_THREADGROUP_BYTES = 32768;
// What an allocation is filled with before a kernel writes it: NaN as f32, f16 and bf16.
constexpr unsigned char GARBAGE = 0xff;
constexpr int FAULT_EXIT = 66;

enum Space { DEVICE = 0, THREADGROUP = 1 };
enum class Access { Load, Store, AtomicStore, AtomicModify };

// One thread's latest access.
struct Mark {
  uint32_t thread = 0;
  uint32_t simdgroup = 0;
  uint32_t group = 0;
  uint32_t group_epoch = 0;
  uint32_t simd_epoch = 0;
};

struct Cell {
  Mark writer;
  Mark reader;
  // The latest reader of another simdgroup than `reader`.
  Mark other_reader;
  bool written = false;
  bool atomic = false;
};

struct Region {
  Space space = DEVICE;
  BufferKind kind = BufferKind::Output;
  const char* name = nullptr;
  unsigned index = 0;
  Site site = {};
  unsigned char* allocation = nullptr;
  unsigned char* begin = nullptr;
  size_t bytes = 0;
  std::vector<Cell> cells;
};

struct FunctionConstant {
  unsigned index;
  unsigned char value[16];
};

std::vector<Region*> buffers;
std::vector<Region*> variables;
std::vector<FunctionConstant> constants;
size_t threadgroup_bytes = 0;

bool ordered(const Mark& before, const Clock& now, Space space) {
  if (before.thread == 0 || before.thread == now.thread) return true;
  if (before.group != now.group) return false;
  if (before.group_epoch < now.group_epoch[space]) return true;
  return before.simdgroup == now.simdgroup && before.simd_epoch < now.simd_epoch[space];
}

Mark mark(const Clock& now, Space space) {
  return Mark{now.thread, now.simdgroup, now.group, now.group_epoch[space], now.simd_epoch[space]};
}

// Where an access stands: its site, or else the address of its instruction.
struct Origin {
  const void* pc;
  Site site;
};

[[noreturn]] void access_fault(const char* kind, const Origin& origin, const Region& region, const void* address,
                               const char* what, uint32_t other) {
  char place[512] = "?";
  if (origin.pc) {
    __sanitizer_symbolize_pc(const_cast<void*>(origin.pc), "%s:%l", place, sizeof(place));
  } else {
    snprintf(place, sizeof(place), "%s:%d", origin.site.file, origin.site.line);
  }
  const size_t offset = static_cast<const unsigned char*>(address) - region.begin;
  char name[64];
  if (region.name) {
    snprintf(name, sizeof(name), "threadgroup variable %s", region.name);
  } else {
    snprintf(name, sizeof(name), "buffer %u", region.index);
  }
  fprintf(stderr, "linnet-host: %s: %s: byte %zu of %s: %s (thread %u", kind, place, offset, name, what,
          current_clock->thread - 1);
  if (other) fprintf(stderr, ", other thread %u", other - 1);
  fprintf(stderr, ")\n");
  _exit(FAULT_EXIT);
}

Region* find(const void* address) {
  const auto* byte = static_cast<const unsigned char*>(address);
  for (Region* region : variables) {
    if (byte >= region->begin && byte < region->begin + region->bytes) return region;
  }
  for (Region* region : buffers) {
    if (byte >= region->begin && byte < region->begin + region->bytes) return region;
  }
  return nullptr;
}

void access(const void* address, size_t bytes, Access kind, const Origin& origin) {
  if (!current_clock) return;
  Region* region = find(address);
  if (!region) return;
  if (region->kind == BufferKind::Input) {
    if (kind != Access::Load) access_fault("read-only", origin, *region, address, "an input is written", 0);
    return;
  }
  const Clock& now = *current_clock;
  const Space space = region->space;
  const bool atomic = kind == Access::AtomicStore || kind == Access::AtomicModify;
  const bool reads = kind == Access::Load || kind == Access::AtomicModify;
  const size_t start = static_cast<const unsigned char*>(address) - region->begin;
  for (size_t i = start; i < start + bytes && i < region->bytes; ++i) {
    Cell& cell = region->cells[i];
    const bool both_atomic = atomic && cell.atomic;
    if (!both_atomic && !ordered(cell.writer, now, space)) {
      access_fault("race", origin, *region, address,
                   kind == Access::Load ? "read while another thread may be writing" : "written by two threads",
                   cell.writer.thread);
    }
    if (reads && !cell.written) {
      access_fault("uninitialized", origin, *region, address, "read before it was written", 0);
    }
    if (kind == Access::Load) {
      if (cell.reader.thread != now.thread && !ordered(cell.reader, now, space) &&
          cell.reader.simdgroup != now.simdgroup) {
        cell.other_reader = cell.reader;
      }
      cell.reader = mark(now, space);
      continue;
    }
    for (const Mark& reader : {cell.reader, cell.other_reader}) {
      if (!ordered(reader, now, space)) {
        access_fault("race", origin, *region, address, "written while another thread may be reading", reader.thread);
      }
    }
    cell.writer = mark(now, space);
    cell.written = true;
    cell.atomic = atomic;
  }
}

Region* make_region(size_t bytes, size_t offset) {
  auto* region = new Region;
  region->allocation = static_cast<unsigned char*>(malloc(offset + bytes));
  region->begin = region->allocation + offset;
  region->bytes = bytes;
  memset(region->begin, GARBAGE, bytes);
  if (offset >= 16) __asan_poison_memory_region(region->allocation, 16);
  return region;
}

}  // namespace

void add_buffer(BufferKind kind, size_t item_bytes, size_t bytes, const void* contents) {
  // Aligned to one item and no more, as a view into a larger array would be.
  Region* region = make_region(bytes, 16 + item_bytes % 16);
  region->kind = kind;
  region->index = static_cast<unsigned>(buffers.size());
  if (kind != BufferKind::Input) region->cells.resize(bytes);
  if (contents) memcpy(region->begin, contents, bytes);
  if (kind == BufferKind::InitializedOutput) {
    for (Cell& cell : region->cells) cell.written = true;
  }
  buffers.push_back(region);
}

void add_function_constant(unsigned index, size_t bytes, const void* value) {
  FunctionConstant item = {index, {}};
  memcpy(item.value, value, bytes < sizeof(item.value) ? bytes : sizeof(item.value));
  constants.push_back(item);
}

void check_outputs_written() {
  for (const Region* region : buffers) {
    if (region->kind != BufferKind::Output) continue;
    for (size_t i = 0; i < region->bytes; ++i) {
      if (!region->cells[i].written) {
        fprintf(stderr, "linnet-host: unwritten: byte %zu of %zu of buffer %u was never written\n", i, region->bytes,
                region->index);
        _exit(FAULT_EXIT);
      }
    }
  }
}

void each_output(void (*write)(const void* data, size_t bytes)) {
  for (const Region* region : buffers) {
    if (region->kind != BufferKind::Input) write(region->begin, region->bytes);
  }
}

void end_group_memory() {
  for (Region* region : variables) {
    free(region->allocation);
    delete region;
  }
  variables.clear();
  threadgroup_bytes = 0;
}

extern "C" {

void* linnet_host_buffer(unsigned index) { return buffers.at(index)->begin; }

const void* linnet_host_function_constant(unsigned index, size_t) {
  for (const FunctionConstant& item : constants) {
    if (item.index == index) return item.value;
  }
  return nullptr;
}

void* linnet_host_threadgroup_memory(size_t bytes, const char* name, Site site) {
  for (Region* region : variables) {
    if (region->site.line == site.line && strcmp(region->name, name) == 0) return region->begin;
  }
  threadgroup_bytes += (bytes + 15) / 16 * 16;
  if (threadgroup_bytes > MAX_THREADGROUP_BYTES) {
    linnet_host_fault("threadgroup-memory", site, "%s brings the threadgroup's memory to %zu bytes; %zu is the most",
                      name, threadgroup_bytes, MAX_THREADGROUP_BYTES);
  }
  Region* region = make_region(bytes, 0);
  region->space = THREADGROUP;
  region->name = name;
  region->site = site;
  region->cells.resize(bytes);
  variables.push_back(region);
  return region->begin;
}

void linnet_host_atomic_access(const volatile void* address, size_t bytes, bool reads, Site site) {
  const Access kind = reads ? Access::AtomicModify : Access::AtomicStore;
  access(const_cast<const void*>(address), bytes, kind, Origin{nullptr, site});
}

void linnet_host_fault(const char* kind, Site site, const char* format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  fprintf(stderr, "linnet-host: %s: %s:%d: %s\n", kind, site.file, site.line, message);
  _exit(FAULT_EXIT);
}

#define LINNET_HOST_TRACE(bytes)                                                    \
  void __sanitizer_cov_load##bytes(const void* address) {                           \
    access(address, bytes, Access::Load, Origin{__builtin_return_address(0), {}});             \
  }                                                                                 \
  void __sanitizer_cov_store##bytes(const void* address) {                          \
    access(address, bytes, Access::Store, Origin{__builtin_return_address(0), {}});            \
  }
LINNET_HOST_TRACE(1)
LINNET_HOST_TRACE(2)
LINNET_HOST_TRACE(4)
LINNET_HOST_TRACE(8)
LINNET_HOST_TRACE(16)
}

}  // namespace linnet_host
