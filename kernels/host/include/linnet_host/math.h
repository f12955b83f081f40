// Mathematical, common, integer and relational functions.
#pragma once
#pragma clang system_header

// Applies a function of floats to each element, with one rounding to the element type at the end.
#define LINNET_HOST_MAP1(name, expression)                                                       \
  template <typename T, metal::enable_if_t<::linnet_host::is_math_v<T>, int> = 0>                \
  inline T name(T a) {                                                                           \
    T result;                                                                                    \
    for (int i = 0; i < ::linnet_host::Shape<T>::width; ++i) {                                   \
      const float x = static_cast<float>(::linnet_host::element(a, i));                          \
      ::linnet_host::set_element(result, i, static_cast<::linnet_host::Element<T>>(expression)); \
    }                                                                                            \
    return result;                                                                               \
  }
#define LINNET_HOST_MAP2(name, expression)                                                       \
  template <typename T, metal::enable_if_t<::linnet_host::is_math_v<T>, int> = 0>                \
  inline T name(T a, T b) {                                                                      \
    T result;                                                                                    \
    for (int i = 0; i < ::linnet_host::Shape<T>::width; ++i) {                                   \
      const float x = static_cast<float>(::linnet_host::element(a, i));                          \
      const float y = static_cast<float>(::linnet_host::element(b, i));                          \
      ::linnet_host::set_element(result, i, static_cast<::linnet_host::Element<T>>(expression)); \
    }                                                                                            \
    return result;                                                                               \
  }

// Functions that exist with three precisions: metal::f, metal::precise::f and metal::fast::f. The host computes all of
// them precisely; a kernel must hold its tolerance with fast ones as well, which only a Mac can show.
#define LINNET_HOST_TRANSCENDENTAL                       \
  LINNET_HOST_MAP1(exp, __builtin_expf(x))               \
  LINNET_HOST_MAP1(exp2, __builtin_exp2f(x))             \
  LINNET_HOST_MAP1(log, __builtin_logf(x))               \
  LINNET_HOST_MAP1(log2, __builtin_log2f(x))             \
  LINNET_HOST_MAP1(log10, __builtin_log10f(x))           \
  LINNET_HOST_MAP1(sin, __builtin_sinf(x))               \
  LINNET_HOST_MAP1(cos, __builtin_cosf(x))               \
  LINNET_HOST_MAP1(tan, __builtin_tanf(x))               \
  LINNET_HOST_MAP1(asin, __builtin_asinf(x))             \
  LINNET_HOST_MAP1(acos, __builtin_acosf(x))             \
  LINNET_HOST_MAP1(atan, __builtin_atanf(x))             \
  LINNET_HOST_MAP1(sinh, __builtin_sinhf(x))             \
  LINNET_HOST_MAP1(cosh, __builtin_coshf(x))             \
  LINNET_HOST_MAP1(tanh, __builtin_tanhf(x))             \
  LINNET_HOST_MAP1(sqrt, __builtin_sqrtf(x))             \
  LINNET_HOST_MAP1(rsqrt, 1.0f / __builtin_sqrtf(x))     \
  LINNET_HOST_MAP2(pow, __builtin_powf(x, y))            \
  LINNET_HOST_MAP2(powr, x < 0.0f ? __builtin_nanf("") : __builtin_powf(x, y)) \
  LINNET_HOST_MAP2(atan2, __builtin_atan2f(x, y))        \
  LINNET_HOST_MAP2(divide, x / y)

namespace metal {

LINNET_HOST_TRANSCENDENTAL
namespace precise {
LINNET_HOST_TRANSCENDENTAL
}
namespace fast {
LINNET_HOST_TRANSCENDENTAL
}

LINNET_HOST_MAP1(fabs, __builtin_fabsf(x))
LINNET_HOST_MAP1(floor, __builtin_floorf(x))
LINNET_HOST_MAP1(ceil, __builtin_ceilf(x))
LINNET_HOST_MAP1(trunc, __builtin_truncf(x))
LINNET_HOST_MAP1(round, __builtin_roundf(x))
LINNET_HOST_MAP1(rint, __builtin_roundevenf(x))
LINNET_HOST_MAP1(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))
LINNET_HOST_MAP1(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f)
LINNET_HOST_MAP1(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))
LINNET_HOST_MAP2(fmin, __builtin_fminf(x, y))
LINNET_HOST_MAP2(fmax, __builtin_fmaxf(x, y))
LINNET_HOST_MAP2(fmod, __builtin_fmodf(x, y))
LINNET_HOST_MAP2(copysign, __builtin_copysignf(x, y))
LINNET_HOST_MAP2(step, y < x ? 0.0f : 1.0f)

// Overloads of one name for floats and for integers.
#define LINNET_HOST_BOTH(name, floating, integral)                                               \
  template <typename T, enable_if_t<::linnet_host::is_math_v<T> || ::linnet_host::is_integer_v<T>, int> = 0> \
  inline T name(T a, T b) {                                                                      \
    T result;                                                                                    \
    for (int i = 0; i < ::linnet_host::Shape<T>::width; ++i) {                                   \
      typedef ::linnet_host::Element<T> E;                                                       \
      const E x = ::linnet_host::element(a, i);                                                  \
      const E y = ::linnet_host::element(b, i);                                                  \
      ::linnet_host::set_element(                                                                \
          result, i, is_floating_point_v<E> ? static_cast<E>(floating) : static_cast<E>(integral)); \
    }                                                                                            \
    return result;                                                                               \
  }
