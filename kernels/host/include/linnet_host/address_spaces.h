// Address spaces and function qualifiers.
#pragma once
#pragma clang system_header

#define METAL_FUNC inline __attribute__((__always_inline__))
#define kernel

#ifdef LINNET_HOST_CHECK
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#define thread
#else
#define device
#define constant const
#define threadgroup
#define thread
#endif

namespace linnet_host {

// `threadgroup T name[n];` in a kernel's body becomes a reference to what this returns (see src/rewrite.rs).
template <typename T>
inline T& threadgroup_variable(const char* name, Site site = LINNET_HOST_HERE) {
  return *static_cast<T*>(linnet_host_threadgroup_memory(sizeof(T), name, site));
}

template <typename T>
inline T* buffer(unsigned index) {
  return static_cast<T*>(linnet_host_buffer(index));
}

template <typename T>
inline T function_constant(unsigned index) {
  const void* value = linnet_host_function_constant(index, sizeof(T));
  T result = T();
  if (value) __builtin_memcpy(&result, value, sizeof(T));
  return result;
}
inline bool function_constant_defined(unsigned index) { return linnet_host_function_constant(index, 0) != nullptr; }

}  // namespace linnet_host
