// 8x8 matrices spread over a simdgroup, two elements to a lane.
#pragma once
#pragma clang system_header

namespace linnet_host {

// Row and first column of a lane's two elements. Apple documents none; this is the one found on its GPUs, on which MLX
// relies, and kernels may not.
inline uint matrix_row(uint lane) { return ((lane / 4) & 4) + (lane / 2) % 4; }
inline uint matrix_column(uint lane) { return ((lane / 4) & 2) * 2 + (lane % 2) * 2; }

}  // namespace linnet_host

namespace metal {

template <typename T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup matrices are 8x8");
  static_assert(is_floating_point_v<T>, "simdgroup matrices hold floats");
  vec<T, 2> linnet_host_elements;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal, ::linnet_host::Site site = LINNET_HOST_HERE) {
    const uint lane = ::linnet_host::Gathered<uint>("simdgroup_matrix", 0u, 0, site).self();
    for (uint i = 0; i < 2; ++i) {
      linnet_host_elements[i] =
          ::linnet_host::matrix_row(lane) == ::linnet_host::matrix_column(lane) + i ? diagonal : T(0);
    }
  }
  thread vec<T, 2>& thread_elements() { return linnet_host_elements; }
};

typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int Columns, int Rows>
inline simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> result;
  result.linnet_host_elements[0] = value;
  result.linnet_host_elements[1] = value;
  return result;
}

// Not system-header code as far as tracing goes: loads and stores are seen by the sanitizers.
#define LINNET_HOST_MATRIX_MEMORY(space)                                                                     \
  template <typename T>                                                                                      \
  inline void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& matrix, const space T* source,                \
                             ulong elements_per_row = 8, ulong2 origin = ulong2{0, 0}, bool transpose = false, \
                             ::linnet_host::Site site = LINNET_HOST_HERE) {                                  \
    const uint lane = ::linnet_host::Gathered<uint>("simdgroup_load", 0u, long(elements_per_row), site).self(); \
    for (uint i = 0; i < 2; ++i) {                                                                           \
      ulong row = ::linnet_host::matrix_row(lane), column = ::linnet_host::matrix_column(lane) + i;          \
      if (transpose) {                                                                                       \
        const ulong other = row;                                                                             \
        row = column;                                                                                        \
        column = other;                                                                                      \
      }                                                                                                      \
      matrix.linnet_host_elements[i] = source[(origin.y + row) * elements_per_row + origin.x + column];      \
    }                                                                                                        \
  }                                                                                                          \
  template <typename T>                                                                                      \
  inline void simdgroup_store(thread simdgroup_matrix<T, 8, 8> matrix, space T* target,                      \
                              ulong elements_per_row = 8, ulong2 origin = ulong2{0, 0}, bool transpose = false, \
                              ::linnet_host::Site site = LINNET_HOST_HERE) {                                 \
    const uint lane = ::linnet_host::Gathered<uint>("simdgroup_store", 0u, long(elements_per_row), site).self(); \
    for (uint i = 0; i < 2; ++i) {                                                                           \
      ulong row = ::linnet_host::matrix_row(lane), column = ::linnet_host::matrix_column(lane) + i;          \
      if (transpose) {                                                                                       \
        const ulong other = row;                                                                             \
        row = column;                                                                                        \
        column = other;                                                                                      \
      }                                                                                                      \
      target[(origin.y + row) * elements_per_row + origin.x + column] = matrix.linnet_host_elements[i];      \
    }                                                                                                        \
  }
#ifndef LINNET_HOST_CHECK
LINNET_HOST_MATRIX_MEMORY()
#else
LINNET_HOST_MATRIX_MEMORY(device)
LINNET_HOST_MATRIX_MEMORY(threadgroup)
#endif
#undef LINNET_HOST_MATRIX_MEMORY

// d = a * b + c.
template <typename D, typename A, typename B, typename C>
inline void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c,
                                          ::linnet_host::Site site = LINNET_HOST_HERE) {
  const float4 mine = float4{float(a.linnet_host_elements[0]), float(a.linnet_host_elements[1]),
                             float(b.linnet_host_elements[0]), float(b.linnet_host_elements[1])};
  const ::linnet_host::Gathered<float4> lanes("simdgroup_multiply_accumulate", mine, 0, site);
  float left[8][8], right[8][8];
  for (uint lane = 0; lane < ::linnet_host::SIMD_WIDTH; ++lane) {
    const float4 theirs = lanes.at(lane);
    const uint row = ::linnet_host::matrix_row(lane), column = ::linnet_host::matrix_column(lane);
    left[row][column] = theirs[0];
    left[row][column + 1] = theirs[1];
    right[row][column] = theirs[2];
    right[row][column + 1] = theirs[3];
  }
  const uint row = ::linnet_host::matrix_row(lanes.self()), column = ::linnet_host::matrix_column(lanes.self());
  for (uint i = 0; i < 2; ++i) {
    float sum = float(c.linnet_host_elements[i]);
    for (uint k = 0; k < 8; ++k) sum += left[row][k] * right[k][column + i];
    d.linnet_host_elements[i] = static_cast<D>(sum);
  }
}
template <typename D, typename A, typename B>
inline void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                               simdgroup_matrix<B, 8, 8> b, ::linnet_host::Site site = LINNET_HOST_HERE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8, 8>(0.0f), site);
}

}  // namespace metal
