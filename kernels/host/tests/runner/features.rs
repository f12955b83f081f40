//! The parts of Metal that the host header stands in for, each against its definition.

use linnet_kernels::metal::{Element, TemplateValue};
use linnet_metal_host::{Argument, Device, FunctionConstant, HostDevice, Schedule, generated_source};

use crate::support::Kernel;

fn ramp(length: usize) -> Vec<f32> {
    (0..length).map(|i| i as f32).collect()
}

#[test]
fn simdgroup_functions() {
    type Expected = fn(usize) -> usize;
    let cases: [(&str, Expected); 21] = [
        ("simd_sum(v)", |_| 496),
        ("simd_max(v)", |_| 31),
        ("simd_min(static_cast<int>(v) + 7)", |_| 7),
        ("simd_product(v == 3.0f ? 2.0f : 1.0f)", |_| 2),
        ("simd_and(lane | 64u)", |_| 64),
        ("simd_or(lane)", |_| 31),
        ("simd_xor(lane == 3 ? 5u : 0u)", |_| 5),
        ("simd_prefix_inclusive_sum(v)", |i| i * (i + 1) / 2),
        ("simd_prefix_exclusive_sum(v)", |i| i * i.saturating_sub(1) / 2),
        ("simd_prefix_inclusive_product(v == 3.0f ? 2.0f : 1.0f)", |i| if i < 3 { 1 } else { 2 }),
        ("simd_shuffle(v, static_cast<ushort>(31 - lane))", |i| 31 - i),
        ("simd_shuffle_xor(v, 5)", |i| i ^ 5),
        ("simd_broadcast(v, 9)", |_| 9),
        ("simd_broadcast_first(v + 2.0f)", |_| 2),
        ("simd_shuffle_down(v, 4)", |i| if i < 28 { i + 4 } else { i }),
        ("simd_shuffle_up(v, 4)", |i| if i < 4 { i } else { i - 4 }),
        ("simd_shuffle_and_fill_down(v, v + 100.0f, 4)", |i| if i < 28 { i + 4 } else { 100 + i - 28 }),
        ("simd_shuffle_and_fill_up(v, v + 100.0f, 4)", |i| if i < 4 { 100 + i + 28 } else { i - 4 }),
        ("simd_any(lane == 3) && !simd_any(lane == 40)", |_| 1),
        ("simd_all(lane < 32) && !simd_all(lane != 3)", |_| 1),
        ("simd_sum(float2(v, 1.0f)).y + (simd_is_first() ? 1.0f : 0.0f)", |i| if i == 0 { 33 } else { 32 }),
    ];
    let mut body = "const uint lane = thread_index_in_simdgroup;\nconst float v = x[lane];\n".to_owned();
    for (index, (expression, _)) in cases.iter().enumerate() {
        body += &format!("y[{index} * 32 + lane] = static_cast<float>({expression});\n");
    }
    let body: &str = body.leak();
    let kernel = Kernel::new("simdgroup_functions", "", body);
    for schedule in [Schedule::Forward, Schedule::Reverse, Schedule::Shuffled(9)] {
        let got = kernel.run_in(schedule, 32, 32, &ramp(32), 32 * cases.len()).unwrap();
        for (lanes, (expression, expected)) in got.chunks(32).zip(&cases) {
            let expected: Vec<f32> = (0..32).map(|lane| expected(lane) as f32).collect();
            assert_eq!(lanes, expected, "{expression}, {schedule:?}");
        }
    }
}

#[test]
fn vectors_and_swizzles() {
    let body = "
        const float4 a = float4(x[1], x[2], x[3], x[4]);
        const half2 h = half2(a.yz);
        float4 b = float4(float2(h), a.wx);
        b.xy = b.yx;
        b.z += dot(a, float4(2.0f));
        const int3 i = int3(a.xyz) << 1;
        const uint2 u = as_type<uint2>(a.xy);
        y[0] = b.x; y[1] = b.y; y[2] = b.z; y[3] = b.w; y[4] = static_cast<float>(i.z);
        y[5] = as_type<float2>(u).y;
        y[6] = any(a > 3.5f) && !all(a > 3.5f) ? 1.0f : 0.0f;
        y[7] = max(a, float4(2.5f)).x;
    ";
    let got = Kernel::new("vectors", "", body).run(1, 1, &ramp(8), 8).unwrap();
    assert_eq!(got, [3.0, 2.0, 4.0 + 20.0, 1.0, 6.0, 2.0, 1.0, 2.5]);
}

