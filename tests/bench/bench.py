#!/usr/bin/env python3
"""Linnet beside its peers on one machine in one run: prints a table of ratios and writes it down.

Every round runs each contender once, in turn, so that what else the machine does hits all alike; a figure is the median
of the rounds. Results:

  target/bench/summary.json  an array of {work, unit, ours, peer, peer_name, ratio}; a ratio above 1 means that we are
                             better
  target/bench/raw.json      the machine, the versions and every single run
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PEERS = Path("target/peers")
OUT = Path("target/bench")
MODEL_NAME = "SmolLM2-135M"
MODELS = {kind: PEERS / "models" / f"SmolLM2-135M-Instruct.{kind}.gguf" for kind in ("Q4_1", "Q4_0")}
PROMPT_TOKENS = 512
DECODED_TOKENS = 128
PREFILL = f"prefill {PROMPT_TOKENS}"
DECODE = f"decode {DECODED_TOKENS}"


@dataclass(frozen=True)
class Contender:
    """One engine on one file of the model."""

    name: str
    kind: str
    ours: bool


CONTENDERS = [
    Contender("linnet Q4_1", "Q4_1", True),
    Contender("llama.cpp Q4_1", "Q4_1", False),
    Contender("linnet Q4_0", "Q4_0", True),
    Contender("llama.cpp Q4_0", "Q4_0", False),
]
# What is compared: ours, the peer. The starter model is the Q4_1 file, so that is what a user runs; the second row
# holds it against the peer's fast format, the third runs the same weights on both.
ROWS = [
    ("linnet Q4_1", "llama.cpp Q4_1"),
    ("linnet Q4_1", "llama.cpp Q4_0"),
    ("linnet Q4_0", "llama.cpp Q4_0"),
]


def output_of(command: list, **options) -> str:
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


class Linnet:
    """Our binary with a home of the benchmark's own."""

    def __init__(self, binary: Path):
        self.binary = binary
        home = OUT / "home"
        home.mkdir(parents=True, exist_ok=True)
        self.environment = os.environ | {"LINNET_HOME": str(home.resolve())}

    def call(self, *arguments) -> str:
        return output_of([self.binary, *map(str, arguments)], env=self.environment, stdin=subprocess.DEVNULL)

    def prepare(self, kind: str) -> None:
        names = {model["name"] for model in json.loads(self.call("ls", "--json"))}
        if self.model(kind) not in names:
            self.call("import", MODELS[kind], "--name", self.model(kind))

    def model(self, kind: str) -> str:
        return f"bench-{kind.lower()}"

    def measure(self, kind: str, threads: int) -> dict:
        """Tokens per second of one prefill and one decode."""
        report = json.loads(
            self.call(
                "bench", "local", self.model(kind), "--json", "--threads", threads, "--prompt", PROMPT_TOKENS,
                "--generate", DECODED_TOKENS, "--runs", 1,
            )
        )
        return {PREFILL: report["prefill_tokens_per_second"], DECODE: report["decode_tokens_per_second"]}


def measure_llama_cpp(kind: str, threads: int) -> dict:
    runs = json.loads(
        output_of(
            [
                PEERS / "llama.cpp/bin/llama-bench", "-m", MODELS[kind], "-t", str(threads), "-p", str(PROMPT_TOKENS),
                "-n", str(DECODED_TOKENS), "-r", "1", "-o", "json",
            ]
        )
    )
    return {PREFILL if run["n_prompt"] else DECODE: run["avg_ts"] for run in runs}


def machine() -> dict:
    facts = {"system": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()}
    if Path("/proc/cpuinfo").is_file():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                facts["processor"] = line.split(":", 1)[1].strip()
                break
        facts["load_before"] = os.getloadavg()[0]
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--linnet", type=Path, required=True, help="the release binary")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    raw = {"machine": machine(), "rounds": arguments.rounds, "runs": []}
    linnet = Linnet(arguments.linnet.resolve())
    raw["linnet"] = linnet.call("--version").strip()
    raw["llama.cpp"] = json.loads((PEERS / "llama.cpp/built.json").read_text())
    for kind in MODELS:
        linnet.prepare(kind)

    figures: dict = {}
    for threads in arguments.threads:
        for number in range(arguments.rounds):
            # Each round begins with another contender.
            for contender in CONTENDERS[number % len(CONTENDERS) :] + CONTENDERS[: number % len(CONTENDERS)]:
                measure = linnet.measure if contender.ours else measure_llama_cpp
                result = measure(contender.kind, threads)
                raw["runs"].append({"contender": contender.name, "threads": threads, "round": number, **result})
                for work, value in result.items():
                    figures.setdefault((threads, work, contender.name), []).append(value)
            print(f"round {number + 1} of {arguments.rounds}, {threads} threads", file=sys.stderr)

    summary = []
    for threads in arguments.threads:
        for work in (PREFILL, DECODE):
            for ours_name, peer_name in ROWS:
                ours = statistics.median(figures[threads, work, ours_name])
                peer = statistics.median(figures[threads, work, peer_name])
                summary.append(
                    {
                        "work": f"{MODEL_NAME} {ours_name.split()[1]}, {work}, {threads} threads",
                        "unit": "tok/s",
                        "ours": round(ours, 1),
                        "peer": round(peer, 1),
                        "peer_name": peer_name,
                        "ratio": round(ours / peer, 3),
                    }
                )
    (OUT / "raw.json").write_text(json.dumps(raw, indent=2) + "\n")
    (OUT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"{'work':<46} {'ours':>8} {'peer':>8} ratio  peer")
    for row in summary:
        print(f"{row['work']:<46} {row['ours']:8.1f} {row['peer']:8.1f} {row['ratio']:5.2f}  {row['peer_name']}")
    print(f"medians of {arguments.rounds}, tok/s; {OUT}/summary.json, {OUT}/raw.json")


if __name__ == "__main__":
    main()
