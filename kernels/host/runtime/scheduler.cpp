// Threads run until they need others: at a simdgroup's operation until all its lanes are there, at a barrier until the
// whole group is. Whoever waits for a thread that cannot come is reported.

#include "scheduler.h"

#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <utility>
#include <vector>

#include "context.h"
#include "memory.h"

namespace linnet_host {

const Clock* current_clock = nullptr;

namespace {

constexpr uint32_t MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 256 * 1024;
constexpr size_t GUARD_BYTES = 4096;

enum class State { Ready, AtExchange, AtBarrier, Done };

struct Fiber {
  unsigned char* stack = nullptr;
  void* pointer = nullptr;
  State state = State::Done;
  Attributes attributes = {};
  Clock clock = {};
  // What it waits at.
  const char* operation = nullptr;
  Site site = {};
  unsigned flags = 0;
  Lanes* lanes = nullptr;
};

struct Simdgroup {
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t arrived = 0;
  uint32_t epoch[2] = {0, 0};
  const char* operation = nullptr;
  Site site = {};
  int64_t uniform = 0;
  // Two, taken in turns: a quick lane may bring its next value before a slow one has read the last.
  Lanes lanes[2] = {};
  int turn = 0;
};

std::vector<Fiber> fibers;
std::vector<Simdgroup> simdgroups;
uint32_t group_epoch[2] = {0, 0};
Fiber* current = nullptr;
void* scheduler_pointer = nullptr;

void make_stacks(uint32_t count) {
  if (fibers.empty()) fibers.resize(MAX_THREADS);
  for (uint32_t i = 0; i < count; ++i) {
    if (fibers[i].stack) continue;
    void* memory = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) {
      linnet_host_fault("runner", Site{"scheduler", 0}, "no memory for stacks");
    }
    fibers[i].stack = static_cast<unsigned char*>(memory);
  }
}

void start(Fiber& fiber) {
  unsigned char* top = fiber.stack + STACK_BYTES;
  // A kernel that ended may have left its frames' redzones behind.
  __asan_unpoison_memory_region(fiber.stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
  auto* frame = reinterpret_cast<void**>(top) - FRAME_WORDS;
  memset(frame, 0, FRAME_WORDS * sizeof(void*));
  frame[RETURN_WORD] = reinterpret_cast<void*>(&linnet_host_start);
  fiber.pointer = frame;
  fiber.state = State::Ready;
}

void run(Fiber& fiber) {
  current = &fiber;
  for (int space = 0; space < 2; ++space) {
    fiber.clock.group_epoch[space] = group_epoch[space];
    fiber.clock.simd_epoch[space] = simdgroups[fiber.attributes.simdgroup_index_in_threadgroup].epoch[space];
  }
  current_clock = &fiber.clock;
  void* unused = nullptr;
  __sanitizer_start_switch_fiber(&unused, fiber.stack, STACK_BYTES);
  linnet_host_switch(&scheduler_pointer, fiber.pointer);
  __sanitizer_finish_switch_fiber(unused, nullptr, nullptr);
  current_clock = nullptr;
}

const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;

void wait(State state) {
  Fiber& self = *current;
  self.state = state;
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, scheduler_stack, scheduler_stack_bytes);
  linnet_host_switch(&self.pointer, scheduler_pointer);
  __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_bytes);
}

const char* whereabouts(const Fiber& fiber, char* text, size_t bytes) {
  if (fiber.state == State::Done) {
    snprintf(text, bytes, "has returned");
  } else {
    snprintf(text, bytes, "waits at %s, line %d", fiber.operation, fiber.site.line);
  }
  return text;
}

[[noreturn]] void incomplete_exchange(const Simdgroup& group) {
  char text[128];
  for (uint32_t lane = 0; lane < group.count; ++lane) {
    const Fiber& fiber = fibers[group.first + lane];
    if (fiber.state != State::AtExchange) {
      linnet_host_fault("divergence", group.site, "%s is reached by %u of %u lanes; lane %u %s", group.operation,
                        group.arrived, group.count, lane, whereabouts(fiber, text, sizeof(text)));
    }
  }
  __builtin_trap();
}

// Runs the lanes of one simdgroup until each is done or at a barrier.
void run_simdgroup(Simdgroup& group, bool reverse) {
  bool progress = true;
  while (progress) {
    progress = false;
    for (uint32_t i = 0; i < group.count; ++i) {
      Fiber& fiber = fibers[group.first + (reverse ? group.count - 1 - i : i)];
      if (fiber.state != State::Ready) continue;
      run(fiber);
      progress = true;
    }
  }
}

