"""Turns bench.json of run.py into the tables of docs/benchmarks.

usage: report.py BENCH_JSON
"""

import json
import statistics
import sys


def rates(runs: list[dict], work: str, arm: str) -> dict[int, float]:
    """Tokens per second by round. For prefill the time to the first token counts, for decode what follows it."""
    found = {}
    for run in runs:
        if run["work"] == work and run["arm"] == arm and run["round"] >= 0:
            decoded = len(run["tokens"]) - 1
            prefill = run["prompt_tokens"] / run["first_seconds"]
            found[run["round"]] = decoded / run["rest_seconds"] if decoded else prefill
    return found


def departures(runs: list[dict], work: str, arm: str) -> list[int]:
    """For each round whose greedy tokens differ from mlx_lm's, the first step at which they do."""
    answers: dict[int, dict[str, list[int]]] = {}
    for run in runs:
        if run["work"] == work:
            answers.setdefault(run["round"], {})[run["arm"]] = run["tokens"]
    first = []
    for pair in answers.values():
        ours, theirs = pair[arm], pair["mlx_lm"]
        if ours != theirs:
            first.append(next((step for step, two in enumerate(zip(ours, theirs)) if two[0] != two[1]), len(ours)))
    return first


def told(steps: list[int], rounds: int) -> str:
    return "equal" if not steps else f"differ in {len(steps)} of {rounds} rounds, first at step {min(steps)}"


def table(models: list[dict]) -> str:
    lines = []
    for model in models:
        runs = model["runs"]
        lines += [f"**{model['shape']}** ({model['why']})", "",
                  "| work | Linnet tok/s | mlx_lm tok/s | ratio of medians | ratios of the rounds | greedy tokens of the two "
                  "| of two mlx_lm |",
                  "|---|---|---|---|---|---|---|"]
        for work in dict.fromkeys(run["work"] for run in runs):
            ours, theirs = rates(runs, work, "linnet"), rates(runs, work, "mlx_lm")
            pairs = [ours[number] / theirs[number] for number in ours if number in theirs]
            a, b = statistics.median(ours.values()), statistics.median(theirs.values())
            rounds = len({run["round"] for run in runs if run["work"] == work})
            same, control = (told(departures(runs, work, arm), rounds) for arm in ("linnet", "control"))
            spread = f"{min(pairs):.3f} to {max(pairs):.3f}"
            lines.append(f"| {work} | {a:,.0f} | {b:,.0f} | {a / b:.3f} | {spread} | {same} | {control} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    with open(sys.argv[1]) as file:
        models = json.load(file)["models"]
    print(table(models))


if __name__ == "__main__":
    main()
