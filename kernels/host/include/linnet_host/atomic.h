// Atomics: relaxed operations on 32-bit integers and floats. Threads of the runner take turns, so each operation is
// whole by itself; the race detector is told, so that mixing plain and atomic accesses is a fault.
#pragma once
#pragma clang system_header

namespace metal {

enum memory_order { memory_order_relaxed };

template <typename T>
struct atomic {
  static_assert(sizeof(T) == 4, "atomics hold 32 bits");
  T linnet_host_value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;

#ifndef LINNET_HOST_CHECK
#define LINNET_HOST_ATOMIC_SPACES(X) X()
#else
#define LINNET_HOST_ATOMIC_SPACES(X) X(device) X(threadgroup)
#endif

// Not traced as plain accesses: each reports itself as atomic instead.
#define LINNET_HOST_ATOMIC_FUNCTION __attribute__((no_sanitize("coverage"), noinline))

#ifndef LINNET_HOST_CHECK
#define LINNET_HOST_ATOMIC_REPORT(object, reads) \
  ::linnet_host::linnet_host_atomic_access(object, sizeof(*object), reads, site);
#else
#define LINNET_HOST_ATOMIC_REPORT(object, reads)
#endif

#define LINNET_HOST_ATOMIC_MODIFY(space, name, expression)                                              \
  template <typename T>                                                                                 \
  LINNET_HOST_ATOMIC_FUNCTION T name(volatile space atomic<T>* object, T operand, memory_order,         \
                                     ::linnet_host::Site site = LINNET_HOST_HERE) {                     \
    LINNET_HOST_ATOMIC_REPORT(object, true)                                                             \
    const T old = object->linnet_host_value;                                                            \
    object->linnet_host_value = static_cast<T>(expression);                                             \
    (void)site;                                                                                         \
    return old;                                                                                         \
  }
#define LINNET_HOST_ATOMICS(space)                                                                      \
  template <typename T>                                                                                 \
  LINNET_HOST_ATOMIC_FUNCTION T atomic_load_explicit(const volatile space atomic<T>* object, memory_order, \
                                                     ::linnet_host::Site site = LINNET_HOST_HERE) {     \
    LINNET_HOST_ATOMIC_REPORT(object, true)                                                             \
    (void)site;                                                                                         \
    return object->linnet_host_value;                                                                   \
  }                                                                                                     \
  template <typename T>                                                                                 \
  LINNET_HOST_ATOMIC_FUNCTION void atomic_store_explicit(volatile space atomic<T>* object, T value, memory_order, \
                                                         ::linnet_host::Site site = LINNET_HOST_HERE) { \
    LINNET_HOST_ATOMIC_REPORT(object, false)                                                            \
    (void)site;                                                                                         \
    object->linnet_host_value = value;                                                                  \
  }                                                                                                     \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_exchange_explicit, operand)                                   \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_fetch_add_explicit, old + operand)                            \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_fetch_sub_explicit, old - operand)                            \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_fetch_min_explicit, operand < old ? operand : old)            \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_fetch_max_explicit, old < operand ? operand : old)            \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_fetch_and_explicit, old & operand)                            \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_fetch_or_explicit, old | operand)                             \
  LINNET_HOST_ATOMIC_MODIFY(space, atomic_fetch_xor_explicit, old ^ operand)                            \
  template <typename T>                                                                                 \
  LINNET_HOST_ATOMIC_FUNCTION bool atomic_compare_exchange_weak_explicit(                               \
      volatile space atomic<T>* object, thread T* expected, T desired, memory_order, memory_order,      \
      ::linnet_host::Site site = LINNET_HOST_HERE) {                                                    \
    LINNET_HOST_ATOMIC_REPORT(object, true)                                                             \
    (void)site;                                                                                         \
    const T old = object->linnet_host_value;                                                            \
    const bool equal = __builtin_memcmp(&old, expected, sizeof(T)) == 0;                                \
    if (equal) {                                                                                        \
      object->linnet_host_value = desired;                                                              \
    } else {                                                                                            \
      *expected = old;                                                                                  \
    }                                                                                                   \
    return equal;                                                                                       \
  }
LINNET_HOST_ATOMIC_SPACES(LINNET_HOST_ATOMICS)
#undef LINNET_HOST_ATOMICS
#undef LINNET_HOST_ATOMIC_MODIFY
#undef LINNET_HOST_ATOMIC_REPORT
#undef LINNET_HOST_ATOMIC_SPACES

}  // namespace metal
