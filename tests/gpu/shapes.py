"""Model shapes to measure on: weights come from a seed, made on the machine itself.

usage: shapes.py FOLDER   writes a recipe NAME.json for each shape; linnet-parity's make_model turns one into a model
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parity" / "exact"))

from model import describe
from recipes import LLAMA, ExactRecipe, affine

SHAPES = [
    ExactRecipe(
        "minicpm5-1b",
        "MiniCPM5-1B: 24 layers, 2 key and value heads for 16 of queries, a separate output head",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 24,
            "intermediate_size": 4608,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 130560,
            "max_position_embeddings": 131072,
        },
        "bfloat16",
        affine(4, 64),
    ),
    ExactRecipe(
        "llama-8b",
        "Llama 3 8B: 32 layers, 8 key and value heads for 32 of queries, a separate output head",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "rope_theta": 500000.0,
            "max_position_embeddings": 8192,
        },
        "bfloat16",
        affine(4, 64),
    ),
    # Not to measure: takes the whole path through on a machine without a GPU.
    ExactRecipe("tiny", "a few seconds on any processor", {"vocab_size": 512}, "float32", affine(4, 64)),
]


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, shape in enumerate(SHAPES):
        config, tensors = describe(shape, LLAMA)
        recipe = {"why": shape.why, "seed": 90 + number, "config": config, "tensors": tensors}
        (folder / f"{shape.name}.json").write_text(json.dumps(recipe, separators=(",", ":")))


if __name__ == "__main__":
    main()
