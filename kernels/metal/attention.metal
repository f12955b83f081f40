// Attention of one query over quantized keys and values. kernels/metal/decode_attention.rs says what it computes.

namespace linnet {

// Quantized keys or values of one row and KV head: codes, and scales and biases of their groups, and how far the tokens of
// each lie apart.
template <typename Codes, typename Scales>
struct Lines {
  Codes codes;
  Scales scales;
  Scales biases;
  size_t code_stride;
  size_t scale_stride;
  size_t bias_stride;
};

// Quantized keys or values of all rows, [rows, kv_heads, tokens, ...]. The arrays may be cut out of larger ones; the last
// axis is whole.
template <typename Codes, typename Scales>
struct Store {
  Codes codes;
  Scales scales;
  Scales biases;
  const constant int64_t* code_strides;
  const constant int64_t* scale_strides;
  const constant int64_t* bias_strides;

  Lines<Codes, Scales> at(uint row, uint head) const {
    return Lines<Codes, Scales>{codes + row * code_strides[0] + head * code_strides[1],
                                scales + row * scale_strides[0] + head * scale_strides[1],
                                biases + row * bias_strides[0] + head * bias_strides[1],
                                static_cast<size_t>(code_strides[2]),
                                static_cast<size_t>(scale_strides[2]),
                                static_cast<size_t>(bias_strides[2])};
  }
};
template <typename Codes, typename Scales>
inline Store<Codes, Scales> store(Codes codes, const constant int64_t* code_strides, Scales scales,
                                  const constant int64_t* scale_strides, Scales biases,
                                  const constant int64_t* bias_strides) {
  return Store<Codes, Scales>{codes, scales, biases, code_strides, scale_strides, bias_strides};
}

// How a head is spread over a simdgroup: eight elements to a lane, LANES lanes to a key, KEYS keys at once.
template <int HEAD_DIM>
struct Layout {
  enum {
    ELEMENTS = 8,
    LANES = HEAD_DIM <= 64 ? 8 : HEAD_DIM <= 128 ? 16 : 32,
    KEYS = 32 / LANES,
  };
};

// Eight codes of one token, with their scale and bias.
template <int BITS, int GROUP, typename Source>
inline void load_codes(Source source, uint token, uint element, thread float (&codes)[8], thread float& scale,
                       thread float& bias) {
  const auto words = source.codes + token * source.code_stride + element * BITS / 32;
  for (int i = 0; i < 8; ++i) {
    const uint word = words[i * BITS / 32];
    codes[i] = static_cast<float>((word >> (i * BITS % 32)) & ((1u << BITS) - 1u));
  }
  scale = static_cast<float>(source.scales[token * source.scale_stride + element / GROUP]);
  bias = static_cast<float>(source.biases[token * source.bias_stride + element / GROUP]);
}

// A softmax in the making: the greatest score, the sum of weights relative to it, and the weighted values.
struct Running {
  float maximum;
  float sum;
  float values[8];

  void clear() {
    // Finite, so that two empty parts can be compared by subtraction.
    maximum = -FLT_MAX;
    sum = 0.0f;
    for (int i = 0; i < 8; ++i) {
      values[i] = 0.0f;
    }
  }

  void add(float score, float scale, float bias, const thread float (&codes)[8]) {
    const float greatest = max(maximum, score);
    const float factor = fast::exp(maximum - greatest);
    const float weight = fast::exp(score - greatest);
    maximum = greatest;
    sum = sum * factor + weight;
    for (int i = 0; i < 8; ++i) {
      values[i] = values[i] * factor + weight * (scale * codes[i] + bias);
    }
  }

