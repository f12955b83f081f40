"""One arm of the comparison: mlx_lm, driven by lines of JSON.

usage: arm_mlx_lm.py MODEL_FOLDER

Prints {"ready": ...} once loaded. For each {"prompt": [...], "generate": N} on standard input prints {"tokens": [...],
"first_seconds": ..., "rest_seconds": ...}: the time to the first token, and from it to the last. `generate_step` is
timed by itself, without the detokenizer and bookkeeping of mlx_lm's own command line: its fastest form.
"""

import importlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model

# The package exports a function of the same name.
generate_step = importlib.import_module("mlx_lm.generate").generate_step


def answer(model, prompt: list[int], count: int) -> dict:
    tokens, first = [], None
    begun = time.perf_counter()
    for token, _ in generate_step(mx.array(prompt), model, max_tokens=count):
        tokens.append(token)
        if first is None:
            first = time.perf_counter()
    return {"tokens": tokens, "first_seconds": first - begun, "rest_seconds": time.perf_counter() - first}


def main() -> None:
    model, _ = load_model(Path(sys.argv[1]))
    print(json.dumps({"ready": f"mlx_lm {version('mlx-lm')}, mlx {mx.__version__}, {mx.default_device()}"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(model, request["prompt"], request["generate"])), flush=True)


if __name__ == "__main__":
    main()