// Runs all threads, in a new order each round, until each is done or waits.
void run_shuffled(uint32_t count, uint64_t& random) {
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  bool progress = true;
  while (progress) {
    progress = false;
    for (uint32_t i = count; i > 1; --i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i - 1], order[(random >> 33) % i]);
    }
    for (uint32_t index : order) {
      if (fibers[index].state != State::Ready) continue;
      run(fibers[index]);
      progress = true;
    }
  }
}

// With nobody able to run: lets the group pass its barrier. False when all are done.
bool pass_barrier(uint32_t count) {
  for (const Simdgroup& group : simdgroups) {
    if (group.arrived) incomplete_exchange(group);
  }
  const Fiber* waiting = nullptr;
  uint32_t arrived = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (fibers[i].state != State::AtBarrier) continue;
    waiting = waiting ? waiting : &fibers[i];
    ++arrived;
  }
  if (!waiting) return false;
  char text[128];
  for (uint32_t i = 0; i < count; ++i) {
    const Fiber& fiber = fibers[i];
    if (fiber.state == State::Done) {
      linnet_host_fault("divergence", waiting->site, "threadgroup_barrier is reached by %u of %u threads; thread %u %s",
                        arrived, count, i, whereabouts(fiber, text, sizeof(text)));
    }
    if (fiber.site.line != waiting->site.line || fiber.flags != waiting->flags) {
      linnet_host_fault("divergence", waiting->site, "threads of one group wait at two barriers: thread %u %s", i,
                        whereabouts(fiber, text, sizeof(text)));
    }
  }
  for (uint32_t space = 0; space < 2; ++space) {
    if (waiting->flags & (1u << space)) ++group_epoch[space];
  }
  for (uint32_t i = 0; i < count; ++i) fibers[i].state = State::Ready;
  return true;
}

void run_group(const uint32_t grid[3], const uint32_t full[3], const Uint3 position, Schedule schedule,
               uint64_t& random, uint32_t group_index) {
  uint32_t size[3];
  Uint3 groups;
  for (int axis = 0; axis < 3; ++axis) {
    groups[axis] = (grid[axis] + full[axis] - 1) / full[axis];
    const uint32_t begin = position[axis] * full[axis];
    size[axis] = grid[axis] - begin < full[axis] ? grid[axis] - begin : full[axis];
  }
  const uint32_t count = size[0] * size[1] * size[2];
  const uint32_t simd_count = (count + SIMD_WIDTH - 1) / SIMD_WIDTH;
  simdgroups.assign(simd_count, Simdgroup());
  for (uint32_t i = 0; i < simd_count; ++i) {
    simdgroups[i].first = i * SIMD_WIDTH;
    simdgroups[i].count = count - i * SIMD_WIDTH < SIMD_WIDTH ? count - i * SIMD_WIDTH : SIMD_WIDTH;
  }
  group_epoch[0] = group_epoch[1] = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Fiber& fiber = fibers[i];
    const Uint3 inside = {i % size[0], i / size[0] % size[1], i / (size[0] * size[1])};
    Attributes& a = fiber.attributes;
    a = Attributes();
    a.thread_position_in_threadgroup = inside;
    a.threadgroup_position_in_grid = position;
    for (int axis = 0; axis < 3; ++axis) {
      a.thread_position_in_grid[axis] = position[axis] * full[axis] + inside[axis];
      a.threads_per_grid[axis] = grid[axis];
      a.threads_per_threadgroup[axis] = size[axis];
      a.dispatch_threads_per_threadgroup[axis] = full[axis];
    }
    a.grid_size = a.threads_per_grid;
    a.threadgroups_per_grid = groups;
    a.thread_index_in_threadgroup = i;
    a.thread_index_in_simdgroup = i % SIMD_WIDTH;
    a.thread_index_in_quadgroup = i % 4;
    a.simdgroup_index_in_threadgroup = i / SIMD_WIDTH;
    a.quadgroup_index_in_threadgroup = i / 4;
    a.simdgroups_per_threadgroup = simd_count;
    a.quadgroups_per_threadgroup = (count + 3) / 4;
    const uint32_t full_count = full[0] * full[1] * full[2];
    a.dispatch_simdgroups_per_threadgroup = (full_count + SIMD_WIDTH - 1) / SIMD_WIDTH;
    a.dispatch_quadgroups_per_threadgroup = (full_count + 3) / 4;
    a.thread_execution_width = SIMD_WIDTH;
    a.threads_per_simdgroup = SIMD_WIDTH;
    fiber.clock = Clock();
    fiber.clock.thread = group_index * MAX_THREADS + i + 1;
    fiber.clock.simdgroup = i / SIMD_WIDTH;
    fiber.clock.group = group_index;
    start(fiber);
  }
  do {
    if (schedule == Schedule::Shuffled) {
      run_shuffled(count, random);
    } else {
      const bool reverse = schedule == Schedule::Reverse;
      for (uint32_t i = 0; i < simd_count; ++i) {
        run_simdgroup(simdgroups[reverse ? simd_count - 1 - i : i], reverse);
      }
    }
  } while (pass_barrier(count));
  end_group_memory();
}

}  // namespace

