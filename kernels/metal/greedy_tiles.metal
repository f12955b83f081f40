  // First pass: one group to a tile of a row.
  threadgroup float scratch[32];
  const linnet::Place place = {thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup,
                               simdgroups_per_threadgroup};
  const uint vocabulary = static_cast<uint>(logits_shape[1]);
  const uint tile = threadgroup_position_in_grid.x;
  const uint row = threadgroup_position_in_grid.y;
  const auto line = logits + static_cast<size_t>(row) * static_cast<size_t>(logits_strides[0]);
  const uint begin = tile * TILE;

  float maximum;
  float sum;
  linnet::measure(line, begin, min(begin + TILE, vocabulary), maximum, sum, scratch, place, THREADS);
  if (place.thread_index == 0) {
    const uint index = row * threadgroups_per_grid.x + tile;
    maxima[index] = maximum;
    sums[index] = sum;
  }
