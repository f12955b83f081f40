// Reductions over a threadgroup.

namespace linnet {

// A thread's place in its group.
struct Place {
  uint thread_index;
  uint simdgroup;
  uint lane;
  uint simdgroups;
};

struct Maximum {
  static float of_lanes(float value) { return simd_max(value); }
  static float identity() { return -INFINITY; }
};

struct Sum {
  static float of_lanes(float value) { return simd_sum(value); }
  static float identity() { return 0.0f; }
};

struct Minimum {
  static uint of_lanes(uint value) { return simd_min(value); }
  static uint identity() { return UINT_MAX; }
};

// Reduces over all threads of the group; each gets the result. `scratch` has a place for each simdgroup.
template <typename Reduction, typename T>
inline T over_group(T value, threadgroup T* scratch, Place place) {
  value = Reduction::of_lanes(value);
  // The result of the reduction before this one may still be being read.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (place.lane == 0) {
    scratch[place.simdgroup] = value;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return Reduction::of_lanes(place.lane < place.simdgroups ? scratch[place.lane] : Reduction::identity());
}

}  // namespace linnet
