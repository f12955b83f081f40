//! Faults that a GPU would not report. Each kernel is right but for one thing.

use linnet_metal_host::HostError;

use crate::support::Kernel;

const REVERSE: &str = "
    threadgroup float shared[64];
    const uint i = thread_position_in_threadgroup.x;
    shared[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = shared[63 - i];
";

#[test]
fn right_kernel_runs() {
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let reversed: Vec<f32> = (0..64).rev().map(|i| i as f32).collect();
    assert_eq!(Kernel::new("reverse", "", REVERSE).run(64, 64, &x, 64).unwrap(), reversed);
}

#[test]
fn missing_barrier_is_a_race() {
    let body: &str = REVERSE.replace("threadgroup_barrier(mem_flags::mem_threadgroup);", "").leak();
    let x = [0.0; 64];
    for schedule in [linnet_metal_host::Schedule::Forward, linnet_metal_host::Schedule::Shuffled(1)] {
        let error = Kernel::new("no_barrier", "", body).run_in(schedule, 64, 64, &x, 64).unwrap_err();
        // Either the reader comes first and finds nothing written, or the writer does.
        assert!(matches!(error.fault_kind(), Some("race" | "uninitialized")), "{error}");
        assert!(error.to_string().contains("no_barrier.metal:"), "{error}");
    }
}

#[test]
fn barrier_for_other_memory_is_a_race() {
    let body: &str = REVERSE.replace("mem_threadgroup)", "mem_device)").leak();
    assert!(Kernel::new("wrong_flags", "", body).fault("race", 64, 64).contains("threadgroup variable shared"));
}

#[test]
fn simdgroup_barrier_orders_one_simdgroup_only() {
    let body: &str = REVERSE.replace("threadgroup_barrier", "simdgroup_barrier").replace("[63 - i]", "[i ^ 1]").leak();
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let swapped: Vec<f32> = (0..64).map(|i| (i ^ 1) as f32).collect();
    assert_eq!(Kernel::new("simd_barrier", "", body).run(64, 64, &x, 64).unwrap(), swapped);
    let body: &str = body.replace("[i ^ 1]", "[i ^ 32]").leak();
    let error = Kernel::new("simd_barrier_too_weak", "", body).run(64, 64, &x, 64).unwrap_err();
    assert!(matches!(error.fault_kind(), Some("race" | "uninitialized")), "{error}");
}

#[test]
fn write_after_read_is_a_race() {
    let body = "
        threadgroup float shared[64];
        const uint i = thread_position_in_threadgroup.x;
        shared[i] = x[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const float other = shared[63 - i];
        shared[i] = other;
        y[i] = other;
    ";
    Kernel::new("write_after_read", "", body).fault("race", 64, 64);
}

#[test]
fn two_groups_writing_one_place_race() {
    let body = "y[thread_position_in_threadgroup.x] = x[0]; y[thread_position_in_grid.x] = x[0];";
    Kernel::new("groups_collide", "", body).fault("race", 64, 32);
}

#[test]
fn two_threads_writing_one_place_race() {
    let body = "y[thread_position_in_grid.x] = x[0]; if (thread_position_in_grid.x > 60) { y[0] = x[0]; }";
    Kernel::new("threads_collide", "", body).fault("race", 64, 64);
}

#[test]
fn barrier_in_a_branch_is_divergence() {
    let body = "
        if (thread_position_in_grid.x < 40) { threadgroup_barrier(mem_flags::mem_threadgroup); }
        y[thread_position_in_grid.x] = x[0];
    ";
    let message = Kernel::new("branch_barrier", "", body).fault("divergence", 64, 64);
    assert!(
        message.contains(
            "branch_barrier.metal:2: threadgroup_barrier is reached by 40 of 64 threads; thread 40 has returned"
        ),
        "{message}"
    );
}

#[test]
fn different_barriers_are_divergence() {
    let body = "
        if (thread_position_in_grid.x < 32) {
          threadgroup_barrier(mem_flags::mem_threadgroup);
        } else {
          threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        y[thread_position_in_grid.x] = x[0];
    ";
    Kernel::new("two_barriers", "", body).fault("divergence", 64, 64);
}

#[test]
fn simd_operation_without_one_lane_is_divergence() {
    let body = "
        float v = x[0];
        if (thread_index_in_simdgroup != 5) { v = simd_sum(v); }
        y[thread_position_in_grid.x] = v;
    ";
    let message = Kernel::new("lone_lane", "", body).fault("divergence", 64, 64);
    assert!(message.contains("simd_sum is reached by 31 of 32 lanes; lane 5 has returned"), "{message}");
}

#[test]
fn lane_waiting_elsewhere_is_divergence() {
    let body = "
        float v = x[0];
        if (thread_index_in_simdgroup == 5) {
          v = simd_max(v);
        } else {
          v = simd_sum(v);
        }
        y[thread_position_in_grid.x] = v;
    ";
    Kernel::new("two_operations", "", body).fault("divergence", 64, 64);
    let body = "
        float v = x[0];
        if (thread_index_in_simdgroup == 5) { threadgroup_barrier(mem_flags::mem_none); }
        v = simd_sum(v);
        y[thread_position_in_grid.x] = v;
    ";
    Kernel::new("barrier_and_operation", "", body).fault("divergence", 64, 64);
}

#[test]
fn uneven_shuffle_distance_is_divergence() {
    let body = "y[thread_position_in_grid.x] = simd_shuffle_xor(x[0], static_cast<ushort>(thread_index_in_simdgroup == 3 ? 2 : 1));";
    Kernel::new("uneven_shuffle", "", body).fault("divergence", 64, 64);
}

#[test]
fn reading_a_lane_that_is_not_there() {
    let body = "y[thread_position_in_grid.x] = simd_shuffle(x[0], static_cast<ushort>(40));";
    Kernel::new("no_such_lane", "", body).fault("lane", 64, 64);
}

#[test]
fn beyond_a_buffer() {
    let body = "y[thread_position_in_grid.x] = x[thread_position_in_grid.x + 1];";
    let message = Kernel::new("beyond_input", "", body).fault("address", 64, 64);
    assert!(message.contains("heap-buffer-overflow") && message.contains("beyond_input.metal:1"), "{message}");
    let body = "y[thread_position_in_grid.x] = 0.0f; if (thread_position_in_grid.x == 0) { y[64] = 0.0f; }";
    Kernel::new("beyond_output", "", body).fault("address", 64, 64);
}

#[test]
fn beyond_a_threadgroup_array() {
    let body = "
        threadgroup float shared[63];
        shared[thread_position_in_threadgroup.x] = x[0];
        y[thread_position_in_grid.x] = x[0];
    ";
    Kernel::new("beyond_shared", "", body).fault("undefined", 64, 64);
    let functions = "inline void put(threadgroup float* p, uint i) { p[i] = 1.0f; }";
    let body = "
        threadgroup float shared[63];
        put(shared, thread_position_in_threadgroup.x);
        y[thread_position_in_grid.x] = x[0];
    ";
    Kernel::new("beyond_shared_pointer", functions, body).fault("address", 64, 64);
}

#[test]
fn beyond_a_private_array() {
    let functions = "inline float get(thread float* p, uint i) { return p[i]; }";
    let body = "
        float own[4] = {0.0f, 1.0f, 2.0f, 3.0f};
        y[thread_position_in_grid.x] = get(own, thread_position_in_grid.x);
    ";
    let error = Kernel::new("beyond_private", functions, body).run(64, 64, &[0.0; 64], 64).unwrap_err();
    assert!(matches!(error.fault_kind(), Some("address" | "undefined")), "{error}");
}

#[test]
fn threadgroup_memory_read_before_it_is_written() {
    let body = "
        threadgroup float shared[64];
        y[thread_position_in_grid.x] = shared[thread_position_in_threadgroup.x];
    ";
    Kernel::new("garbage", "", body).fault("uninitialized", 64, 64);
}

#[test]
fn threadgroup_memory_does_not_last() {
    let body = "
        threadgroup float shared[32];
        if (threadgroup_position_in_grid.x == 0) { shared[thread_position_in_threadgroup.x] = x[0]; }
        y[thread_position_in_grid.x] = shared[thread_position_in_threadgroup.x];
    ";
    Kernel::new("left_over", "", body).fault("uninitialized", 64, 32);
}

#[test]
fn output_left_unwritten() {
    let body = "if (thread_position_in_grid.x != 9) { y[thread_position_in_grid.x] = x[0]; }";
    let message = Kernel::new("unwritten", "", body).fault("unwritten", 64, 64);
    assert!(message.contains("byte 36 of 256 of buffer 1"), "{message}");
}

#[test]
fn input_written() {
    let body = "y[thread_position_in_grid.x] = 0.0f; const_cast<device float*>(x)[thread_position_in_grid.x] = 0.0f;";
    Kernel::new("input_written", "", body).fault("read-only", 64, 64);
}

#[test]
fn too_much_threadgroup_memory() {
    let body = "
        threadgroup float a[4096];
        threadgroup float b[4097];
        a[thread_position_in_grid.x] = b[thread_position_in_grid.x] = x[0];
        y[thread_position_in_grid.x] = x[0];
    ";
    Kernel::new("too_much_memory", "", body).fault("threadgroup-memory", 64, 64);
}

#[test]
fn too_many_threads() {
    let error = Kernel::new("reverse", "", REVERSE).run(2048, 1025, &[0.0; 64], 64).unwrap_err();
    assert_eq!(error.fault_kind(), Some("launch"), "{error}");
}

#[test]
fn misaligned_vector_access() {
    let body = "const float4 v = *(const device float4*)(x); y[thread_position_in_grid.x] = v.x + v.w;";
    Kernel::new("misaligned", "", body).fault("undefined", 64, 64);
}

#[test]
fn mixing_atomic_and_plain_access_is_a_race() {
    let body = "
        threadgroup atomic_uint count;
        const uint i = thread_position_in_grid.x;
        if (i == 0) { atomic_store_explicit(&count, 0u, memory_order_relaxed); }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        atomic_fetch_add_explicit(&count, 1u, memory_order_relaxed);
        y[i] = static_cast<float>(*(threadgroup uint*)(&count));
    ";
    Kernel::new("mixed_atomic", "", body).fault("race", 64, 64);
}

/// What must not compile, with real address spaces or without.
fn refusal(name: &'static str, functions: &'static str, body: &'static str) -> String {
    match Kernel::new(name, functions, body).run(64, 64, &[0.0; 64], 64).unwrap_err() {
        HostError::Compile { diagnostics, .. } => diagnostics,
        other => panic!("{other}"),
    }
}

#[test]
fn double_precision_does_not_compile() {
    let body = "const double d = 0.1; y[thread_position_in_grid.x] = static_cast<float>(d);";
    assert!(refusal("double_sum", "", body).contains("linnet_host_has_no_double"));
}

#[test]
fn lossy_implicit_conversion_does_not_compile() {
    assert!(
        refusal("narrowing", "", "half h = x[0]; y[thread_position_in_grid.x] = h;").contains("implicit conversion")
    );
}
