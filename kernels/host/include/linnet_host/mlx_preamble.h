// What MLX puts before a custom kernel's source: its `using namespace metal`, its names for element types, and the other
// names that a kernel's own helpers must not collide with.
#pragma once
#pragma clang system_header

using namespace metal;

typedef half float16_t;
typedef bfloat bfloat16_t;

#define MTL_CONST constant
#define MLX_MTL_PRAGMA_UNROLL _Pragma("clang loop unroll(full)")

template <typename U> struct WorkPerThread;
template <typename U> struct Limits;
template <typename T> struct complex_t;
template <bool condition, typename T, typename U> struct ConditionalType;
template <int DIM, typename OffsetT, bool General> struct LoopedElemToLoc;
template <typename T, typename U> inline T ceildiv(T n, U m) { return (n + m - 1) / m; }
template <typename U, typename T> inline U cast_to(T value) { return static_cast<U>(value); }
static constexpr constant int MAX_REDUCE_SPECIALIZED_DIMS = 4;
static constexpr constant int REDUCE_N_READS = 4;
static constexpr constant int REDUCE_N_WRITES = 4;
static constexpr constant int SOFTMAX_N_READS = 4;
static constexpr constant int RMS_N_READS = 4;
static constexpr constant int RMS_LOOPED_LIMIT = 4096;

template <typename IdxT = int64_t>
inline IdxT elem_to_loc(IdxT elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  IdxT loc = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    loc += (elem % shape[i]) * IdxT(strides[i]);
    elem /= shape[i];
  }
  return loc;
}
