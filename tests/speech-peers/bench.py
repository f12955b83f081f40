"""Linnet's Whisper beside faster-whisper and whisper.cpp on one machine in one run, on the same weights and clips.

Every contender is loaded once and transcribes a clip in turn with the others, round by round, at temperature 0 without
falling back; a figure is the median of the rounds. A peer that took more than half again as long as the fastest peer in the
first round cannot be the faster one and is left out of the others. Results: target/bench/speech/summary.json
({work, ours, peer, peer_name, ratio}; a ratio below 1 means that we are faster) and raw.json with every run and its text.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import clips
import mlx_reference
import models
import whisper_cpp

OUT = clips.ROOT / "target/bench/speech"
# What the first round may cost a peer, relative to the fastest, before it is left out.
HOPELESS = 1.5


class Contender:
    """A program that has a model and a clip loaded."""

    def __init__(self, name: str, command: list, environment: dict | None = None):
        self.name = name
        self.seconds: list[float] = []
        self.text = ""
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})}, cwd=Path(__file__).parent,
        )
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"{name} did not start: {command}")

    def run(self) -> None:
        """Transcribes once."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, _, self.text = self.process.stdout.readline().rstrip("\n").partition("\t")
        self.seconds.append(float(seconds))

    def close(self) -> None:
        """Ends the program."""
        self.process.stdin.close()
        self.process.wait()


def contenders(linnet: Path, folders: Path, model: str, clip: Path, beam: int, threads: int) -> list[Contender]:
    """Ours first, then the peers."""
    shared = [threads, beam, "en"]
    raw = clip.with_suffix(".f32")
    raw.write_bytes(clips.samples(clip.stem).tobytes())
    filters = mlx_reference.filters()
    forced = {"CT2_FORCE_CPU_ISA": "AVX512"} if "avx512f" in Path("/proc/cpuinfo").read_text() else {}
    return [
        *(Contender(f"linnet {kind}", [linnet, folders / model, kind, *shared, clip]) for kind in ("int8", "stored")),
        *(
            Contender(
                f"faster-whisper {kind}",
                [sys.executable, "faster_whisper_bench.py", models.ctranslate2(model), kind, *shared, clip],
                forced,
            )
            for kind in ("int8", "float32")
        ),
        *(
            Contender(f"whisper.cpp {kind}", [whisper_cpp.program(), models.ggml(model, kind, filters), *shared, raw])
            for kind in ("f16", "q8_0")
        ),
    ]


def compare(arms: list[Contender], rounds: int) -> dict:
    """Runs the rounds and gives the row of the table."""
    for number in range(rounds):
        for arm in arms:
            arm.run()
        if number == 0:
            fastest = min(arm.seconds[0] for arm in arms if not arm.name.startswith("linnet"))
            arms = [arm for arm in arms if arm.name.startswith("linnet") or arm.seconds[0] <= HOPELESS * fastest]
    medians = {arm.name: statistics.median(arm.seconds) for arm in arms}
    peer = min((name for name in medians if not name.startswith("linnet")), key=medians.get)
    ours = medians["linnet int8"]
    return {"ours": ours, "stored": medians["linnet stored"], "peer": medians[peer], "peer_name": peer, "ratio": ours / medians[peer]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("linnet", type=Path, help="the example whisper_speed, built for release")
    parser.add_argument("--folders", type=Path, required=True, help="a folder with tiny.en and base as Linnet has them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=list(models.PACKAGES))
    parser.add_argument("--clips", nargs="+", default=list(clips.CLIPS))
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    options = parser.parse_args()
    paths = clips.write(OUT / "clips")
    rows, raw = [], {"machine": platform.machine(), "threads": options.threads, "runs": []}
    for model in options.models:
        for clip in options.clips:
            for beam in options.beams:
                arms = contenders(options.linnet.resolve(), options.folders.resolve(), model, paths[clip], beam, options.threads)
                row = compare(arms, options.rounds)
                work = f"{model}, {clip} s, {'greedy' if beam == 1 else f'beam {beam}'}"
                rows.append({"work": work, **row})
                for arm in arms:
                    arm.close()
                    raw["runs"].append({"work": work, "name": arm.name, "seconds": arm.seconds, "text": arm.text.strip()})
                print(f"{work:<28} {row['ours']:.3f} s  {row['peer_name']:<22} {row['peer']:.3f} s  {row['ratio']:.2f}", flush=True)
                (OUT / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
                (OUT / "raw.json").write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
