  // One group to a row of a small vocabulary.
  threadgroup float scratch[32];
  threadgroup uint index_scratch[32];
  const linnet::Place place = {thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup,
                               simdgroups_per_threadgroup};
  const uint vocabulary = static_cast<uint>(logits_shape[1]);
  const uint row = threadgroup_position_in_grid.y;
  const auto line = logits + static_cast<size_t>(row) * static_cast<size_t>(logits_strides[0]);

  float maximum;
  float sum;
  linnet::measure(line, 0u, vocabulary, maximum, sum, scratch, place, THREADS);
  const T log_sum = static_cast<T>(maximum + precise::log(sum));
  const uint best = linnet::first_best<T>(line, 0u, vocabulary, maximum, log_sum, index_scratch, place, THREADS);
  if (place.thread_index == 0) {
    tokens[row] = linnet::token_or_none<T>(best, log_sum);
  }