LINNET_HOST_BOTH(min, __builtin_fminf(static_cast<float>(x), static_cast<float>(y)), y < x ? y : x)
LINNET_HOST_BOTH(max, __builtin_fmaxf(static_cast<float>(x), static_cast<float>(y)), x < y ? y : x)
#undef LINNET_HOST_BOTH

template <typename T, enable_if_t<::linnet_host::is_math_v<T>, int> = 0>
inline T abs(T a) { return fabs(a); }
template <typename T, enable_if_t<::linnet_host::is_integer_v<T> && ::linnet_host::Shape<T>::width == 1, int> = 0>
inline T abs(T a) { return a < T(0) ? T(-a) : a; }

template <typename T>
inline T clamp(T value, T least, T greatest) { return min(max(value, least), greatest); }

template <typename T, enable_if_t<::linnet_host::is_math_v<T>, int> = 0>
inline T fma(T a, T b, T c) {
  T result;
  for (int i = 0; i < ::linnet_host::Shape<T>::width; ++i) {
    const float value = __builtin_fmaf(static_cast<float>(::linnet_host::element(a, i)),
                                       static_cast<float>(::linnet_host::element(b, i)),
                                       static_cast<float>(::linnet_host::element(c, i)));
    ::linnet_host::set_element(result, i, static_cast<::linnet_host::Element<T>>(value));
  }
  return result;
}

template <typename T, enable_if_t<::linnet_host::is_math_v<T>, int> = 0>
inline T mix(T x, T y, T a) { return x + (y - x) * a; }

template <typename T, enable_if_t<::linnet_host::is_math_v<T> && (::linnet_host::Shape<T>::width > 1), int> = 0>
inline ::linnet_host::Element<T> dot(T a, T b) {
  ::linnet_host::Element<T> sum = ::linnet_host::element(a, 0) * ::linnet_host::element(b, 0);
  for (int i = 1; i < ::linnet_host::Shape<T>::width; ++i) {
    sum = sum + ::linnet_host::element(a, i) * ::linnet_host::element(b, i);
  }
  return sum;
}

#define LINNET_HOST_TEST(name, expression)                                                       \
  template <typename T, enable_if_t<::linnet_host::is_math_v<T> && ::linnet_host::Shape<T>::width == 1, int> = 0> \
  inline bool name(T a) {                                                                        \
    const float x = static_cast<float>(a);                                                       \
    return expression;                                                                           \
  }
LINNET_HOST_TEST(isnan, __builtin_isnan(x))
LINNET_HOST_TEST(isinf, __builtin_isinf(x))
LINNET_HOST_TEST(isfinite, __builtin_isfinite(x))
LINNET_HOST_TEST(signbit, __builtin_signbit(x))
#undef LINNET_HOST_TEST
inline bool isnan(bfloat a) { return __builtin_isnan(static_cast<float>(a)); }
inline bool isinf(bfloat a) { return __builtin_isinf(static_cast<float>(a)); }

template <typename T>
inline T select(T if_false, T if_true, bool condition) { return condition ? if_true : if_false; }

template <typename T, enable_if_t<::linnet_host::is_integer_v<T> && ::linnet_host::Shape<T>::width == 1, int> = 0>
inline T popcount(T a) {
  return static_cast<T>(__builtin_popcountll(static_cast<ulong>(a) & (~0ul >> (64 - 8 * sizeof(T)))));
}
template <typename T, enable_if_t<::linnet_host::is_integer_v<T> && ::linnet_host::Shape<T>::width == 1, int> = 0>
inline T clz(T a) {
  const ulong bits = static_cast<ulong>(a) & (~0ul >> (64 - 8 * sizeof(T)));
  return static_cast<T>(bits == 0 ? 8 * sizeof(T) : __builtin_clzl(bits) - (64 - 8 * sizeof(T)));
}
template <typename T, enable_if_t<::linnet_host::is_integer_v<T> && ::linnet_host::Shape<T>::width == 1, int> = 0>
inline T ctz(T a) { return static_cast<T>(a == 0 ? 8 * sizeof(T) : __builtin_ctzl(static_cast<ulong>(a))); }

template <typename T>
inline T extract_bits(T value, uint offset, uint bits) {
  typedef conditional_t<(T(-1) < T(0)), long, ulong> Wide;
  if (bits == 0) return T(0);
  return static_cast<T>(static_cast<Wide>(static_cast<ulong>(value) << (64 - offset - bits)) >> (64 - bits));
}

// Vectors of bool are vectors of integers here, as comparisons of clang's vectors give them.
template <typename T, enable_if_t<(::linnet_host::Shape<T>::width > 1), int> = 0>
inline bool any(T a) {
  bool result = false;
  for (int i = 0; i < ::linnet_host::Shape<T>::width; ++i) result |= ::linnet_host::element(a, i) != 0;
  return result;
}
template <typename T, enable_if_t<(::linnet_host::Shape<T>::width > 1), int> = 0>
inline bool all(T a) {
  bool result = true;
  for (int i = 0; i < ::linnet_host::Shape<T>::width; ++i) result &= ::linnet_host::element(a, i) != 0;
  return result;
}

}  // namespace metal

// A function of the language, not of its library: it needs no namespace.
template <typename To, typename From>
inline To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of equal size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(result));
  return result;
}
