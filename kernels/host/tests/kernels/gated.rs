//! SwiGLU and GeGLU over 4-bit weights on the host runner.

use linnet_kernels::metal::{AffineRows, Element, Gate, GatedMatvec, gated_reference};
use linnet_metal_host::{Argument, Device};
use rand::{SeedableRng, rngs::StdRng};

use crate::support::{Affine, each_device, floats, one_device, rounding};

struct Case {
    figures: GatedMatvec,
    x: Vec<f32>,
    gate: Affine,
    up: Affine,
}

impl Case {
    fn random(random: &mut StdRng, figures: GatedMatvec) -> Case {
        let GatedMatvec { rows, columns, outputs, group, element, .. } = figures;
        let [gate, up] = [(); 2].map(|()| Affine::random(random, element, [outputs, columns], 4, group, 0.2));
        Case { figures, x: floats(random, element, rows * columns, 1.5), gate, up }
    }

    fn inputs(&self) -> Vec<Argument> {
        let GatedMatvec { rows, columns, outputs, element, .. } = self.figures;
        let mut inputs = vec![Argument::floats(element, &[rows, columns], &self.x)];
        inputs.extend(self.gate.arguments(element, &[outputs]));
        inputs.extend(self.up.arguments(element, &[outputs]));
        inputs
    }

    fn run(&self, device: &dyn Device) -> Vec<f32> {
        device.run(&self.figures.launch().unwrap(), &self.inputs()).unwrap()[0].to_f32()
    }

    /// Checks a result against the reference. A product may be off by the order of additions and by one rounding to the
    /// type; what the activation makes of that is bounded by its slope, which is below 1.13.
    fn assert_close(&self, got: &[f32]) {
        let GatedMatvec { columns, outputs, element, gate, .. } = self.figures;
        let expected = gated_reference(&self.x, &self.gate.rows(), &self.up.rows(), gate, element);
        let unit = rounding(element);
        for (index, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            let x = &self.x[index / outputs * columns..][..columns];
            let (g, g_error) = product(x, &self.gate.rows(), index % outputs);
            let (u, u_error) = product(x, &self.up.rows(), index % outputs);
            let (g_error, u_error) = (g_error + 2.0 * unit * g.abs(), u_error + 2.0 * unit * u.abs());
            let activated = gate.apply(g).abs();
            let bound = 1.13 * g_error * (u.abs() + u_error) + activated * u_error + 4.0 * unit * expected.abs() + 1e-7;
            let agree = (got - expected).abs() <= bound || got == expected || (got.is_nan() && expected.is_nan());
            assert!(agree, "{:?}, output {index}: {got}, not {expected} within {bound}", self.figures);
        }
    }
}

/// A product in double precision, and what the order of additions can change in single precision.
fn product(x: &[f32], weight: &AffineRows<'_>, output: usize) -> (f32, f32) {
    let terms = x.iter().enumerate().map(|(i, &x)| f64::from(x) * f64::from(weight.value(output, i)));
    let size: f64 = terms.clone().map(f64::abs).sum();
    (terms.sum::<f64>() as f32, size as f32 * 2e-6)
}

const FIGURES: GatedMatvec =
    GatedMatvec { rows: 1, columns: 576, outputs: 21, group: 64, element: Element::Bf16, gate: Gate::Silu };

#[test]
fn every_row_count_group_type_and_activation() {
    let mut random = StdRng::seed_from_u64(11);
    let cases = [
        FIGURES,
        GatedMatvec { rows: 4, gate: Gate::GeluTanh, ..FIGURES },
        GatedMatvec { rows: 2, group: 32, columns: 32, outputs: 8, element: Element::F16, ..FIGURES },
        GatedMatvec { rows: 3, group: 128, columns: 1152, outputs: 9, element: Element::F32, ..FIGURES },
        GatedMatvec { group: 32, columns: 544, outputs: 17, element: Element::F32, gate: Gate::GeluTanh, ..FIGURES },
    ];
    let cases = cases.map(|figures| Case::random(&mut random, figures));
    each_device(|device| cases.iter().for_each(|case| case.assert_close(&case.run(device))));
}

#[test]
fn rows_that_lie_apart() {
    let mut random = StdRng::seed_from_u64(13);
    let case = Case::random(&mut random, GatedMatvec { rows: 3, columns: 64, outputs: 8, ..FIGURES });
    let apart: Vec<f32> = case.x.chunks(64).flat_map(|row| [row, &[f32::NAN; 5]].concat()).collect();
    let mut inputs = case.inputs();
    inputs[0] = Argument::floats(FIGURES.element, &[3, 69], &apart).sliced(1, 0..64);
    one_device(|device| {
        let got = device.run(&case.figures.launch().unwrap(), &inputs).unwrap()[0].to_f32();
        case.assert_close(&got);
    });
}

#[test]
fn adversarial_activations() {
    let mut random = StdRng::seed_from_u64(12);
    one_device(|device| {
        for gate in [Gate::Silu, Gate::GeluTanh] {
            let mut case = Case::random(&mut random, GatedMatvec { rows: 4, gate, ..FIGURES });
            let columns = FIGURES.columns;
            // Row 0: nothing but zeros. Row 1: so large that exp overflows. Row 2: subnormal. Row 3: one NaN.
            case.x[..columns].fill(0.0);
            case.x[columns..2 * columns].iter_mut().for_each(|x| *x *= 1e3);
            case.x[2 * columns..3 * columns].fill(1e-40);
            case.x[3 * columns + 70] = f32::NAN;
            let got = case.run(device);
            let finite = 3 * FIGURES.outputs;
            assert!(got[..finite].iter().all(|value| value.is_finite()), "{got:?}");
            assert!(got[..FIGURES.outputs].iter().all(|&value| value == 0.0), "{got:?}");
            assert!(got[finite..].iter().all(|value| value.is_nan()), "{got:?}");
            case.assert_close(&got);
        }
    });
}
