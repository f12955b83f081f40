// Scalar and vector types, limits and type traits.
#pragma once
#pragma clang system_header

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

#define LINNET_HOST_VECTORS(type)                              \
  typedef type type##2 __attribute__((ext_vector_type(2)));    \
  typedef type type##3 __attribute__((ext_vector_type(3)));    \
  typedef type type##4 __attribute__((ext_vector_type(4)));
LINNET_HOST_VECTORS(char)
LINNET_HOST_VECTORS(uchar)
LINNET_HOST_VECTORS(short)
LINNET_HOST_VECTORS(ushort)
LINNET_HOST_VECTORS(int)
LINNET_HOST_VECTORS(uint)
LINNET_HOST_VECTORS(long)
LINNET_HOST_VECTORS(ulong)
LINNET_HOST_VECTORS(half)
LINNET_HOST_VECTORS(bfloat)
LINNET_HOST_VECTORS(float)
#undef LINNET_HOST_VECTORS

// Literal suffixes. The names without an underscore are reserved for system headers, which this one is.
constexpr half operator""h(long double value) { return static_cast<half>(value); }
constexpr half operator""H(long double value) { return static_cast<half>(value); }
constexpr bfloat operator""bf(long double value) { return static_cast<bfloat>(value); }
constexpr bfloat operator""BF(long double value) { return static_cast<bfloat>(value); }

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_huge_valf())
#define HUGE_VALH (static_cast<half>(__builtin_huge_valf()))
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define HALF_MAX (static_cast<half>(65504.0f))
#define HALF_MIN (static_cast<half>(6.103515625e-5f))
#define INT_MAX __INT_MAX__
#define INT_MIN (-__INT_MAX__ - 1)
#define UINT_MAX (__INT_MAX__ * 2u + 1u)
#define M_PI_F 3.14159265358979323846f
#define M_1_PI_F 0.31830988618379067154f
#define M_2_PI_F 0.63661977236758134308f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f

namespace metal {

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

template <typename T, T V>
struct integral_constant {
  static constexpr T value = V;
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;

template <typename A, typename B>
struct is_same : false_type {};
template <typename A>
struct is_same<A, A> : true_type {};
template <typename A, typename B>
constexpr bool is_same_v = is_same<A, B>::value;

template <bool C, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool C, typename T = void>
using enable_if_t = typename enable_if<C, T>::type;

template <bool C, typename A, typename B>
struct conditional {
  typedef A type;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  typedef B type;
};
template <bool C, typename A, typename B>
using conditional_t = typename conditional<C, A, B>::type;

template <typename T>
struct is_floating_point
    : integral_constant<bool, is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>> {};
template <typename T>
constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T>
struct is_integral : integral_constant<bool, __is_integral(T)> {};
template <typename T>
constexpr bool is_integral_v = is_integral<T>::value;

template <typename T>
struct numeric_limits;
#define LINNET_HOST_INTEGER_LIMITS(type, least, greatest)            \
  template <>                                                        \
  struct numeric_limits<type> {                                      \
    static constexpr type min() { return least; }                    \
    static constexpr type max() { return greatest; }                 \
    static constexpr type lowest() { return least; }                 \
  };
LINNET_HOST_INTEGER_LIMITS(char, -128, 127)
LINNET_HOST_INTEGER_LIMITS(signed char, -128, 127)
LINNET_HOST_INTEGER_LIMITS(uchar, 0, 255)
LINNET_HOST_INTEGER_LIMITS(short, -32768, 32767)
LINNET_HOST_INTEGER_LIMITS(ushort, 0, 65535)
LINNET_HOST_INTEGER_LIMITS(int, INT_MIN, INT_MAX)
LINNET_HOST_INTEGER_LIMITS(uint, 0, UINT_MAX)
LINNET_HOST_INTEGER_LIMITS(long, -__LONG_MAX__ - 1, __LONG_MAX__)
LINNET_HOST_INTEGER_LIMITS(ulong, 0, __LONG_MAX__ * 2ul + 1ul)
#undef LINNET_HOST_INTEGER_LIMITS
#define LINNET_HOST_FLOAT_LIMITS(type, least, greatest, step)                                     \
  template <>                                                                                     \
  struct numeric_limits<type> {                                                                   \
    static constexpr type min() { return static_cast<type>(least); }                              \
    static constexpr type max() { return static_cast<type>(greatest); }                           \
    static constexpr type lowest() { return static_cast<type>(-greatest); }                       \
    static constexpr type epsilon() { return static_cast<type>(step); }                           \
    static constexpr type infinity() { return static_cast<type>(__builtin_inff()); }              \
    static constexpr type quiet_NaN() { return static_cast<type>(__builtin_nanf("")); }           \
  };
LINNET_HOST_FLOAT_LIMITS(float, __FLT_MIN__, __FLT_MAX__, __FLT_EPSILON__)
LINNET_HOST_FLOAT_LIMITS(half, 6.103515625e-5f, 65504.0f, 9.765625e-4f)
LINNET_HOST_FLOAT_LIMITS(bfloat, __FLT_MIN__, 3.3895313892515355e38f, 7.8125e-3f)
#undef LINNET_HOST_FLOAT_LIMITS

}  // namespace metal

namespace linnet_host {

// The element type and width of a scalar or a vector.
template <typename T>
struct Shape {
  typedef T Element;
  static constexpr int width = 1;
};
template <typename T, int N>
struct Shape<T __attribute__((ext_vector_type(N)))> {
  typedef T Element;
  static constexpr int width = N;
};

template <typename T>
using Element = typename Shape<T>::Element;

// float and half, and vectors of them: the types that Metal's mathematical functions take.
template <typename T>
constexpr bool is_math_v =
    metal::is_same_v<Element<T>, float> || metal::is_same_v<Element<T>, half>;
template <typename T>
constexpr bool is_integer_v = metal::is_integral_v<Element<T>> && !metal::is_same_v<Element<T>, bool>;

template <typename T>
inline Element<T> element(const T& value, int index) {
  Element<T> result;
  __builtin_memcpy(&result, reinterpret_cast<const char*>(&value) + sizeof(result) * index, sizeof(result));
  return result;
}
template <typename T>
inline void set_element(T& value, int index, Element<T> item) {
  __builtin_memcpy(reinterpret_cast<char*>(&value) + sizeof(item) * index, &item, sizeof(item));
}

}  // namespace linnet_host
