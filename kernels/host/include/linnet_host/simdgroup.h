// Barriers, and functions across the lanes of a simdgroup.
#pragma once
#pragma clang system_header

namespace metal {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
inline constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}

inline void threadgroup_barrier(mem_flags flags, ::linnet_host::Site site = LINNET_HOST_HERE) {
  ::linnet_host::linnet_host_threadgroup_barrier(static_cast<uint>(flags), site);
}
inline void simdgroup_barrier(mem_flags flags, ::linnet_host::Site site = LINNET_HOST_HERE) {
  ::linnet_host::linnet_host_simdgroup_barrier(static_cast<uint>(flags), site);
}

}  // namespace metal

namespace linnet_host {

// Types that simdgroup functions take: scalars of up to 32 bits and vectors of them. bfloat is left out on purpose:
// whether it is accepted depends on the version of Metal, and a float serves.
template <typename T>
constexpr bool is_lane_type_v = sizeof(Element<T>) <= 4 && !metal::is_same_v<Element<T>, bfloat> &&
                                !metal::is_same_v<Element<T>, bool> && (is_math_v<T> || is_integer_v<T>);

// What each lane brought. Valid until the lane's next operation.
template <typename T>
class Gathered {
 public:
  Gathered(const char* operation, T value, int64_t uniform, Site site)
      : lanes_(linnet_host_exchange(operation, &value, sizeof(T), uniform, site)), self_(lanes_->self),
        operation_(operation), site_(site) {}
  uint count() const { return lanes_->count; }
  uint self() const { return self_; }
  T at(uint lane) const {
    if (lane >= lanes_->count) {
      linnet_host_fault("lane", site_, "%s reads lane %u, but the simdgroup has %u lanes", operation_, lane,
                        lanes_->count);
    }
    T value;
    __builtin_memcpy(&value, lanes_->values[lane], sizeof(T));
    return value;
  }

 private:
  const Lanes* lanes_;
  uint self_;
  const char* operation_;
  Site site_;
};

// A value and what takes its place where a shuffle has no source.
template <typename T>
struct Filled {
  T data;
  T filling;
};

struct Add {
  template <typename T> static T apply(T a, T b) { return static_cast<T>(a + b); }
};
struct Multiply {
  template <typename T> static T apply(T a, T b) { return static_cast<T>(a * b); }
};
struct Least {
  template <typename T> static T apply(T a, T b) { return metal::min(a, b); }
};
struct Greatest {
  template <typename T> static T apply(T a, T b) { return metal::max(a, b); }
};
struct And {
  template <typename T> static T apply(T a, T b) { return static_cast<T>(a & b); }
};
struct Or {
  template <typename T> static T apply(T a, T b) { return static_cast<T>(a | b); }
};
struct Xor {
  template <typename T> static T apply(T a, T b) { return static_cast<T>(a ^ b); }
};

// In the order of a tree over neighbours, as hardware may; Metal promises no order.
template <typename Operation, typename T>
inline T reduce(const char* name, T data, Site site) {
  static_assert(is_lane_type_v<T>, "simdgroup functions take scalars of up to 32 bits and vectors of them");
  const Gathered<T> lanes(name, data, 0, site);
  T values[SIMD_WIDTH];
  for (uint i = 0; i < lanes.count(); ++i) values[i] = lanes.at(i);
  for (uint step = 1; step < lanes.count(); step *= 2) {
    for (uint i = 0; i + step < lanes.count(); i += 2 * step) {
      values[i] = Operation::apply(values[i], values[i + step]);
    }
  }
  return values[0];
}

template <typename Operation, typename T>
inline T scan(const char* name, T data, T start, bool inclusive, Site site) {
  static_assert(is_lane_type_v<T>, "simdgroup functions take scalars of up to 32 bits and vectors of them");
  const Gathered<T> lanes(name, data, 0, site);
  T total = start;
  for (uint i = 0; i < lanes.self() + (inclusive ? 1 : 0); ++i) total = Operation::apply(total, lanes.at(i));
  return total;
}

}  // namespace linnet_host

