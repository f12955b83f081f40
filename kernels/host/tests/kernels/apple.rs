//! What Apple's compiler would refuse: mixed address spaces, and forms that Metal does not have.

use linnet_kernels::metal::{DecodeAttention, Element, Gate, GatedMatvec, GreedyPlan, KERNELS, Launch};
use linnet_metal_host::{Argument, HostError, Toolchain, lint};

const FLOATS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

fn zeros(element: Element, shape: &[usize]) -> Argument {
    let count = shape.iter().product();
    match element {
        Element::U32 => Argument::u32(shape, &vec![0; count]),
        Element::I32 => Argument::i32(shape, &vec![0; count]),
        _ => Argument::floats(element, shape, &vec![0.0; count]),
    }
}

/// Launches of every kernel, with inputs small and large enough to be passed in either address space.
fn launches() -> Vec<(Launch, Vec<Argument>)> {
    let mut list = Vec::new();
    for element in FLOATS {
        for vocabulary in [1, 100, 5000, 100_000] {
            let logits = zeros(element, &[1, vocabulary]);
            match GreedyPlan::new(1, vocabulary, element).unwrap() {
                GreedyPlan::Single(launch) => list.push((launch, vec![logits])),
                GreedyPlan::TwoPass { tiles, finish } => {
                    let partial = tiles.outputs.iter().map(|output| zeros(output.element, &output.shape));
                    let inputs = [logits.clone()].into_iter().chain(partial).collect();
                    list.extend([(tiles, vec![logits]), (finish, inputs)]);
                }
            }
        }
        for (rows, gate) in [(1, Gate::Silu), (4, Gate::GeluTanh)] {
            let figures = GatedMatvec { rows, columns: 64, outputs: 8, group: 64, element, gate };
            let mut inputs = vec![zeros(element, &[rows, 64])];
            for _ in 0..2 {
                inputs.extend([zeros(Element::U32, &[8, 8]), zeros(element, &[8, 1]), zeros(element, &[8, 1])]);
            }
            list.push((figures.launch().unwrap(), inputs));
        }
        for (rows, capacity, bits) in [(1, 1, 4), (4, 40, 8)] {
            let figures = DecodeAttention { rows, heads: 6, kv_heads: 2, head_dim: 80, bits, group: 32, element };
            let cached = |element, last| zeros(element, &[rows, 2, capacity, last]);
            let mut inputs = vec![zeros(element, &[rows, 6, 1, 80])];
            for _ in 0..2 {
                inputs.extend([cached(Element::U32, 3 * bits), cached(element, 3), cached(element, 3)]);
            }
            inputs.extend([zeros(Element::I32, &[rows, 2]), zeros(Element::I32, &[]), zeros(Element::F32, &[])]);
            list.push((figures.launch().unwrap(), inputs.clone()));
            let (first, second) = figures.launch_parts(if rows == 1 { 1 } else { 2 }).unwrap();
            let parts = first.outputs.iter().map(|output| zeros(output.element, &output.shape)).collect();
            list.extend([(first, inputs), (second, parts)]);
        }
    }
    list
}

#[test]
fn address_spaces_are_kept_apart() {
    let toolchain = Toolchain::find().unwrap();
    let launches = launches();
    for kernel in KERNELS {
        assert!(launches.iter().any(|(launch, _)| launch.kernel == kernel), "{} is checked", kernel.name);
    }
    for (launch, inputs) in &launches {
        if let Err(error) = toolchain.check(launch, inputs) {
            panic!("{:?}: {error}", launch.template);
        }
    }
}

#[test]
fn sources_have_no_forms_that_metal_lacks() {
    for kernel in KERNELS {
        assert_eq!(lint(kernel), [], "{}", kernel.name);
    }
}

#[test]
fn mixed_address_spaces_do_not_compile() {
    use linnet_kernels::metal::{KernelSource, Output, SourceFile};
    let toolchain = Toolchain::find().unwrap();
    let file = |name, text| SourceFile { name, text };
    static FUNCTIONS: [SourceFile; 1] = [SourceFile {
        name: "runner/spaces_functions.metal",
        text: "inline float first(const device float* p) { return p[0]; }\n",
    }];
    for (name, body, is_sound) in [
        ("runner/spaces_a.metal", "y[0] = first(x);", true),
        ("runner/spaces_b.metal", "threadgroup float s[4];\ny[0] = first(s);", false),
        ("runner/spaces_c.metal", "float s[4] = {};\ny[0] = first(s);", false),
        ("runner/spaces_d.metal", "threadgroup float s[4];\nthread float* p = s;\ny[0] = p[0];", false),
        ("runner/spaces_e.metal", "threadgroup float s[4];\nthreadgroup float* p = s;\ny[0] = p[0];", true),
    ] {
        let kernel = KernelSource {
            name: "spaces",
            inputs: &["x"],
            outputs: &["y"],
            functions: &FUNCTIONS,
            body: file(name, body),
        };
        let launch = Launch {
            kernel: Box::leak(Box::new(kernel)),
            template: Vec::new(),
            outputs: vec![Output { shape: vec![8], element: Element::F32 }],
            grid: [1, 1, 1],
            threadgroup: [1, 1, 1],
        };
        let result = toolchain.check(&launch, &[zeros(Element::F32, &[8])]);
        match result {
            Ok(()) => assert!(is_sound, "{body}"),
            Err(HostError::Compile { diagnostics, .. }) => assert!(!is_sound, "{body}: {diagnostics}"),
            Err(other) => panic!("{other}"),
        }
        // An input of fewer than eight elements is constant: a function of device pointers does not take it.
        if is_sound && body.contains("first(x)") {
            assert!(toolchain.check(&launch, &[zeros(Element::F32, &[7])]).is_err());
        }
    }
}
