  threadgroup float maxima[SIMDGROUPS * HEADS];
  threadgroup float sums[SIMDGROUPS * HEADS];
  threadgroup float weighted[SIMDGROUPS * HEADS * HEAD_DIM];
  const uint parts = threadgroups_per_grid.x;
  const linnet::Work work = linnet::attend_group<HEAD_DIM, BITS, GROUP, HEADS, SIMDGROUPS>(
      queries, queries_strides, static_cast<uint>(queries_shape[1]),
      linnet::store(keys, keys_strides, key_scales, key_scales_strides, key_biases, key_biases_strides),
      linnet::store(values, values_strides, value_scales, value_scales_strides, value_biases, value_biases_strides),
      static_cast<uint>(keys_shape[1]), static_cast<uint>(keys_shape[2]), spans, window, scale,
      threadgroup_position_in_grid, parts,
      simdgroup_index_in_threadgroup, thread_index_in_simdgroup, maxima, sums, weighted);

  for (uint index = thread_index_in_threadgroup; index < work.count * HEAD_DIM; index += SIMDGROUPS * 32) {
    const uint own = index / HEAD_DIM;
    const uint element = index % HEAD_DIM;
    const size_t place = (work.head + own) * parts + threadgroup_position_in_grid.x;
    float maximum;
    float sum;
    float value;
    linnet::join_parts(&maxima[own], &sums[own], &weighted[index], SIMDGROUPS, HEADS, HEADS * HEAD_DIM, maximum, sum,
                       value);
    part_values[place * HEAD_DIM + element] = value;
    if (element == 0) {
      part_maxima[place] = maximum;
      part_sums[place] = sum;
    }
  }
