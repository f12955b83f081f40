"""Which models are compared bit for bit, and what is run on each. A new architecture adds entries here and no code."""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Scenario:
    """What is run. Each call of the model is recorded, whoever made it."""

    name: str
    # Lengths of the prompts and how many tokens each is to decode.
    prompts: list[int] = field(default_factory=lambda: [37])
    limits: list[int] = field(default_factory=lambda: [100])
    # At which turn of mlx-lm's batch generator each prompt is handed in; None runs one sequence by `generate_step`.
    joins: list[int] | None = None
    # The most tokens of a prompt in one call. mlx-lm always leaves a prompt's last token to a call of its own.
    prefill_step: int = 19
    # How keys and values are quantized: {"bits", "group_size", "start"}, or None. mlx-lm quantizes after a call, once
    # the sequence has `start` tokens: the first piece of a prompt always attends to what is not quantized yet.
    kv: dict | None = None
    # What each sequence begins with: None, or [another sequence, how many of its first tokens], whose keys and values are
    # taken over from it instead of being computed; with None for a number, all that it holds when this one is handed in.
    # The sequence's own prompt follows.
    reuse: list | None = None


def kv(bits: int, group_size: int, start: int = 0) -> dict:
    return {"bits": bits, "group_size": group_size, "start": start}


ALONE = Scenario("alone")
KV8 = Scenario("kv8", kv=kv(8, 32))
KV4 = Scenario("kv4", kv=kv(4, 32))
KV4_LATE = Scenario("kv4-late", kv=kv(4, 32, 60))
# Four rows at most. Three begin together; later ones join as others retire, the last with a prompt of one token.
BATCH = Scenario("batch", [5, 23, 11, 17, 9, 1], [12, 40, 14, 34, 20, 18], [0, 0, 0, 6, 16, 16], 2048)
# The same with prompts cut into pieces, so that rows of a prefill call have unequal pasts and leave it one by one.
# A later turn, and another one from the middle of the first: what was computed is taken over.
REUSE = Scenario("reuse", [37, 9, 1, 30], [20, 14, 10, 12], None, reuse=[None, [0, None], [1, 40], [0, 21]])
# Rows that begin with others' keys and values join and retire among rows that do not.
REUSE_BATCH = Scenario("reuse-batch", [23, 11, 8, 5, 7, 1], [40, 30, 14, 20, 12, 9], [0, 0, 5, 8, 8, 20], 2048,
                       reuse=[None, None, [0, 20], [1, None], None, [3, None]])
# A window gives only what it still holds, so all of it is taken over.
REUSE_WINDOW = Scenario("reuse", [37, 9, 6], [20, 14, 10], None, reuse=[None, [0, None], [1, None]])
REUSE_WINDOW_BATCH = Scenario("reuse-batch", [31, 11, 8, 5], [40, 30, 14, 20], [0, 0, 5, 8], 2048,
                              reuse=[None, None, [0, None], [1, None]])
BATCH_CHUNKS = Scenario("batch-chunks", [5, 23, 11, 17], [14, 9, 12, 20], [0, 0, 1, 3], 8)


@dataclass(frozen=True)
class ExactRecipe:
    """One model."""

    name: str
    why: str
    config: dict = field(default_factory=dict)
    # Type of dense weights, norms, scales and biases.
    dtype: str = "float16"
    # None for a dense model, or {"group_size": ..., "bits": ...}.
    quantization: dict | None = None
    # Module path -> {"group_size": ..., "bits": ...}, or False to leave that module dense.
    layer_quantization: dict = field(default_factory=dict)
    scenarios: tuple = (ALONE,)

    def to_json(self) -> dict:
        return asdict(self)


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ALL = (ALONE, KV8, KV4, KV4_LATE, BATCH, BATCH_CHUNKS, REUSE, REUSE_BATCH)
# Heads of 64 allow the group of 64 that mlx-lm takes by default.
HEADS_64 = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64}
KV8_64 = Scenario("kv8", kv=kv(8, 64))
KV4_64 = Scenario("kv4", kv=kv(4, 64))


def affine(bits: int, group_size: int) -> dict:
    return {"group_size": group_size, "bits": bits}


def rope(name: str, why: str, scaling: dict, config: dict | None = None) -> ExactRecipe:
    return ExactRecipe(f"rope-{name}", why, (config or {}) | {"rope_scaling": scaling}, "bfloat16", affine(4, 32),
                       scenarios=(ALONE, BATCH))