void run_grid(const uint32_t grid[3], const uint32_t threadgroup[3], Schedule schedule, uint64_t seed) {
  // As MLX dispatches: a threadgroup is never larger than the grid.
  uint32_t size[3], groups[3];
  for (int axis = 0; axis < 3; ++axis) {
    size[axis] = threadgroup[axis] < grid[axis] ? threadgroup[axis] : grid[axis];
    if (size[axis] == 0) linnet_host_fault("launch", Site{"launch", 0}, "an axis of the grid or the group is zero");
    groups[axis] = (grid[axis] + size[axis] - 1) / size[axis];
  }
  const uint64_t threads = uint64_t(size[0]) * size[1] * size[2];
  if (threads > MAX_THREADS) {
    linnet_host_fault("launch", Site{"launch", 0}, "%llu threads in a group; 1024 is the most",
                      static_cast<unsigned long long>(threads));
  }
  make_stacks(static_cast<uint32_t>(threads));
  const uint32_t total = groups[0] * groups[1] * groups[2];
  for (uint32_t i = 0; i < total; ++i) {
    const uint32_t index = schedule == Schedule::Forward ? i : total - 1 - i;
    const Uint3 position = {index % groups[0], index / groups[0] % groups[1], index / (groups[0] * groups[1])};
    run_group(grid, size, position, schedule, seed, index);
  }
}

extern "C" {

__attribute__((used)) void linnet_host_thread_main() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  linnet_host_kernel(current->attributes);
  wait(State::Done);
  __builtin_trap();
}

const Lanes* linnet_host_exchange(const char* operation, const void* value, size_t bytes, int64_t uniform, Site site) {
  Fiber& self = *current;
  Simdgroup& group = simdgroups[self.attributes.simdgroup_index_in_threadgroup];
  const uint32_t lane = self.attributes.thread_index_in_simdgroup;
  if (group.arrived == 0) {
    group.operation = operation;
    group.site = site;
    group.uniform = uniform;
    group.turn ^= 1;
  } else if (strcmp(group.operation, operation) != 0 || group.site.line != site.line) {
    linnet_host_fault("divergence", group.site, "lanes of one simdgroup are at %s, line %d, and at %s, line %d",
                      group.operation, group.site.line, operation, site.line);
  } else if (group.uniform != uniform) {
    linnet_host_fault("divergence", site, "%s needs the same number in all lanes, but got %lld and %lld", operation,
                      static_cast<long long>(group.uniform), static_cast<long long>(uniform));
  }
  Lanes& lanes = group.lanes[group.turn];
  memcpy(lanes.values[lane], value, bytes);
  self.operation = operation;
  self.site = site;
  self.lanes = &lanes;
  if (++group.arrived == group.count) {
    group.arrived = 0;
    lanes.count = group.count;
    for (uint32_t i = 0; i < group.count; ++i) {
      Fiber& fiber = fibers[group.first + i];
      if (fiber.state == State::AtExchange) fiber.state = State::Ready;
    }
  } else {
    wait(State::AtExchange);
  }
  self.lanes->self = lane;
  return self.lanes;
}

void linnet_host_threadgroup_barrier(unsigned flags, Site site) {
  Fiber& self = *current;
  self.operation = "threadgroup_barrier";
  self.site = site;
  self.flags = flags;
  wait(State::AtBarrier);
}

void linnet_host_simdgroup_barrier(unsigned flags, Site site) {
  Fiber& self = *current;
  Simdgroup& group = simdgroups[self.attributes.simdgroup_index_in_threadgroup];
  const bool last = group.arrived + 1 == group.count;
  if (last) {
    for (uint32_t space = 0; space < 2; ++space) {
      if (flags & (1u << space)) ++group.epoch[space];
    }
  }
  linnet_host_exchange("simdgroup_barrier", &flags, sizeof(flags), flags, site);
  for (uint32_t space = 0; space < 2; ++space) self.clock.simd_epoch[space] = group.epoch[space];
}
}

}  // namespace linnet_host
