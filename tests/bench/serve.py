#!/usr/bin/env python3
"""Linnet's server beside llama.cpp's on one machine in one run, on the same file of the same model.

Prepares the arms and hands them to `linnet bench serve`, which does the measuring. Results lie in target/bench/serve:
report.html, summary.json (in the form of bench.py's), raw.json and the servers' logs.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from bench import MODELS, OUT, PEERS, Linnet

KIND = "Q4_1"


def arms(linnet: Linnet, threads: int, slots: list, context: int) -> list:
    """Ours, and llama.cpp's server with each number of slots."""
    ours = [linnet.binary, "serve", "--model", linnet.model(KIND), "--threads", threads, "--port", "{port}"]
    commands = [("linnet", ours)]
    for count in slots:
        # Its slots share one context, so each may use as much of it as it needs; that is also its faster way.
        server = PEERS.resolve() / "llama.cpp/bin/llama-server"
        peer = [
            server, "-m", MODELS[KIND].resolve(), "-t", threads, "-tb", threads, "-np", count, "-cb", "-kvu", "-c", context,
            "--port", "{port}",
        ]
        commands.append((f"llama-server -np {count}", peer))
    return [f"{name}={' '.join(quote(part) for part in command)}" for name, command in commands]


def quote(part: object) -> str:
    return str(part) if part == "{port}" else shlex.quote(str(part))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--linnet", type=Path, required=True, help="the release binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 8], help="numbers of slots of llama.cpp's server")
    parser.add_argument("--context", type=int, default=24576, help="tokens that its slots share")
    parser.add_argument("rest", nargs="*", help="further arguments of `linnet bench serve`, after --")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    linnet = Linnet(arguments.linnet.resolve())
    linnet.prepare(KIND)
    command = [linnet.binary, "bench", "serve", "--out", OUT / "serve", "--alike", "counts"]
    for arm in arms(linnet, arguments.threads, arguments.slots, arguments.context):
        command += ["--arm", arm]
    sys.exit(subprocess.run([*map(str, command), *arguments.rest], env=linnet.environment).returncode)


if __name__ == "__main__":
    main()