LLAMA_RECIPES = [
    ExactRecipe("dense-f32", "single precision throughout", dtype="float32", scenarios=ALL),
    ExactRecipe("dense-f16", "half precision", dtype="float16", scenarios=ALL),
    ExactRecipe("dense-bf16", "bfloat16", dtype="bfloat16", scenarios=ALL),
    *[
        ExactRecipe(f"affine-{bits}bit-g{group}-{short}", f"{bits}-bit codes in groups of {group}, activations {short}",
                    {}, dtype, affine(bits, group), scenarios=ALL if (bits, group) == (4, 64) else (ALONE,))
        for short, dtype in (("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16"))
        for bits in (4, 8)
        for group in (32, 64, 128)
    ],
    ExactRecipe("affine-2bit-g64", "2-bit codes", dtype="bfloat16", quantization=affine(2, 64)),
    ExactRecipe("affine-3bit-g64", "3-bit codes, which straddle words", dtype="bfloat16", quantization=affine(3, 64)),
    ExactRecipe("affine-5bit-g32", "5-bit codes, which straddle words", quantization=affine(5, 32)),
    ExactRecipe("affine-6bit-g128", "6-bit codes, which straddle words", dtype="bfloat16", quantization=affine(6, 128)),
    ExactRecipe("affine-mixed", "bits and groups chosen per module, one left dense", {}, "bfloat16", affine(4, 64),
                {"model.embed_tokens": affine(8, 32), "model.layers.0.self_attn.v_proj": affine(6, 64),
                 "model.layers.1.self_attn.o_proj": False, "lm_head": affine(6, 32)}),
    ExactRecipe("tied-quantized", "the embedding is the output head too", {"tie_word_embeddings": True}, "bfloat16",
                affine(4, 64), scenarios=(ALONE, BATCH)),
    ExactRecipe("tied-dense", "likewise, dense", {"tie_word_embeddings": True}),
    ExactRecipe("biases", "biases of attention and MLP", {"attention_bias": True, "mlp_bias": True}, "bfloat16",
                affine(8, 64)),
    ExactRecipe("heads-64", "heads of 64, one of keys and values for four of queries, KV in groups of 64", HEADS_64,
                "bfloat16", affine(4, 64), scenarios=(ALONE, KV8_64, KV4_64, BATCH)),
    ExactRecipe("heads-128", "heads of 128, as large models have them",
                {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}, "bfloat16", affine(4, 64), scenarios=(ALONE, KV8_64, KV4_64, BATCH)),
    ExactRecipe("multi-head", "as many key and value heads as query heads", {"num_key_value_heads": 4}, "float16",
                affine(4, 32), scenarios=(ALONE, KV8, BATCH)),
    ExactRecipe("odd-sizes", "a vocabulary and depth that nothing divides", {"vocab_size": 101, "num_hidden_layers": 3},
                "bfloat16", affine(4, 32)),
    ExactRecipe("past-a-step", "a sequence that outgrows the first 256 positions of its cache", {}, "bfloat16",
                affine(4, 64), scenarios=(Scenario("alone", [250], [40], None, 100),
                                          Scenario("kv8", [250], [40], None, 100, kv(8, 32)),
                                          Scenario("batch", [250, 30, 3], [20, 12, 30], [0, 0, 4], 2048))),
    ExactRecipe("rope-traditional", "pairs of neighbouring dimensions", {"rope_traditional": True}, "bfloat16",
                affine(4, 32), scenarios=(ALONE, BATCH)),
    rope("linear", "positions divided by a factor", {"type": "linear", "factor": 4.0}),
    rope("llama3", "wavelengths scaled in three bands",
         {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}, {"rope_theta": 500000.0}),
    rope("yarn", "interpolation by band, with the attention factor",
         {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    rope("longrope", "one factor per pair of dimensions",
         {"rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0] * 16,
          "long_factor": [1.0 + 0.4 * pair for pair in range(16)]}),
    # The base follows the end of a step, which a batch has only one of: alone is all that mlx-lm defines.
    ExactRecipe("rope-dynamic", "the base grows once a step ends past the trained context",
                {"max_position_embeddings": 24, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "bfloat16",
                affine(4, 32)),
    ExactRecipe("sliding-window", "layers that see a window of 24 beside a layer that sees all",
                {"num_hidden_layers": 3, "sliding_window": 24,
                 "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, "bfloat16",
                affine(4, 32), scenarios=(ALONE, BATCH, REUSE_WINDOW, REUSE_WINDOW_BATCH)),
]

# Family -> (config every recipe starts from, recipes).
FAMILIES = {"llama": (LLAMA, LLAMA_RECIPES)}

# Full widths with few layers and a small vocabulary, for GPUs: kernels are chosen by size, and a graphics processor makes
# these in a moment. Not committed; made where they are compared (make.py --device gpu).
LONG = Scenario("long", [300], [300], None, 128)
WIDE_BATCH = Scenario("batch", [5, 123, 60, 300], [40, 200, 30, 120], [0, 0, 3, 10], 2048)


def wide(name: str, why: str, config: dict, quantization: dict | None) -> ExactRecipe:
    return ExactRecipe(name, why, {"num_hidden_layers": 2, "vocab_size": 4096, "max_position_embeddings": 4096} | config,
                       "bfloat16", quantization, scenarios=(ALONE, LONG, KV8_64, KV4_64, WIDE_BATCH))


WIDTH_1B = {"hidden_size": 1536, "intermediate_size": 4608, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 128}
WIDTH_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
            "rope_theta": 500000.0}
GPU_FAMILIES = {"llama-wide": (LLAMA, [
    wide("1b-4bit", "the widths of MiniCPM5-1B", WIDTH_1B, affine(4, 64)),
    wide("1b-dense", "the same, dense", WIDTH_1B, None),
    wide("8b-4bit", "the widths of Llama 3 8B", WIDTH_8B, affine(4, 64)),
])}
