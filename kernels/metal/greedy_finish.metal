  // Second pass: one group to a row. Joins the tiles, then looks through the first tile that holds a best score.
  threadgroup float scratch[32];
  threadgroup uint index_scratch[32];
  const linnet::Place place = {thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup,
                               simdgroups_per_threadgroup};
  const uint vocabulary = static_cast<uint>(logits_shape[1]);
  const uint tiles = static_cast<uint>(maxima_shape[1]);
  const uint row = threadgroup_position_in_grid.y;
  const auto line = logits + static_cast<size_t>(row) * static_cast<size_t>(logits_strides[0]);
  const auto tile_maxima = maxima + row * tiles;
  const auto tile_sums = sums + row * tiles;

  float own_maximum = -INFINITY;
  for (uint tile = place.thread_index; tile < tiles; tile += THREADS) {
    own_maximum = max(own_maximum, tile_maxima[tile]);
  }
  const float maximum = linnet::over_group<linnet::Maximum>(own_maximum, scratch, place);
  float own_sum = 0.0f;
  for (uint tile = place.thread_index; tile < tiles; tile += THREADS) {
    own_sum += tile_sums[tile] * linnet::weight_below(tile_maxima[tile], maximum);
  }
  const float sum = linnet::over_group<linnet::Sum>(own_sum, scratch, place);
  const T log_sum = static_cast<T>(maximum + precise::log(sum));

  const uint tile = linnet::first_best<T>(tile_maxima, 0u, tiles, maximum, log_sum, index_scratch, place, THREADS);
  // Without a best tile there is nothing to look through.
  const uint begin = min(tile, tiles) * TILE;
  const uint best = linnet::first_best<T>(line, begin, min(begin + TILE, vocabulary), maximum, log_sum, index_scratch,
                                          place, THREADS);
  if (place.thread_index == 0) {
    tokens[row] = linnet::token_or_none<T>(best, log_sum);
  }
