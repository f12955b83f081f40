"""Makes sampling.json: what mlx-lm's own sampling functions give, for the samplers' tests to agree with.

    python3 -m venv venv
    venv/bin/pip install "mlx[cpu]==0.32.2" && venv/bin/pip install --no-deps mlx-lm==0.32.2
    venv/bin/python make.py

Only mlx-lm's sample_utils.py is loaded, so the rest of its dependencies is not needed.
"""

import importlib.util
import json
import pathlib
import random

import mlx.core as mx

VOCABULARY = 64
EXEMPT = [3, 7]  # tokens that XTC spares

package = pathlib.Path(importlib.util.find_spec("mlx_lm").submodule_search_locations[0])
spec = importlib.util.spec_from_file_location("sample_utils", package / "sample_utils.py")
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)

generator = random.Random(20)


def logits(spread):
    """Distinct values with three decimals, so that no tie is decided by chance."""
    values = set()
    while len(values) < VOCABULARY:
        values.add(round(generator.gauss(0, spread), 3))
    values = list(values)
    generator.shuffle(values)
    return values


def processors(case):
    bias = {int(token): value for token, value in case.get("logit_bias", [])}
    return reference.make_logits_processors(
        bias or None,
        case.get("repetition_penalty"),
        case.get("repetition_window", 20),
        case.get("presence_penalty"),
        case.get("presence_window", 20),
        case.get("frequency_penalty"),
        case.get("frequency_window", 20),
    )


def run(case):
    x = mx.array(case["logits"], dtype=mx.float32)[None]
    tokens = mx.array(case["history"])
    for processor in processors(case):
        x = processor(tokens, x)
    processed = x
    logprobs = x - mx.logsumexp(x, axis=-1, keepdims=True)
    # The order of make_sampler; the draw itself is left out.
    y = logprobs
    if 0 < case.get("top_p", 0) < 1:
        y = reference.apply_top_p(y, case["top_p"])
    if case.get("min_p", 0) != 0:
        y = reference.apply_min_p(y, case["min_p"], 1)
    if case.get("xtc_probability", 0) > 0:
        y = reference.apply_xtc(y, case["xtc_probability"], case["xtc_threshold"], EXEMPT)
    if case.get("top_k", 0) > 0:
        y = reference.apply_top_k(y, case["top_k"])
    probabilities = mx.softmax(y * (1.0 / case["temperature"]), axis=-1)[0].tolist()
    kept = [token for token, value in enumerate(y[0].tolist()) if value != float("-inf")]
    return {
        **case,
        "processed": processed[0].tolist(),
        "logprobs": logprobs[0].tolist(),
        "greedy": mx.argmax(logprobs, axis=-1).item(),
        "kept": kept,
        "probabilities": [probabilities[token] for token in kept],
    }


PENALTIES = [
    {},
    {"logit_bias": [[5, 4.0], [9, -100.0]]},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.3, "repetition_window": 0},
    {"repetition_penalty": 0.8, "repetition_window": 5},
    {"presence_penalty": 0.7},
    {"presence_penalty": -0.7, "presence_window": 4},
    {"frequency_penalty": 0.4},
    {"frequency_penalty": 0.4, "frequency_window": 0},
    {
        "logit_bias": [[5, 1.5], [40, 2.0]],
        "repetition_penalty": 1.1,
        "repetition_window": 9,
        "presence_penalty": 0.5,
        "presence_window": 6,
        "frequency_penalty": 0.25,
        "frequency_window": 0,
    },
]

FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 12},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"top_k": 5, "top_p": 0.8},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.02},
    {"top_p": 0.95, "xtc_probability": 1.0, "xtc_threshold": 0.05, "top_k": 3},
    {"min_p": 0.1, "xtc_probability": 1.0, "xtc_threshold": 0.08, "top_k": 2},
]

cases = []
for penalties in PENALTIES:
    for filters in FILTERS:
        history = [generator.randrange(VOCABULARY // 2) for _ in range(generator.choice([1, 3, 30]))]
        history += history[-2:]
        temperature = generator.choice([0.3, 0.8, 1.0, 1.7])
        case = {"logits": logits(generator.choice([0.5, 2.0, 4.0])), "history": history, "temperature": temperature}
        cases.append(run({**case, **penalties, **filters}))

fixture = {"made_with": f"mlx-lm 0.32.2 on mlx {mx.__version__}", "exempt": EXEMPT, "cases": cases}
path = pathlib.Path(__file__).with_name("sampling.json")
# One case a line, floats as short as six digits allow.
shorten = lambda value: float(f"{value:.7g}") if isinstance(value, float) else value
for case in cases:
    for key, value in case.items():
        if isinstance(value, list) and value and not isinstance(value[0], list):
            case[key] = [shorten(item) for item in value]
lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
head = json.dumps({key: value for key, value in fixture.items() if key != "cases"})
path.write_text(f'{head[:-1]}, "cases": [\n{lines}\n]}}\n')
