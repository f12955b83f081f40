//! The text that MLX makes of a kernel.
//!
//! MLX's `write_signature` (mlx/backend/common/metal_kernel.cpp, version 0.32.2) is followed word for word: which inputs
//! are `constant`, which shapes and attributes are declared, how the kernel is named. Where MLX has the kernel's own text,
//! the host has an `#include` of the file, so that messages and coverage name it.

use std::fmt::Write;

use linnet_kernels::metal::{Launch, TemplateValue};

use crate::{Argument, HostError};

/// Inputs with fewer elements lie in the constant address space.
const MAX_CONSTANT_ELEMENTS: usize = 8;

/// Attributes and their types, in MLX's order. Those whose name occurs in the body are declared.
const ATTRIBUTES: [(&str, &str); 20] = [
    ("dispatch_quadgroups_per_threadgroup", "uint"),
    ("dispatch_simdgroups_per_threadgroup", "uint"),
    ("dispatch_threads_per_threadgroup", "uint3"),
    ("grid_origin", "uint3"),
    ("grid_size", "uint3"),
    ("quadgroup_index_in_threadgroup", "uint"),
    ("quadgroups_per_threadgroup", "uint"),
    ("simdgroup_index_in_threadgroup", "uint"),
    ("simdgroups_per_threadgroup", "uint"),
    ("thread_execution_width", "uint"),
    ("thread_index_in_quadgroup", "uint"),
    ("thread_index_in_simdgroup", "uint"),
    ("thread_index_in_threadgroup", "uint"),
    ("thread_position_in_grid", "uint3"),
    ("thread_position_in_threadgroup", "uint3"),
    ("threadgroup_position_in_grid", "uint3"),
    ("threadgroups_per_grid", "uint3"),
    ("threads_per_grid", "uint3"),
    ("threads_per_simdgroup", "uint"),
    ("threads_per_threadgroup", "uint3"),
];

/// A parameter of the generated kernel.
struct Parameter {
    /// Its declaration in the signature.
    declaration: String,
    /// The expression that the host's entry point passes for it.
    argument: String,
    /// Its buffer, unless it is an attribute or an output.
    contents: Option<Buffer>,
}

/// The contents of an input buffer.
#[derive(Debug, Clone)]
pub(crate) struct Buffer {
    pub(crate) item_bytes: usize,
    pub(crate) bytes: Vec<u8>,
}

/// What MLX would compile, ready for the host.
pub(crate) struct Generated {
    /// The text.
    pub(crate) text: String,
    /// Input buffers in the order of their indices, shapes and strides included. Outputs follow.
    pub(crate) buffers: Vec<Buffer>,
}

/// The text for a launch, with the kernel's files in place of the includes: what a Mac would compile, but for MLX's
/// preamble.
///
/// # Errors
/// When the inputs do not fit the kernel.
pub fn generated_source(launch: &Launch, inputs: &[Argument]) -> Result<String, HostError> {
    let parameters = parameters(launch, inputs)?;
    let mut text = launch.kernel.header();
    text += &signature(launch, inputs, &parameters);
    text += launch.kernel.body.text;
    text += "\n}\n";
    if !launch.template.is_empty() {
        let name = kernel_name(launch, inputs);
        let instance = format!("{name}{}", template_values(launch));
        text += &format!("\ntemplate [[host_name(\"{name}\")]] [[kernel]] decltype({instance}) {instance};\n");
    }
    Ok(text)
}

/// The text for the host: `include` gives the path of a rewritten source file by its name.
pub(crate) fn generate(
    launch: &Launch,
    inputs: &[Argument],
    include: impl Fn(&str) -> String,
) -> Result<Generated, HostError> {
    let parameters = parameters(launch, inputs)?;
    let name = kernel_name(launch, inputs);
    let mut text = "#include <metal_stdlib>\n#include \"linnet_host/mlx_preamble.h\"\n".to_owned();
    for file in launch.kernel.functions {
        text += &format!("#include \"{}\"\n", include(file.name));
    }
    text += &signature(launch, inputs, &parameters);
    text += &format!("#include \"{}\"\n}}\n", include(launch.kernel.body.name));

    let instance = if launch.template.is_empty() { name } else { format!("{name}{}", template_values(launch)) };
    let arguments: Vec<&str> = parameters.iter().map(|parameter| parameter.argument.as_str()).collect();
    text += "#ifdef LINNET_HOST_CHECK\n";
    if !launch.template.is_empty() {
        text += &format!("template decltype({instance}) {instance};\n");
    }
    text += "#else\nvoid linnet_host::linnet_host_kernel(const linnet_host::Attributes& attributes) {\n";
    text += &format!("  {instance}(\n      {});\n}}\n#endif\n", arguments.join(",\n      "));
    Ok(Generated { text, buffers: parameters.into_iter().filter_map(|parameter| parameter.contents).collect() })
}