  // Joins with the part of the lane whose number differs in `mask`.
  void join(ushort mask) {
    const float other_maximum = simd_shuffle_xor(maximum, mask);
    const float other_sum = simd_shuffle_xor(sum, mask);
    const float greatest = max(maximum, other_maximum);
    const float factor = fast::exp(maximum - greatest);
    const float other_factor = fast::exp(other_maximum - greatest);
    maximum = greatest;
    sum = sum * factor + other_sum * other_factor;
    for (int i = 0; i < 8; ++i) {
      values[i] = values[i] * factor + simd_shuffle_xor(values[i], mask) * other_factor;
    }
  }
};

// The keys that a group of threads attends to: part `part` of `parts` of those the row sees, from `begin` to `end`.
struct Span {
  uint begin;
  uint end;
};
inline Span span_of(int padding, int length, int window, uint capacity, uint part, uint parts) {
  const uint end = min(static_cast<uint>(max(length, 0)), capacity);
  uint begin = min(static_cast<uint>(max(padding, 0)), end);
  if (window > 0 && end > static_cast<uint>(window)) {
    begin = max(begin, end - static_cast<uint>(window));
  }
  const uint share = (end - begin + parts - 1) / parts;
  const uint first = min(begin + part * share, end);
  return Span{first, min(first + share, end)};
}

// Attends with HEADS query heads from `head` on, all of one KV head, to the keys of `span`. The simdgroups of the group
// take turns. Afterwards the lanes of the first key's place hold the simdgroup's result.
template <int HEAD_DIM, int BITS, int GROUP, int HEADS, typename Queries, typename Keys, typename Values>
inline void attend(Queries queries, size_t query_stride, uint last_head, Keys keys, Values values, Span span, float scale, uint simdgroup,
                   uint simdgroups, uint lane, thread Running (&state)[HEADS]) {
  typedef Layout<HEAD_DIM> L;
  const uint element = lane % L::LANES * L::ELEMENTS;
  const bool active = element < HEAD_DIM;

  float query[HEADS][8];
  float query_sum[HEADS];
  for (int head = 0; head < HEADS; ++head) {
    query_sum[head] = 0.0f;
    for (int i = 0; i < 8; ++i) {
      const size_t index = min(static_cast<uint>(head), last_head) * query_stride + element + i;
      query[head][i] = active ? scale * static_cast<float>(queries[index]) : 0.0f;
      query_sum[head] += query[head][i];
    }
    state[head].clear();
  }

  for (uint first = span.begin + simdgroup * L::KEYS; first < span.end; first += simdgroups * L::KEYS) {
    const uint key = first + lane / L::LANES;
    const bool visible = key < span.end;
    float codes[8];
    float code_scale = 0.0f;
    float code_bias = 0.0f;
    if (visible && active) {
      load_codes<BITS, GROUP>(keys, key, element, codes, code_scale, code_bias);
    }
    float scores[HEADS];
    for (int head = 0; head < HEADS; ++head) {
      float score = 0.0f;
      if (visible && active) {
        for (int i = 0; i < 8; ++i) {
          score += query[head][i] * codes[i];
        }
        score = code_scale * score + code_bias * query_sum[head];
      }
      for (ushort mask = L::LANES / 2; mask > 0; mask /= 2) {
        score += simd_shuffle_xor(score, mask);
      }
      scores[head] = score;
    }
    if (visible && active) {
      load_codes<BITS, GROUP>(values, key, element, codes, code_scale, code_bias);
      for (int head = 0; head < HEADS; ++head) {
        state[head].add(scores[head], code_scale, code_bias, codes);
      }
    }
  }
  for (int head = 0; head < HEADS; ++head) {
    for (ushort mask = L::LANES; mask < 32; mask *= 2) {
      state[head].join(mask);
    }
  }
}

// Puts a simdgroup's results where the group can join them: `maxima` and `sums`, [simdgroups, HEADS], and `weighted`,
// [simdgroups, HEADS, HEAD_DIM].
template <int HEAD_DIM, int HEADS>
inline void publish(const thread Running (&state)[HEADS], uint simdgroup, uint lane, threadgroup float* maxima,
                    threadgroup float* sums, threadgroup float* weighted) {
  const uint element = lane * 8;
  for (int head = 0; head < HEADS; ++head) {
    const uint place = simdgroup * HEADS + head;
    if (lane == 0) {
      maxima[place] = state[head].maximum;
      sums[place] = state[head].sum;
    }
    // Lanes beyond the head's width belong to other keys, or to none; their part is joined already.
    if (element < HEAD_DIM) {
      for (int i = 0; i < 8; ++i) {
        weighted[place * HEAD_DIM + element + i] = state[head].values[i];
      }
    }
  }
}

// The part of a launch that one group of threads works on: `count` query heads, the first being number `head` of all
// heads of all rows.
struct Work {
  size_t head;
  uint count;
};

// What both forms of the kernel have in common. Grid: x parts of the keys, y KV heads by groups of HEADS query heads,
// z rows. Leaves each simdgroup's result in threadgroup memory.
template <int HEAD_DIM, int BITS, int GROUP, int HEADS, int SIMDGROUPS, typename Queries, typename KeyStore,
          typename ValueStore, typename Spans>
inline Work attend_group(Queries queries, const constant int64_t* query_strides, uint heads, KeyStore keys,
                         ValueStore values, uint kv_heads, uint capacity, Spans spans, int window, float scale,
                         uint3 position, uint parts, uint simdgroup, uint lane, threadgroup float* maxima,
                         threadgroup float* sums, threadgroup float* weighted) {
  const uint row = position.z;
  const uint shared_heads = heads / kv_heads;
  const uint head_groups = (shared_heads + HEADS - 1) / HEADS;
  const uint kv_head = position.y / head_groups;
  const uint skipped = position.y % head_groups * HEADS;
  const uint count = min(static_cast<uint>(HEADS), shared_heads - skipped);
  const uint head = kv_head * shared_heads + skipped;

  Running state[HEADS];
  attend<HEAD_DIM, BITS, GROUP, HEADS>(
      queries + row * query_strides[0] + head * query_strides[1], static_cast<size_t>(query_strides[1]), count - 1,
      keys.at(row, kv_head), values.at(row, kv_head),
      span_of(spans[row * 2], spans[row * 2 + 1], window, capacity, position.x, parts), scale, simdgroup, SIMDGROUPS,
      lane, state);
  publish<HEAD_DIM>(state, simdgroup, lane, maxima, sums, weighted);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return Work{static_cast<size_t>(row) * heads + head, count};
}

// Joins one element of `parts` parts that lie `stride` apart: their greatest maximum, sum of weights and weighted value.
template <typename Scalars, typename Elements>
inline void join_parts(Scalars maxima, Scalars sums, Elements weighted, uint parts, uint stride, uint weighted_stride,
                       thread float& maximum, thread float& sum, thread float& value) {
  maximum = -FLT_MAX;
  for (uint part = 0; part < parts; ++part) {
    maximum = max(maximum, maxima[part * stride]);
  }
  sum = 0.0f;
  value = 0.0f;
  for (uint part = 0; part < parts; ++part) {
    const float factor = fast::exp(maxima[part * stride] - maximum);
    sum += factor * sums[part * stride];
    value += factor * weighted[part * weighted_stride];
  }
}

// A row that sees no key gives zeros.
inline float normalized(float value, float sum) { return sum == 0.0f ? 0.0f : value / sum; }

}  // namespace linnet
