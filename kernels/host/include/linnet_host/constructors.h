// Vector construction, `float4(a, b.xy, c)`: clang has no such syntax for its vectors in C++. The names of vector types
// become macros with arguments, which leaves uses without a parenthesis after the name alone. Last to be included.
#pragma once
#pragma clang system_header

namespace linnet_host {

template <typename T, int N>
struct Maker {
  metal::vec<T, N> value;
  int filled = 0;

  template <typename Part>
  void append(Part part) {
    static_assert(Shape<Part>::width <= N, "more elements than the vector has");
    for (int i = 0; i < Shape<Part>::width; ++i) {
      set_element(value, filled++, static_cast<T>(element(part, i)));
    }
  }
};

template <typename... Parts>
struct TotalWidth {
  static constexpr int value = 0;
};
template <typename Part, typename... Rest>
struct TotalWidth<Part, Rest...> {
  static constexpr int value = Shape<Part>::width + TotalWidth<Rest...>::value;
};

// One scalar fills all elements; otherwise the parts' widths must add up.
template <typename T, int N, typename Part>
inline metal::vec<T, N> make(Part part) {
  static_assert(Shape<Part>::width == 1 || Shape<Part>::width == N, "a vector is made of one scalar or of N elements");
  metal::vec<T, N> value;
  for (int i = 0; i < N; ++i) set_element(value, i, static_cast<T>(element(part, Shape<Part>::width == 1 ? 0 : i)));
  return value;
}
template <typename T, int N, typename First, typename Second, typename... Rest>
inline metal::vec<T, N> make(First first, Second second, Rest... rest) {
  static_assert(TotalWidth<First, Second, Rest...>::value == N, "a vector is made of one scalar or of N elements");
  Maker<T, N> maker;
  maker.append(first);
  maker.append(second);
  const int unused[] = {0, (maker.append(rest), 0)...};
  (void)unused;
  return maker.value;
}

}  // namespace linnet_host

// There is no double precision in Metal.
#define double linnet_host_has_no_double

#define char2(...) ::linnet_host::make<char, 2>(__VA_ARGS__)
#define char3(...) ::linnet_host::make<char, 3>(__VA_ARGS__)
#define char4(...) ::linnet_host::make<char, 4>(__VA_ARGS__)
#define uchar2(...) ::linnet_host::make<uchar, 2>(__VA_ARGS__)
#define uchar3(...) ::linnet_host::make<uchar, 3>(__VA_ARGS__)
#define uchar4(...) ::linnet_host::make<uchar, 4>(__VA_ARGS__)
#define short2(...) ::linnet_host::make<short, 2>(__VA_ARGS__)
#define short3(...) ::linnet_host::make<short, 3>(__VA_ARGS__)
#define short4(...) ::linnet_host::make<short, 4>(__VA_ARGS__)
#define ushort2(...) ::linnet_host::make<ushort, 2>(__VA_ARGS__)
#define ushort3(...) ::linnet_host::make<ushort, 3>(__VA_ARGS__)
#define ushort4(...) ::linnet_host::make<ushort, 4>(__VA_ARGS__)
#define int2(...) ::linnet_host::make<int, 2>(__VA_ARGS__)
#define int3(...) ::linnet_host::make<int, 3>(__VA_ARGS__)
#define int4(...) ::linnet_host::make<int, 4>(__VA_ARGS__)
#define uint2(...) ::linnet_host::make<uint, 2>(__VA_ARGS__)
#define uint3(...) ::linnet_host::make<uint, 3>(__VA_ARGS__)
#define uint4(...) ::linnet_host::make<uint, 4>(__VA_ARGS__)
#define long2(...) ::linnet_host::make<long, 2>(__VA_ARGS__)
#define long3(...) ::linnet_host::make<long, 3>(__VA_ARGS__)
#define long4(...) ::linnet_host::make<long, 4>(__VA_ARGS__)
#define ulong2(...) ::linnet_host::make<ulong, 2>(__VA_ARGS__)
#define ulong3(...) ::linnet_host::make<ulong, 3>(__VA_ARGS__)
#define ulong4(...) ::linnet_host::make<ulong, 4>(__VA_ARGS__)
#define half2(...) ::linnet_host::make<half, 2>(__VA_ARGS__)
#define half3(...) ::linnet_host::make<half, 3>(__VA_ARGS__)
#define half4(...) ::linnet_host::make<half, 4>(__VA_ARGS__)
#define bfloat2(...) ::linnet_host::make<bfloat, 2>(__VA_ARGS__)
#define bfloat3(...) ::linnet_host::make<bfloat, 3>(__VA_ARGS__)
#define bfloat4(...) ::linnet_host::make<bfloat, 4>(__VA_ARGS__)
#define float2(...) ::linnet_host::make<float, 2>(__VA_ARGS__)
#define float3(...) ::linnet_host::make<float, 3>(__VA_ARGS__)
#define float4(...) ::linnet_host::make<float, 4>(__VA_ARGS__)
