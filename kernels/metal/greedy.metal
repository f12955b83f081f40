// Greedy selection. kernels/metal/greedy.rs says what it computes.

namespace linnet {

// A logit as a float. NaN counts as minus infinity.
template <typename Logits>
inline float logit_at(Logits logits, uint index) {
  const float value = static_cast<float>(logits[index]);
  return isnan(value) ? -INFINITY : value;
}

// exp(value - maximum), and nothing where the maximum is infinite: the sum is not used then.
inline float weight_below(float value, float maximum) {
  return isinf(maximum) ? 0.0f : precise::exp(value - maximum);
}

// The normalized score, rounded as the arithmetic of T rounds it.
template <typename T>
inline T score_of(float value, T log_sum) {
  return static_cast<T>(value - static_cast<float>(log_sum));
}

// Whether a logit's score equals that of the greatest logit.
template <typename T>
inline bool is_best(float value, float maximum, T log_sum) {
  return value == maximum || score_of<T>(value, log_sum) == score_of<T>(maximum, log_sum);
}

// Of the logits from `begin` to `end`, the lowest index whose score is the best, for all threads.
template <typename T, typename Logits>
inline uint first_best(Logits logits, uint begin, uint end, float maximum, T log_sum, threadgroup uint* scratch,
                       Place place, uint threads) {
  uint best = UINT_MAX;
  for (uint index = begin + place.thread_index; index < end && best == UINT_MAX; index += threads) {
    if (is_best<T>(logit_at(logits, index), maximum, log_sum)) {
      best = index;
    }
  }
  return over_group<Minimum>(best, scratch, place);
}

// Maximum and sum of weights of the logits from `begin` to `end`, for all threads.
template <typename Logits>
inline void measure(Logits logits, uint begin, uint end, thread float& maximum, thread float& sum,
                    threadgroup float* scratch, Place place, uint threads) {
  float own_maximum = -INFINITY;
  for (uint index = begin + place.thread_index; index < end; index += threads) {
    own_maximum = max(own_maximum, logit_at(logits, index));
  }
  maximum = over_group<Maximum>(own_maximum, scratch, place);
  float own_sum = 0.0f;
  for (uint index = begin + place.thread_index; index < end; index += threads) {
    own_sum += weight_below(logit_at(logits, index), maximum);
  }
  sum = over_group<Sum>(own_sum, scratch, place);
}

}  // namespace linnet
