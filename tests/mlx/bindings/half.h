// Stands for mlx-c's own half.h, which has the types on Arm only and takes them from headers that only one compiler reads.
#define MLX_HALF_H
#define HAS_FLOAT16
#define HAS_BFLOAT16
typedef _Float16 float16_t;
typedef unsigned short bfloat16_t;