namespace metal {

#define LINNET_HOST_REDUCE(name, operation)                                             \
  template <typename T>                                                                 \
  inline T name(T data, ::linnet_host::Site site = LINNET_HOST_HERE) {                  \
    return ::linnet_host::reduce<::linnet_host::operation>(#name, data, site);          \
  }
LINNET_HOST_REDUCE(simd_sum, Add)
LINNET_HOST_REDUCE(simd_product, Multiply)
LINNET_HOST_REDUCE(simd_min, Least)
LINNET_HOST_REDUCE(simd_max, Greatest)
LINNET_HOST_REDUCE(simd_and, And)
LINNET_HOST_REDUCE(simd_or, Or)
LINNET_HOST_REDUCE(simd_xor, Xor)
#undef LINNET_HOST_REDUCE

#define LINNET_HOST_SCAN(name, operation, start, inclusive)                             \
  template <typename T>                                                                 \
  inline T name(T data, ::linnet_host::Site site = LINNET_HOST_HERE) {                  \
    return ::linnet_host::scan<::linnet_host::operation>(#name, data, T(start), inclusive, site); \
  }
LINNET_HOST_SCAN(simd_prefix_inclusive_sum, Add, 0, true)
LINNET_HOST_SCAN(simd_prefix_exclusive_sum, Add, 0, false)
LINNET_HOST_SCAN(simd_prefix_inclusive_product, Multiply, 1, true)
LINNET_HOST_SCAN(simd_prefix_exclusive_product, Multiply, 1, false)
#undef LINNET_HOST_SCAN

#define LINNET_HOST_LANE_TYPE(T) \
  static_assert(::linnet_host::is_lane_type_v<T>, "simdgroup functions take scalars of up to 32 bits and vectors of them")

template <typename T>
inline T simd_shuffle(T data, ushort lane, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  return ::linnet_host::Gathered<T>("simd_shuffle", data, 0, site).at(lane);
}
template <typename T>
inline T simd_shuffle_xor(T data, ushort mask, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  const ::linnet_host::Gathered<T> lanes("simd_shuffle_xor", data, mask, site);
  return lanes.at(lanes.self() ^ mask);
}
template <typename T>
inline T simd_broadcast(T data, ushort lane, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  return ::linnet_host::Gathered<T>("simd_broadcast", data, lane, site).at(lane);
}
template <typename T>
inline T simd_broadcast_first(T data, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  return ::linnet_host::Gathered<T>("simd_broadcast_first", data, 0, site).at(0);
}
// Lanes without a source keep their own value.
template <typename T>
inline T simd_shuffle_down(T data, ushort delta, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  const ::linnet_host::Gathered<T> lanes("simd_shuffle_down", data, delta, site);
  return lanes.self() + delta < ::linnet_host::SIMD_WIDTH ? lanes.at(lanes.self() + delta) : data;
}
template <typename T>
inline T simd_shuffle_up(T data, ushort delta, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  const ::linnet_host::Gathered<T> lanes("simd_shuffle_up", data, delta, site);
  return lanes.self() >= delta ? lanes.at(lanes.self() - delta) : data;
}
// Lanes without a source take the filling of the lane that they would wrap around to.
template <typename T>
inline T simd_shuffle_and_fill_down(T data, T filling, ushort delta, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  const ::linnet_host::Gathered<::linnet_host::Filled<T>> lanes("simd_shuffle_and_fill_down", {data, filling}, delta,
                                                                site);
  const uint source = lanes.self() + delta;
  return source < ::linnet_host::SIMD_WIDTH ? lanes.at(source).data
                                            : lanes.at(source - ::linnet_host::SIMD_WIDTH).filling;
}
template <typename T>
inline T simd_shuffle_and_fill_up(T data, T filling, ushort delta, ::linnet_host::Site site = LINNET_HOST_HERE) {
  LINNET_HOST_LANE_TYPE(T);
  const ::linnet_host::Gathered<::linnet_host::Filled<T>> lanes("simd_shuffle_and_fill_up", {data, filling}, delta,
                                                                site);
  return lanes.self() >= delta ? lanes.at(lanes.self() - delta).data
                               : lanes.at(::linnet_host::SIMD_WIDTH + lanes.self() - delta).filling;
}
#undef LINNET_HOST_LANE_TYPE

inline bool simd_any(bool condition, ::linnet_host::Site site = LINNET_HOST_HERE) {
  return ::linnet_host::reduce<::linnet_host::Or>("simd_any", condition ? 1u : 0u, site) != 0;
}
inline bool simd_all(bool condition, ::linnet_host::Site site = LINNET_HOST_HERE) {
  return ::linnet_host::reduce<::linnet_host::And>("simd_all", condition ? 1u : 0u, site) != 0;
}
inline bool simd_is_first(::linnet_host::Site site = LINNET_HOST_HERE) {
  return ::linnet_host::Gathered<uint>("simd_is_first", 0u, 0, site).self() == 0;
}

}  // namespace metal