#[test]
fn half_and_bfloat_round_each_operation() {
    // 2049 is no half, 257 no bfloat: a sum kept wider would show.
    let body = "
        const half h = static_cast<half>(x[0]) + 1.0h;
        const bfloat b = static_cast<bfloat>(x[1]) + static_cast<bfloat>(1.0f);
        y[0] = (h - static_cast<half>(x[0])) + h * 0.0h;
        y[1] = static_cast<float>(b - static_cast<bfloat>(x[1]));
        y[2] = static_cast<float>(static_cast<half>(x[0]) * 3.0h + 1.0h);
    ";
    let got = Kernel::new("rounding", "", body).run(1, 1, &[2048.0, 256.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 3).unwrap();
    assert_eq!(got, [0.0, 0.0, 6144.0]);
}

#[test]
fn functions_of_the_library() {
    let cases: [(&str, f32); 25] = [
        ("exp(1.0f)", std::f32::consts::E),
        ("precise::log(8.0f)", 8.0f32.ln()),
        ("fast::exp2(3.0f)", 8.0),
        ("rsqrt(4.0f)", 0.5),
        ("tanh(0.5f)", 0.5f32.tanh()),
        ("static_cast<float>(exp(1.0h))", 2.718_75),
        ("fma(2.0f, 3.0f, 4.0f)", 10.0),
        ("clamp(7.0f, -1.0f, 2.0f)", 2.0),
        ("max(NAN, 2.0f)", 2.0),
        ("min(2.0f, NAN)", 2.0),
        ("static_cast<float>(max(3, 9))", 9.0),
        ("static_cast<float>(abs(-4))", 4.0),
        ("abs(-4.5f)", 4.5),
        ("rint(2.5f)", 2.0),
        ("x[1] / 3.0", 1.0 / 3.0),
        ("round(2.5f)", 3.0),
        ("isnan(NAN) && isinf(INFINITY) && isfinite(1.0f) ? 1.0f : 0.0f", 1.0),
        ("select(1.0f, 2.0f, x[1] > 0.5f)", 2.0),
        ("static_cast<float>(popcount(0xf0u))", 4.0),
        ("static_cast<float>(clz(1u))", 31.0),
        ("static_cast<float>(ctz(8u))", 3.0),
        ("static_cast<float>(extract_bits(0xabcdu, 4u, 8u))", 188.0),
        ("static_cast<float>(extract_bits(0xf0, 4u, 4u))", -1.0),
        ("fract(2.75f) + sign(-3.0f) + saturate(7.0f)", 0.75),
        ("mix(2.0f, 4.0f, 0.25f)", 2.5),
    ];
    let body: String = cases.iter().enumerate().map(|(i, (text, _))| format!("y[{i}] = {text};\n")).collect();
    let got = Kernel::new("library", "", body.leak()).run(1, 1, &ramp(8), cases.len()).unwrap();
    for ((text, expected), got) in cases.iter().zip(got) {
        assert!((got - expected).abs() <= expected.abs() * 1e-6, "{text}: {got}, not {expected}");
    }
}

#[test]
fn ragged_grids_have_ragged_groups() {
    let body = "
        const uint i = thread_position_in_grid.x + thread_position_in_grid.y * threads_per_grid.x;
        y[i] = static_cast<float>(threads_per_threadgroup.x * 10000 + threadgroups_per_grid.x * 1000 +
                                  threadgroup_position_in_grid.x * 100 + thread_index_in_threadgroup) +
               simd_sum(0.0f) + x[0];
    ";
    let kernel = Kernel::new("ragged", "", body);
    let x = Argument::floats(Element::F32, &[8], &[0.0; 8]);
    for schedule in [Schedule::Forward, Schedule::Reverse, Schedule::Shuffled(5)] {
        let launch = kernel.launch([5, 2, 1], [3, 8, 1], Element::F32, 10);
        let got = HostDevice::new().unwrap().with_schedule(schedule).run(&launch, std::slice::from_ref(&x)).unwrap()[0]
            .to_f32();
        let expected = [32000., 32001., 32002., 22100., 22101., 32003., 32004., 32005., 22102., 22103.];
        assert_eq!(got, expected);
    }
}

#[test]
fn atomics_count_over_the_whole_grid() {
    let body = "
        threadgroup atomic_uint count;
        const uint i = thread_position_in_threadgroup.x;
        if (i == 0) { atomic_store_explicit(&count, 0u, memory_order_relaxed); }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        atomic_fetch_add_explicit(&count, i, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[thread_position_in_grid.x] = static_cast<float>(atomic_load_explicit(&count, memory_order_relaxed)) + x[0];
    ";
    assert_eq!(Kernel::new("atomics", "", body).run(128, 64, &[0.0; 8], 128).unwrap(), [2016.0; 128]);
}

#[test]
fn simdgroup_matrices_multiply() {
    let body = "
        simdgroup_matrix<float, 8, 8> a;
        simdgroup_matrix<float, 8, 8> b;
        simdgroup_matrix<float, 8, 8> c = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
        simdgroup_load(a, x, 16);
        simdgroup_load(b, x, 16, ulong2(8, 0), true);
        simdgroup_multiply_accumulate(c, a, b, c);
        simdgroup_store(c, y, 8);
    ";
    let x: Vec<f32> = (0..128).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
    let got = Kernel::new("matrices", "", body).run(32, 32, &x, 64).unwrap();
    for row in 0..8 {
        for column in 0..8 {
            let expected: f32 = 1.0 + (0..8).map(|k| x[row * 16 + k] * x[column * 16 + 8 + k]).sum::<f32>();
            assert_eq!(got[row * 8 + column], expected);
        }
    }
}

#[test]
fn function_constants() {
    let functions = "constant bool doubled [[function_constant(3)]];\nconstant int extra [[function_constant(4)]];\n";
    let body = "
        float v = x[thread_position_in_grid.x];
        if (doubled) { v *= 2.0f; }
        if (is_function_constant_defined(extra)) { v += static_cast<float>(extra); }
        y[thread_position_in_grid.x] = v;
    ";
    let kernel = Kernel::new("constants", functions, body);
    let launch = kernel.launch([8, 1, 1], [8, 1, 1], Element::F32, 8);
    let x = [Argument::floats(Element::F32, &[8], &ramp(8))];
    let device = HostDevice::new().unwrap();
    let constants = [FunctionConstant::bool(3, true), FunctionConstant::int(4, -1)];
    let got = device.run_with_constants(&launch, &x, &constants).unwrap()[0].to_f32();
    assert_eq!(got, (0..8).map(|i| 2.0 * i as f32 - 1.0).collect::<Vec<_>>());
    assert_eq!(device.run(&launch, &x).unwrap()[0].to_f32(), ramp(8));
}

#[test]
fn shapes_strides_and_small_inputs() {
    let body = "
        y[0] = static_cast<float>(x_shape[1]) + 10.0f * static_cast<float>(x_strides[0]) + 100.0f * static_cast<float>(x_ndim);
        y[1] = x[elem_to_loc(5, x_shape, x_strides, x_ndim)];
    ";
    let kernel = Kernel::new("shapes", "", body);
    let launch = kernel.launch([1, 1, 1], [1, 1, 1], Element::F32, 2);
    let x = Argument::floats(Element::F32, &[2, 3], &ramp(6));
    assert_eq!(HostDevice::new().unwrap().run(&launch, &[x]).unwrap()[0].to_f32(), [233.0, 5.0]);
}

/// The text of MLX 0.32.2 for the same kernel, as `verbose=True` prints it, with the kernel's own text removed.
#[test]
fn generated_text_is_mlxs() {
    let mut kernel =
        Kernel::new("scale", "// functions\n", "  y[thread_position_in_grid.x] = x[0] * T(S) + x_shape[0];");
    kernel.template = vec![
        ("T", TemplateValue::Element(Element::Bf16)),
        ("S", TemplateValue::Int(-3)),
        ("FLAG", TemplateValue::Bool(true)),
    ];
    let launch = kernel.launch([8, 1, 1], [8, 1, 1], Element::F32, 8);
    let x = Argument::floats(Element::F16, &[2], &[1.0, 2.0]);
    let expected = "// functions
template <typename T, int S, bool FLAG>
[[kernel]] void custom_kernel_scale__bfloat16_t_-3_1_float16_tc_float(
  const constant float16_t* x [[buffer(0)]],
  const constant int* x_shape [[buffer(1)]],
  device float* y [[buffer(2)]],
  uint3 thread_position_in_grid [[thread_position_in_grid]]) {
  y[thread_position_in_grid.x] = x[0] * T(S) + x_shape[0];
}

template [[host_name(\"custom_kernel_scale__bfloat16_t_-3_1_float16_tc_float\")]] [[kernel]] decltype(custom_kernel_scale__bfloat16_t_-3_1_float16_tc_float<bfloat16_t, -3, 1>) custom_kernel_scale__bfloat16_t_-3_1_float16_tc_float<bfloat16_t, -3, 1>;
";
    assert_eq!(generated_source(&launch, &[x]).unwrap(), expected);
}
