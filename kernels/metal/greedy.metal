// Greedy selection. kernels/metal/greedy.rs says what it computes.

namespace linnet {

// A value's share of a sum relative to `maximum`. Minus infinity has none, whatever the maximum; NaN and plus infinity
// make the sum NaN.
inline float weight_below(float value, float maximum) {
  return value == -INFINITY ? 0.0f : precise::exp(value - maximum);
}

// The normalized score, rounded as the arithmetic of T rounds it.
template <typename T>
inline T score_of(float value, T log_sum) {
  return static_cast<T>(value - static_cast<float>(log_sum));
}

// Whether a logit's score equals that of the greatest logit.
template <typename T>
inline bool is_best(float value, float maximum, T log_sum) {
  return score_of<T>(value, log_sum) == score_of<T>(maximum, log_sum);
}

// Of the logits from `begin` to `end`, the lowest index whose score is the best, for all threads.
template <typename T, typename Logits>
inline uint first_best(Logits logits, uint begin, uint end, float maximum, T log_sum, threadgroup uint* scratch,
                       Place place, uint threads) {
  uint best = UINT_MAX;
  for (uint index = begin + place.thread_index; index < end && best == UINT_MAX; index += threads) {
    if (is_best<T>(static_cast<float>(logits[index]), maximum, log_sum)) {
      best = index;
    }
  }
  return over_group<Minimum>(best, scratch, place);
}

// The token of a row, for the thread that writes it: none where the sum shows that the logits are no distribution.
template <typename T>
inline uint token_or_none(uint best, T log_sum) { return isfinite(static_cast<float>(log_sum)) ? best : UINT_MAX; }

// Maximum and sum of weights of the logits from `begin` to `end`, for all threads.
template <typename Logits>
inline void measure(Logits logits, uint begin, uint end, thread float& maximum, thread float& sum,
                    threadgroup float* scratch, Place place, uint threads) {
  float own_maximum = -INFINITY;
  for (uint index = begin + place.thread_index; index < end; index += threads) {
    own_maximum = max(own_maximum, static_cast<float>(logits[index]));
  }
  maximum = over_group<Maximum>(own_maximum, scratch, place);
  float own_sum = 0.0f;
  for (uint index = begin + place.thread_index; index < end; index += threads) {
    own_sum += weight_below(static_cast<float>(logits[index]), maximum);
  }
  sum = over_group<Sum>(own_sum, scratch, place);
}

}  // namespace linnet
