//! Gated activations, compiled into one kernel as mlx-lm does.
#![allow(unsafe_code)]

use super::{
    failure,
    graph::{Graph, Result},
};
use crate::Activation;
use mlx_rs::Array;
use mlx_sys::{mlx_array, mlx_closure, mlx_vector_array};

/// `activation(gate) * up` for each activation, compiled once. Compiled functions belong to the thread that made them.
pub(super) struct GatedActivations {
    silu: Compiled,
    gelu_tanh: Compiled,
    gelu: Compiled,
}

impl GatedActivations {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { silu: Compiled::new(silu)?, gelu_tanh: Compiled::new(gelu_tanh)?, gelu: Compiled::new(gelu)? })
    }

    pub(super) fn apply(&self, activation: Activation, gate: &Array, up: &Array) -> Result<Array> {
        match activation {
            Activation::Silu => self.silu.apply(gate, up),
            Activation::GeluTanh => self.gelu_tanh.apply(gate, up),
            Activation::Gelu => self.gelu.apply(gate, up),
        }
    }
}

type Function = unsafe extern "C" fn(*mut mlx_vector_array, mlx_vector_array) -> i32;

/// A compiled function of two arrays.
struct Compiled {
    closure: mlx_closure,
}

impl Compiled {
    fn new(function: Function) -> Result<Self> {
        // SAFETY: the function has no state and lives for ever; both closures are owned here and freed once.
        let (closure, status) = unsafe {
            let plain = mlx_sys::mlx_closure_new_func(Some(function));
            let mut closure = mlx_sys::mlx_closure_new();
            let status = mlx_sys::mlx_compile(&mut closure, plain, true);
            mlx_sys::mlx_closure_free(plain);
            (closure, status)
        };
        let compiled = Self { closure };
        if status == 0 { Ok(compiled) } else { Err(failure::take("compile")) }
    }

    fn apply(&self, gate: &Array, up: &Array) -> Result<Array> {
        let handles: [mlx_array; 2] = [gate.as_ptr(), up.as_ptr()];
        // SAFETY: the vectors are made, used and freed here; the handle that `get` writes is nobody else's.
        unsafe {
            let inputs = mlx_sys::mlx_vector_array_new_data(handles.as_ptr(), handles.len());
            let mut outputs = mlx_sys::mlx_vector_array_new();
            let mut status = mlx_sys::mlx_closure_apply(&mut outputs, self.closure, inputs);
            let mut handle = mlx_sys::mlx_array_new();
            if status == 0 {
                status = mlx_sys::mlx_vector_array_get(&mut handle, outputs, 0);
            }
            mlx_sys::mlx_vector_array_free(inputs);
            mlx_sys::mlx_vector_array_free(outputs);
            let array = Array::from_ptr(handle);
            if status == 0 { Ok(array) } else { Err(failure::take("gated activation")) }
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: the closure is this value's own.
        unsafe { mlx_sys::mlx_closure_free(self.closure) };
    }
}

unsafe extern "C" fn silu(outputs: *mut mlx_vector_array, inputs: mlx_vector_array) -> i32 {
    trace(outputs, inputs, |graph, gate, up| {
        let activated = graph.multiply(gate, &graph.sigmoid(gate)?)?;
        graph.multiply(&activated, up)
    })
}

/// `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`, in the order of `mlx.nn.gelu_approx`.
unsafe extern "C" fn gelu_tanh(outputs: *mut mlx_vector_array, inputs: mlx_vector_array) -> i32 {
    trace(outputs, inputs, |graph, gate, up| {
        let number = |value: f64| graph.scalar(value, graph.dtype_of(gate));
        let cube = graph.multiply(&number(0.044_715)?, &graph.power(gate, &number(3.0)?)?)?;
        let inner = graph.multiply(&number(std::f64::consts::FRAC_2_PI.sqrt())?, &graph.add(gate, &cube)?)?;
        let outer = graph.add(&number(1.0)?, &graph.tanh(&inner)?)?;
        let activated = graph.multiply(&graph.multiply(&number(0.5)?, gate)?, &outer)?;
        graph.multiply(&activated, up)
    })
}

/// `x (1 + erf(x / √2)) / 2`, in the order of `mlx.nn.gelu`.
unsafe extern "C" fn gelu(outputs: *mut mlx_vector_array, inputs: mlx_vector_array) -> i32 {
    trace(outputs, inputs, |graph, gate, up| {
        let number = |value: f64| graph.scalar(value, graph.dtype_of(gate));
        let error = graph.erf(&graph.divide(gate, &number(std::f64::consts::SQRT_2)?)?)?;
        let doubled = graph.multiply(gate, &graph.add(&number(1.0)?, &error)?)?;
        let activated = graph.divide(&doubled, &number(2.0)?)?;
        graph.multiply(&activated, up)
    })
}

/// Builds the graph of a function of two arrays while MLX traces it.
fn trace(
    outputs: *mut mlx_vector_array,
    inputs: mlx_vector_array,
    body: impl Fn(&Graph, &Array, &Array) -> Result<Array>,
) -> i32 {
    let built = Graph::new().and_then(|graph| {
        // SAFETY: MLX passes two inputs, and the handles that `get` writes are nobody else's.
        let get = |index| unsafe {
            let mut handle = mlx_sys::mlx_array_new();
            let status = mlx_sys::mlx_vector_array_get(&mut handle, inputs, index);
            let array = Array::from_ptr(handle);
            if status == 0 { Ok(array) } else { Err(failure::take("gated activation")) }
        };
        body(&graph, &get(0)?, &get(1)?)
    });
    match built {
        // SAFETY: `outputs` is MLX's place for the result.
        Ok(array) => unsafe { mlx_sys::mlx_vector_array_set_value(outputs, array.as_ptr()) },
        Err(_) => 1,
    }
}
