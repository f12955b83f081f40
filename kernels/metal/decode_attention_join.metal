  // A group joins the parts of one head of one row. Grid: x threads of a group, y heads, z rows.
  const uint parts = static_cast<uint>(part_maxima_shape[2]);
  const size_t line = static_cast<size_t>(threadgroup_position_in_grid.z) * threadgroups_per_grid.y +
                      threadgroup_position_in_grid.y;
  for (uint element = thread_position_in_threadgroup.x; element < HEAD_DIM; element += threads_per_threadgroup.x) {
    float maximum;
    float sum;
    float value;
    linnet::join_parts(part_maxima + line * parts, part_sums + line * parts,
                       part_values + line * parts * HEAD_DIM + element, parts, 1, HEAD_DIM, maximum, sum, value);
    out[line * HEAD_DIM + element] = static_cast<T>(linnet::normalized(value, sum));
  }
