  threadgroup float maxima[SIMDGROUPS * HEADS];
  threadgroup float sums[SIMDGROUPS * HEADS];
  threadgroup float weighted[SIMDGROUPS * HEADS * HEAD_DIM];
  const linnet::Work work = linnet::attend_group<HEAD_DIM, BITS, GROUP, HEADS, SIMDGROUPS>(
      queries, queries_strides, static_cast<uint>(queries_shape[1]),
      linnet::store(keys, keys_strides, key_scales, key_scales_strides, key_biases, key_biases_strides),
      linnet::store(values, values_strides, value_scales, value_scales_strides, value_biases, value_biases_strides),
      static_cast<uint>(keys_shape[1]), static_cast<uint>(keys_shape[2]), spans, window, scale,
      threadgroup_position_in_grid, 1,
      simdgroup_index_in_threadgroup, thread_index_in_simdgroup, maxima, sums, weighted);

  for (uint index = thread_index_in_threadgroup; index < work.count * HEAD_DIM; index += SIMDGROUPS * 32) {
    const uint own = index / HEAD_DIM;
    float maximum;
    float sum;
    float value;
    linnet::join_parts(&maxima[own], &sums[own], &weighted[index], SIMDGROUPS, HEADS, HEADS * HEAD_DIM, maximum, sum,
                       value);
    out[work.head * HEAD_DIM + index] = static_cast<T>(linnet::normalized(value, sum));
  }
