//! Activations, compiled into one kernel each as mlx-lm and `mlx.nn` do.
#![allow(unsafe_code)]

use super::{
    failure,
    graph::{Graph, Result, data},
};
use crate::Activation;
use mlx_rs::Array;
use mlx_sys::{mlx_array, mlx_closure, mlx_vector_array};

/// `activation(gate) * up` and `activation(x)` for each activation, compiled once. Compiled functions belong to the thread
/// that made them.
pub(super) struct Activations {
    gated: Each,
    plain: Each,
}

/// A function for each activation.
struct Each {
    silu: Compiled,
    gelu_tanh: Compiled,
    gelu: Compiled,
}

impl Each {
    fn apply(&self, activation: Activation, inputs: &[&Array]) -> Result<Array> {
        match activation {
            Activation::Silu => self.silu.apply(inputs),
            Activation::GeluTanh => self.gelu_tanh.apply(inputs),
            Activation::Gelu => self.gelu.apply(inputs),
        }
    }
}

impl Activations {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            gated: Each {
                silu: Compiled::new(gated_silu)?,
                gelu_tanh: Compiled::new(gated_gelu_tanh)?,
                gelu: Compiled::new(gated_gelu)?,
            },
            plain: Each {
                silu: Compiled::new(plain_silu)?,
                gelu_tanh: Compiled::new(plain_gelu_tanh)?,
                gelu: Compiled::new(plain_gelu)?,
            },
        })
    }

    /// `activation(gate) * up`.
    pub(super) fn gated(&self, activation: Activation, gate: &Array, up: &Array) -> Result<Array> {
        self.gated.apply(activation, &[gate, up])
    }

    /// `activation(x)`.
    pub(super) fn plain(&self, activation: Activation, x: &Array) -> Result<Array> {
        self.plain.apply(activation, &[x])
    }
}

type Function = unsafe extern "C" fn(*mut mlx_vector_array, mlx_vector_array) -> i32;

/// A compiled function of arrays.
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

    fn apply(&self, inputs: &[&Array]) -> Result<Array> {
        let handles: Vec<mlx_array> = inputs.iter().map(|input| input.as_ptr()).collect();
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
            if status == 0 { Ok(array) } else { Err(failure::take("activation")) }
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: the closure is this value's own.
        unsafe { mlx_sys::mlx_closure_free(self.closure) };
    }
}

/// Defines each function with a gate and without one, in the forms in which MLX calls them.
macro_rules! functions {
    ($($gated:ident, $plain:ident = $function:ident;)+) => {
        $(unsafe extern "C" fn $gated(outputs: *mut mlx_vector_array, inputs: mlx_vector_array) -> i32 {
            trace(outputs, inputs, |graph, input| graph.multiply(&$function(graph, &input(0)?)?, &input(1)?))
        }

        unsafe extern "C" fn $plain(outputs: *mut mlx_vector_array, inputs: mlx_vector_array) -> i32 {
            trace(outputs, inputs, |graph, input| $function(graph, &input(0)?))
        })+
    };
}

functions! {
    gated_silu, plain_silu = silu;
    gated_gelu_tanh, plain_gelu_tanh = gelu_tanh;
    gated_gelu, plain_gelu = gelu;
}

fn silu(graph: &Graph, x: &Array) -> Result<Array> {
    graph.multiply(x, &graph.sigmoid(x)?)
}

/// `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`, in the order of `mlx.nn.gelu_approx`.
fn gelu_tanh(graph: &Graph, x: &Array) -> Result<Array> {
    let number = |value: f64| graph.scalar(value, data::dtype_of(x));
    let cube = graph.multiply(&number(0.044_715)?, &graph.power(x, &number(3.0)?)?)?;
    let inner = graph.multiply(&number(std::f64::consts::FRAC_2_PI.sqrt())?, &graph.add(x, &cube)?)?;
    let outer = graph.add(&number(1.0)?, &graph.tanh(&inner)?)?;
    graph.multiply(&graph.multiply(&number(0.5)?, x)?, &outer)
}

/// `x (1 + erf(x / √2)) / 2`, in the order of `mlx.nn.gelu`.
fn gelu(graph: &Graph, x: &Array) -> Result<Array> {
    let number = |value: f64| graph.scalar(value, data::dtype_of(x));
    let error = graph.erf(&graph.divide(x, &number(std::f64::consts::SQRT_2)?)?)?;
    let doubled = graph.multiply(x, &graph.add(&number(1.0)?, &error)?)?;
    graph.divide(&doubled, &number(2.0)?)
}

/// Builds the graph of a function of arrays while MLX traces it. `body` asks for its inputs by number.
fn trace(
    outputs: *mut mlx_vector_array,
    inputs: mlx_vector_array,
    body: impl Fn(&Graph, &dyn Fn(usize) -> Result<Array>) -> Result<Array>,
) -> i32 {
    let built = Graph::new().and_then(|graph| {
        // SAFETY: the handles that `get` writes are nobody else's; a number without an input is an error status.
        let get = |index| unsafe {
            let mut handle = mlx_sys::mlx_array_new();
            let status = mlx_sys::mlx_vector_array_get(&mut handle, inputs, index);
            let array = Array::from_ptr(handle);
            if status == 0 { Ok(array) } else { Err(failure::take("activation")) }
        };
        body(&graph, &get)
    });
    match built {
        // SAFETY: `outputs` is MLX's place for the result.
        Ok(array) => unsafe { mlx_sys::mlx_vector_array_set_value(outputs, array.as_ptr()) },
        Err(_) => 1,
    }
}
