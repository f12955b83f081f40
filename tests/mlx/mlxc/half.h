// Off Arm, mlx-c leaves out its accessors of f16 and bf16, which mlx-rs needs. MLX itself has both types everywhere.
#pragma once

#include "mlx/types/half_types.h"

#define HAS_FLOAT16
#define HAS_BFLOAT16
using mlx::core::bfloat16_t;
using mlx::core::float16_t;
