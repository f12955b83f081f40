"""Makes the fixtures of exact parity: what mlx-lm computes on one MLX build, to the last bit.

Each fixture is a folder FAMILY/NAME with
  recipe.json             the model: config, seed, one line per tensor, digest of the weights, and what made it. The
                          weights themselves are made from this where they are needed (seeded.py, src/seeded.rs)
  calls.json              per scenario the prompts and every call that mlx-lm made of the model: rows as [sequence,
                          tokens], the tokens chosen, a digest of each row of logits
  rows.safetensors        whole rows of logits of some calls, SCENARIO.CALL [rows, vocabulary], to see how far off a
                          wrong result is
"""

import argparse
import copy
import json
import os
import sys
import tempfile
import time
import zlib
from importlib.metadata import version
from pathlib import Path

# One thread adds in one order: the same bytes each time.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model
from safetensors.numpy import save_file

from model import describe
from recipes import FAMILIES, GPU_FAMILIES, ExactRecipe
from record import record, to_json
from seeded import words
from write import write_model

KEPT_CALLS = 5
# A model that falls into a short loop tests few states: other seeds are tried until the first scenario has this many
# different tokens in 100.
DISTINCT_SHARE = 0.24


def prompts_of(recipe: ExactRecipe, seed: int, vocabulary: int) -> list[list]:
    """One list of prompts per scenario, drawn from the seed too."""
    prompts = []
    for index, scenario in enumerate(recipe.scenarios):
        drawn = iter((words(seed, 10**6 + index, sum(scenario.prompts)) % np.uint64(vocabulary)).tolist())
        prompts.append([[next(drawn) for _ in range(length)] for length in scenario.prompts])
    return prompts


class NoFairSeed(Exception):
    """A recipe whose models all fall into short loops."""


def first_seed(name: str) -> int:
    """Where the search for a seed begins: by name, so that a new recipe changes no other fixture."""
    return 1000 * zlib.crc32(name.encode())


def lines(items: list) -> str:
    """A JSON array with one item a line, for diffs that can be read."""
    return "[\n" + ",\n".join("    " + json.dumps(item, separators=(",", ":")) for item in items) + "\n  ]"


def scenario_text(scenario: dict) -> str:
    head = json.dumps({key: value for key, value in scenario.items() if key != "calls"}).removesuffix("}")
    return f'{head}, "calls": {lines(scenario["calls"])}}}'


def make_fixture(recipe: ExactRecipe, base: dict, folder: Path, first_seed: int, skip_unsupported: bool) -> None:
    config, tensors = describe(recipe, base)
    for seed in range(first_seed, first_seed + 100):
        prompts = prompts_of(recipe, seed, config["vocab_size"])
        with tempfile.TemporaryDirectory() as scratch:
            weights = write_model(config, tensors, seed, Path(scratch))
            model, _ = load_model(Path(scratch))
        calls = record(model, recipe.scenarios[0], prompts[0])
        chosen = [token for call in calls if call.tokens is not None for token in call.tokens.tolist()]
        if len(set(chosen)) >= DISTINCT_SHARE * len(chosen):
            break
    else:
        raise NoFairSeed("no seed in 100 gives enough different tokens; change the recipe")
    scenarios, rows = [], {}
    for scenario, prompt in zip(recipe.scenarios, prompts):
        try:
            # Recording notes what was taken over in the scenario and the prompts.
            scenario, prompt = copy.deepcopy((scenario, prompt))
            calls = record(model, scenario, prompt)
            listed, kept = to_json(scenario, prompt, calls, KEPT_CALLS)
        except RuntimeError as error:  # MLX's own, for operations that a device has no kernel for.
            if not skip_unsupported:
                raise
            print(f"{folder.parent.name}/{folder.name} {scenario.name} left out: {error}", flush=True)
            continue
        scenarios.append(listed)
        rows |= kept
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "recipe": recipe.to_json(),
        "seed": seed,
        "weights_sha256": weights,
        "mlx_lm": version("mlx-lm"),
        "mlx": mx.__version__,
        "device": str(mx.default_device()),
        "config": config,
    }
    text = json.dumps(head, indent=2).removesuffix("\n}")
    (folder / "recipe.json").write_text(f'{text},\n  "tensors": {lines(tensors)}\n}}\n')
    (folder / "calls.json").write_text("[\n" + ",\n".join(map(scenario_text, scenarios)) + "\n]\n")
    save_file(rows, folder / "rows.safetensors")
    counts = ", ".join(f"{s['name']} {len(s['calls'])}" for s in scenarios)
    name = f"{folder.parent.name}/{folder.name}"
    print(f"{name}: seed {seed}, {len(set(chosen))} distinct tokens; calls: {counts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "fixtures-exact")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--seconds", type=float, help="begin no fixture after this time, and say which are left out")
    parser.add_argument("--skip-unsupported", action="store_true", help="leave out what the reference itself fails at")
    parser.add_argument("names", nargs="*", help="FAMILY/NAME; all without")
    arguments = parser.parse_args()
    mx.set_default_device(getattr(mx, arguments.device))
    known = {
        f"{family}/{recipe.name}": (recipe, base)
        for family, (base, recipes) in (FAMILIES if arguments.device == "cpu" else GPU_FAMILIES | FAMILIES).items()
        for recipe in recipes
    }
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no such fixture: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    begun, wanted, failed = time.monotonic(), list(arguments.names or known), []
    for number, name in enumerate(wanted):
        if arguments.seconds is not None and time.monotonic() - begun > arguments.seconds:
            print(f"left out for want of time: {', '.join(wanted[number:])}")
            break
        recipe, base = known[name]
        try:
            make_fixture(recipe, base, arguments.out / name, first_seed(name), arguments.skip_unsupported)
        except (RuntimeError, NoFairSeed) as error:  # The others are worth having.
            print(f"{name}: {error}", flush=True)
            if not (arguments.skip_unsupported and isinstance(error, RuntimeError)):
                failed.append(name)
    if failed:
        sys.exit(f"not made: {', '.join(failed)}")


if __name__ == "__main__":
    main()
