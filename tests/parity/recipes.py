"""What the tiny reference models are: one `Recipe` per fixture, each there to exercise one thing."""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Recipe:
    """One fixture: a config in the reference's own field names, how its weights are stored, and why it exists."""

    name: str
    why: str
    config: dict = field(default_factory=dict)
    # Type of the norms, biases, dense weights, and of the scales and biases of quantized ones.
    dtype: str = "float32"
    # None for a dense model, or {"group_size": ..., "bits": ...}.
    quantization: dict | None = None
    # Module path -> {"group_size": ..., "bits": ...}, or False to leave that module dense.
    layer_quantization: dict = field(default_factory=dict)

    def to_json(self) -> dict:
        return asdict(self)


# Small enough to commit, large enough that grouped-query attention, several groups per row and several cache
# pages are real. 37 prompt tokens and 64 decoded ones make 101 positions.
LLAMA_BASE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Q8_64 = {"group_size": 64, "bits": 8}
Q4_64 = {"group_size": 64, "bits": 4}
Q4_32 = {"group_size": 32, "bits": 4}

# SuScaled rope takes one factor for each pair of a head's 16 dimensions.
LONG_FACTORS = [1.0, 1.1, 1.3, 1.7, 2.2, 3.0, 4.5, 6.0]

LLAMA = [
    # Weights: dense, then every bit width, group size and scale type.
    Recipe("dense-f32", "untied head, grouped-query attention, head size implied by hidden size and heads"),
    Recipe("dense-f16", "half-precision weights, tied head", {"tie_word_embeddings": True}, "float16"),
    Recipe("dense-bf16", "bfloat16 weights, attention bias alone", {"attention_bias": True}, "bfloat16"),
    Recipe("affine-2bit-g32", "2-bit codes", {}, "float16", {"group_size": 32, "bits": 2}),
    Recipe("affine-3bit-g64", "3-bit codes, which straddle words", {}, "float16", {"group_size": 64, "bits": 3}),
    Recipe("affine-4bit-g32", "4-bit codes, groups of 32, tied quantized head", {"tie_word_embeddings": True},
           "float16", Q4_32),
    Recipe("affine-4bit-g64", "4-bit codes, several groups of 64 a row", {"hidden_size": 128, "num_attention_heads": 8},
           "bfloat16", Q4_64),
    Recipe("affine-4bit-g128", "4-bit codes, groups of 128",
           {"hidden_size": 128, "num_attention_heads": 8, "intermediate_size": 256},
           "float16", {"group_size": 128, "bits": 4}),
    Recipe("affine-4bit-g64-f32-scales", "single-precision scales and biases", {}, "float32", Q4_64),
    Recipe("affine-5bit-g64", "5-bit codes, which straddle words", {}, "bfloat16", {"group_size": 64, "bits": 5}),
    Recipe("affine-6bit-g32", "6-bit codes, which straddle words", {}, "float16", {"group_size": 32, "bits": 6}),
    Recipe("affine-8bit-g64", "8-bit codes, tied quantized head", {"tie_word_embeddings": True}, "bfloat16", Q8_64),
    Recipe("affine-8bit-g32", "8-bit codes, groups of 32", {}, "float16", {"group_size": 32, "bits": 8}),
    Recipe(
        "affine-mixed",
        "bits and groups chosen per module in config.json, one module left dense",
        {},
        "float16",
        Q4_64,
        {
            "model.embed_tokens": {"group_size": 32, "bits": 8},
            "model.layers.0.self_attn.v_proj": {"group_size": 64, "bits": 6},
            "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8},
            "model.layers.1.self_attn.o_proj": False,
            "model.layers.1.mlp.gate_proj": {"group_size": 32, "bits": 3},
            "lm_head": {"group_size": 32, "bits": 6},
        },
    ),
    # Shapes and options of the architecture.
    Recipe("explicit-head-dim", "head size given, heads x size differs from hidden size", {"head_dim": 32}, "float16",
           Q4_64),
    Recipe("multi-head", "as many key and value heads as query heads", {"num_key_value_heads": 4}, "float16", Q4_64),
    Recipe("multi-query", "one key and value head for all query heads", {"num_key_value_heads": 1}, "float16", Q4_64),
    Recipe("biases", "attention and MLP biases", {"attention_bias": True, "mlp_bias": True}, "float16", Q8_64),
    Recipe("odd-sizes", "vocabulary and MLP width that no vector width divides",
           {"vocab_size": 251, "intermediate_size": 160, "num_hidden_layers": 3}, "float16",
           {"group_size": 32, "bits": 4}),
    Recipe("large-eps", "a norm epsilon large enough that leaving it out shows", {"rms_norm_eps": 0.5}, "float16",
           Q4_64),
    # Rotary embeddings.
    Recipe("rope-theta-500k", "a large base", {"rope_theta": 500000.0}, "float16", Q4_64),
    Recipe("rope-traditional", "pairs of neighbouring dimensions", {"rope_traditional": True}, "float16", Q4_64),
    Recipe("rope-linear", "positions divided by a factor", {"rope_scaling": {"type": "linear", "factor": 4.0}},
           "float16", Q4_64),
    Recipe(
        "rope-llama3",
        "wavelengths scaled in three bands; the context is short so that all three occur",
        {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        "float16",
        Q4_64,
    ),
    Recipe("rope-dynamic", "the base grows once a step ends past the trained context",
           {"max_position_embeddings": 24, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "float16", Q4_64),
    Recipe(
        "rope-yarn",
        "interpolation by band, with the attention factor",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
        "float16",
        Q4_64,
    ),
    Recipe(
        "rope-yarn-mscale",
        "every figure of yarn given",
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 16,
                "beta_slow": 2,
                "mscale": 1.2,
                "mscale_all_dim": 0.6,
            }
        },
        "float16",
        Q4_64,
    ),
    Recipe(
        "rope-longrope",
        "one factor per pair of dimensions, and the scale that follows from the context's growth",
        {
            "rope_scaling": {
                "rope_type": "longrope",
                "original_max_position_embeddings": 64,
                "short_factor": [1.0] * 8,
                "long_factor": LONG_FACTORS,
            }
        },
        "float16",
        Q4_64,
    ),
    Recipe("rope-proportional", "only a part of each head turns",
           {"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}}, "float16",
           Q4_64),
    # Attention.
    Recipe(
        "sliding-window",
        "layers that see a window of 24 beside a layer that sees all",
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 24,
        },
        "float16",
        Q4_64,
    ),
]

FAMILIES = {"llama": (LLAMA_BASE, LLAMA)}
