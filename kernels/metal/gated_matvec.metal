  // A simdgroup computes OUTPUTS columns of the output for all ROWS rows; its lanes share the inner dimension.
  const uint columns = static_cast<uint>(x_shape[1]);
  const uint outputs = static_cast<uint>(gate_codes_shape[0]);
  const uint first = (threadgroup_position_in_grid.y * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup) *
                     OUTPUTS;
  const uint words_per_row = columns / 8;
  const uint groups_per_row = columns / GROUP;

  float gate_totals[OUTPUTS][ROWS];
  float up_totals[OUTPUTS][ROWS];
  for (int output = 0; output < OUTPUTS; ++output) {
    for (int row = 0; row < ROWS; ++row) {
      gate_totals[output][row] = 0.0f;
      up_totals[output][row] = 0.0f;
    }
  }

  for (uint column = thread_index_in_simdgroup * linnet::Chunk::COLUMNS; column < columns;
       column += 32 * linnet::Chunk::COLUMNS) {
    float values[ROWS][linnet::Chunk::COLUMNS];
    float sums[ROWS];
    linnet::load_chunk<ROWS>(x, static_cast<size_t>(x_strides[0]), column, values, sums);
    for (int output = 0; output < OUTPUTS; ++output) {
      // Past the last column the work is done again and thrown away, so that all lanes stay together.
      const size_t line = min(first + output, outputs - 1);
      const size_t word = line * words_per_row + column / 8;
      const size_t group = line * groups_per_row + column / GROUP;
      linnet::add_chunk<ROWS>(gate_codes + word, static_cast<float>(gate_scales[group]),
                              static_cast<float>(gate_biases[group]), values, sums, gate_totals[output]);
      linnet::add_chunk<ROWS>(up_codes + word, static_cast<float>(up_scales[group]),
                              static_cast<float>(up_biases[group]), values, sums, up_totals[output]);
    }
  }

  for (int output = 0; output < OUTPUTS; ++output) {
    for (int row = 0; row < ROWS; ++row) {
      const float gate = simd_sum(gate_totals[output][row]);
      const float up = simd_sum(up_totals[output][row]);
      if (thread_index_in_simdgroup == 0 && first + output < outputs) {
        out[row * outputs + first + output] = linnet::gated<T, GELU>(gate, up);
      }
    }
  }