fn parameters(launch: &Launch, inputs: &[Argument]) -> Result<Vec<Parameter>, HostError> {
    let kernel = launch.kernel;
    if inputs.len() != kernel.inputs.len() {
        return Err(HostError::Inputs {
            kernel: kernel.name,
            expected: kernel.inputs.len(),
            names: kernel.inputs.join(", "),
            got: inputs.len(),
        });
    }
    let mut list = Vec::new();
    let mut index = 0;
    let mut buffer = |declaration: String, element: &str, is_reference: bool, contents: Option<Buffer>| {
        let pointer = format!("linnet_host::buffer<{element}>({index})");
        list.push(Parameter {
            declaration: format!("  {declaration} [[buffer({index})]]"),
            argument: if is_reference { format!("*{pointer}") } else { pointer },
            contents,
        });
        index += 1;
    };
    for (&name, input) in kernel.inputs.iter().zip(inputs) {
        let element = input.element.metal_name();
        let space = if input.len() < MAX_CONSTANT_ELEMENTS { "constant" } else { "device" };
        let is_scalar = input.shape.is_empty();
        let reference = if is_scalar { "&" } else { "*" };
        let contents = Buffer { item_bytes: input.element.bytes(), bytes: input.bytes.clone() };
        buffer(
            format!("const {space} {element}{reference} {name}"),
            &format!("const {element}"),
            is_scalar,
            Some(contents),
        );
        if is_scalar {
            continue;
        }
        let occurs = |suffix: &str| kernel.body.text.contains(&format!("{name}{suffix}"));
        if occurs("_shape") {
            let bytes = input.shape.iter().flat_map(|&size| (size as i32).to_ne_bytes()).collect();
            let contents = Buffer { item_bytes: 4, bytes };
            buffer(format!("const constant int* {name}_shape"), "const int", false, Some(contents));
        }
        if occurs("_strides") {
            let bytes = input.strides.iter().flat_map(|&stride| (stride as i64).to_ne_bytes()).collect();
            let contents = Buffer { item_bytes: 8, bytes };
            buffer(format!("const constant int64_t* {name}_strides"), "const int64_t", false, Some(contents));
        }
        if occurs("_ndim") {
            let contents = Buffer { item_bytes: 4, bytes: (input.shape.len() as i32).to_ne_bytes().to_vec() };
            buffer(format!("const constant int& {name}_ndim"), "const int", true, Some(contents));
        }
    }
    for (&name, output) in kernel.outputs.iter().zip(&launch.outputs) {
        let element = output.element.metal_name();
        buffer(format!("device {element}* {name}"), element, false, None);
    }
    for (name, kind) in ATTRIBUTES {
        if kernel.body.text.contains(name) {
            list.push(Parameter {
                declaration: format!("  {kind} {name} [[{name}]]"),
                argument: format!("attributes.{name}"),
                contents: None,
            });
        }
    }
    Ok(list)
}

fn signature(launch: &Launch, inputs: &[Argument], parameters: &[Parameter]) -> String {
    let mut text = String::new();
    if !launch.template.is_empty() {
        let list: Vec<String> = launch
            .template
            .iter()
            .map(|(name, value)| match value {
                TemplateValue::Int(_) => format!("int {name}"),
                TemplateValue::Bool(_) => format!("bool {name}"),
                TemplateValue::Element(_) => format!("typename {name}"),
            })
            .collect();
        text += &format!("template <{}>\n", list.join(", "));
    }
    let declarations: Vec<&str> = parameters.iter().map(|parameter| parameter.declaration.as_str()).collect();
    let _ = writeln!(text, "[[kernel]] void {}(\n{}) {{", kernel_name(launch, inputs), declarations.join(",\n"));
    text
}

fn template_values(launch: &Launch) -> String {
    let list: Vec<String> = launch
        .template
        .iter()
        .map(|(_, value)| match value {
            TemplateValue::Int(value) => value.to_string(),
            TemplateValue::Bool(value) => u8::from(*value).to_string(),
            TemplateValue::Element(element) => element.metal_name().to_owned(),
        })
        .collect();
    format!("<{}>", list.join(", "))
}

/// The kernel's name: its own, the template's values, the types of inputs and outputs.
fn kernel_name(launch: &Launch, inputs: &[Argument]) -> String {
    let mut name = format!("custom_kernel_{}", launch.kernel.name);
    if !launch.template.is_empty() {
        let values = template_values(launch).replace(", ", "_").replace('<', "_");
        name += &format!("_{}", values.trim_end_matches('>'));
    }
    for input in inputs {
        name += &format!("_{}", input.element.metal_name());
        if input.shape.is_empty() {
            name += "s";
        } else if input.len() < MAX_CONSTANT_ELEMENTS {
            name += "c";
        }
    }
    for output in &launch.outputs {
        name += &format!("_{}", output.element.metal_name());
    }
    name
}
