"""On the machine with the GPU: unpacks target/gpu/pack.tar.xz and runs what is asked for.

README.md says what the machine must have. No network is needed.

usage: run.py [--pack FILE] [--work FOLDER] --out FOLDER STAGE...

stages, in any number and order:
  check    what the machine has, and whether everything loads
  parity   makes the exact fixtures with mlx_lm on this machine's device, then runs the parity suite against them
  bench    prefill and decode, ours against mlx_lm's, on seeded models: both load once and answer in turn
Results in OUT: check.json, parity.json, bench.json.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOM = Path(__file__).resolve().parent
EXACT = ROOM.parent / "parity" / "exact"


def find_packages(name: str) -> Path | None:
    """A folder of installed packages by name, wherever this Python finds it."""
    for entry in map(Path, sys.path):
        if (entry / name).is_dir():
            return entry / name
    return None


def cuda_home() -> str | None:
    """Where CUDA's headers are: MLX compiles its fused kernels with them at run time."""
    nvidia = find_packages("nvidia")
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda",
                  nvidia and nvidia / "cu13", nvidia and nvidia / "cuda_runtime"]
    return next((str(home) for home in candidates if home and (Path(home) / "include" / "cuda_fp16.h").is_file()), None)


class Machine:
    """The unpacked programs and the environment they run in."""

    def __init__(self, pack: Path, work: Path, out: Path):
        self.work, self.out = work, out
        self.home = work / "pack"
        if not (self.home / "about.json").is_file():
            begun = time.monotonic()
            with tarfile.open(pack) as tar:
                tar.extractall(self.home, filter="data")
            print(f"unpacked in {time.monotonic() - begun:.0f} s", flush=True)
        self.about = json.loads((self.home / "about.json").read_text())
        # libmlx.so looks for NVIDIA's packages beside its own.
        link, nvidia = self.home / "site" / "nvidia", find_packages("nvidia")
        if nvidia is not None and not link.exists():
            link.symlink_to(nvidia)
        self.environment = os.environ | {
            "PYTHONPATH": f"{self.home / 'site'}",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "MLX_PTX_CACHE_DIR": str(work / "ptx"),
        }
        if home := cuda_home():
            self.environment["CUDA_HOME"] = home

    @property
    def device(self) -> str:
        return "gpu" if self.about["mlx"] == "cuda" else "cpu"

    def run(self, *command: object, timeout: float | None = None, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(part) for part in command], env=self.environment | environment, timeout=timeout,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def program(self, name: str) -> Path:
        return self.home / "bin" / name

    def write(self, name: str, value: dict) -> None:
        (self.out / name).write_text(json.dumps(value, indent=1) + "\n")


def describe(machine: Machine) -> dict:
    """What the figures were taken on."""
    try:
        query = "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.draw"
        gpu = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True)
        gpu_line = gpu.stdout.strip()
    except FileNotFoundError:
        gpu_line = None
    return {"gpu": gpu_line, "processors": os.cpu_count(), "system": platform.platform(),
            "python": platform.python_version(), "pack": machine.about}


def check(machine: Machine) -> bool:
    facts = describe(machine)
    facts["cuda_home"] = machine.environment.get("CUDA_HOME")
    libraries = machine.run("ldd", machine.home / "site/mlx/lib/libmlx.so", machine.program("exact"))
    missing = (line.split()[0] for line in libraries.stdout.splitlines() if "not found" in line)
    facts["missing_libraries"] = sorted(set(missing))
    probe = ("import mlx.core as mx, mlx_lm.generate; a = mx.random.normal((64, 64)); "
             "q = mx.quantize(a, group_size=64, bits=4); mx.eval(mx.quantized_matmul(a, *q)); "
             "print(mx.default_device())")
    loaded = machine.run(sys.executable, "-c", probe)
    facts["python_mlx"] = loaded.stdout.strip()[-2000:]
    programs = machine.run(machine.program("exact"), "--list")
    facts["programs"] = programs.stdout.strip()[-2000:]
    good = not facts["missing_libraries"] and loaded.returncode == 0 and programs.returncode == 0
    machine.write("check.json", facts | {"good": good})
    print(json.dumps(facts, indent=1))
    return good


def parity(machine: Machine, seconds: float) -> bool:
    """The suite against a reference made here, on the same libmlx.so."""
    begun, fixtures = time.monotonic(), machine.work / "fixtures"
    # Products of f32 would else be taken in 19 bits, and the last bit of a weight make no difference.
    precise = {"MLX_ENABLE_TF32": "0"}
    make = [sys.executable, EXACT / "make.py", "--device", machine.device, "--skip-unsupported"]
    made = machine.run(*make, "--out", fixtures, "--seconds", seconds * 0.4, **precise)
    print(made.stdout[-6000:], flush=True)
    names = sorted(path.parent.relative_to(fixtures).as_posix() for path in fixtures.glob("*/*/calls.json"))
    result = describe(machine) | {"good": False, "fixtures": names, "make": made.stdout}
    machine.write("parity.json", result)
    if not names:
        return False
    # A reference that differs from itself cannot be equalled: told apart from a difference of ours.
    again = machine.work / "fixtures-again"
    machine.run(*make, "--out", again, "--seconds", seconds * 0.15, *names, **precise)
    repeated = [name for name in names if (again / name / "calls.json").is_file()]
    unstable = [name for name in repeated
                if (again / name / "calls.json").read_bytes() != (fixtures / name / "calls.json").read_bytes()]
    left = max(60.0, 1.1 * seconds - (time.monotonic() - begun))
    suite = machine.run("timeout", left, machine.program("exact"), "--nocapture", "--test-threads=1",
                        LINNET_EXACT_FIXTURES=str(fixtures), **precise)
    print(suite.stdout[-6000:])
    good = suite.returncode == 0 and made.returncode == 0
    machine.write("parity.json", result | {
        "good": good, "repeated": repeated, "unstable_reference": unstable, "seconds": time.monotonic() - begun,
        "suite_exit": suite.returncode, "suite": suite.stdout})
    print(f"parity: {len(names)} fixtures, reference unstable in {unstable or 'none'}, maker exit {made.returncode}, "
          f"suite exit {suite.returncode}")
    return good


class Arm:
    """A contender: loads one model and answers lines of JSON."""

    def __init__(self, name: str, machine: Machine, command: list):
        self.name = name
        self.log = open(machine.out / f"{name}.log", "a")
        self.process = subprocess.Popen([str(part) for part in command], env=machine.environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.about = self._read()["ready"]

    def _read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended (exit {self.process.wait()}); its messages are in {self.log.name}")
        return json.loads(line)

    def answer(self, prompt: list[int], generate: int) -> dict:
        self.process.stdin.write(json.dumps({"prompt": prompt, "generate": generate}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.log.close()


# name, prompt tokens, tokens to generate
WORKS = [
    ("prefill 512", 512, 1),
    ("prefill 2048", 2048, 1),
    ("decode 256 after 32", 32, 257),
    ("decode 128 after 2048", 2048, 129),
]
TINY_WORKS = [("prefill 64", 64, 1), ("decode 16 after 8", 8, 17)]


def bench(machine: Machine, shapes: list[str], rounds: int, seconds: float) -> bool:
    begun, results = time.monotonic(), []
    for shape in shapes:
        recipe = json.loads((machine.home / "shapes" / f"{shape}.json").read_text())
        model = machine.work / "models" / shape
        if not (model / "config.json").is_file():
            model.mkdir(parents=True, exist_ok=True)
            made = machine.run(machine.program("make_model"), machine.home / "shapes" / f"{shape}.json", model)
            if made.returncode != 0:
                sys.exit(f"make_model failed: {made.stdout}")
        reference = [sys.executable, ROOM / "arm_mlx_lm.py", model]
        arms = [Arm("linnet", machine, [machine.program("linnet-arm"), model]), Arm("mlx_lm", machine, reference)]
        # A reference that differs from itself cannot be equalled: a second one, not timed, shows where it does.
        control = Arm("control", machine, reference)
        vocabulary, draw = recipe["config"]["vocab_size"], random.Random(recipe["seed"])
        before = describe(machine)
        runs = []
        for name, length, count in TINY_WORKS if shape == "tiny" else WORKS:
            for number in range(-1, rounds):
                if time.monotonic() - begun > seconds and number >= 3:
                    break
                prompt = [draw.randrange(vocabulary) for _ in range(length)]
                # Round -1 warms up. Who goes first changes from round to round.
                for arm in arms if number % 2 == 0 else arms[::-1]:
                    answer = arm.answer(prompt, count)
                    runs.append({"work": name, "round": number, "arm": arm.name, "prompt_tokens": length} | answer)
                answer = control.answer(prompt, count)
                runs.append({"work": name, "round": number, "arm": "control", "prompt_tokens": length} | answer)
        results.append({"shape": shape, "why": recipe["why"], "arms": {arm.name: arm.about for arm in arms},
                        "before": before, "after": describe(machine), "runs": runs})
        for arm in [*arms, control]:
            arm.close()
        # Without folders of this machine: the file is published.
        command = f"tests/gpu/run.py --out RESULTS --shapes {','.join(shapes)} --rounds {rounds} --seconds {seconds:g} bench"
        machine.write("bench.json", {"command": command, "models": results})
        print(f"bench: {shape} done after {time.monotonic() - begun:.0f} s", flush=True)
    sys.path.insert(0, str(ROOM))
    from report import table

    print(table(results))
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("stages", nargs="+", choices=["check", "parity", "bench"])
    parser.add_argument("--pack", type=Path, default=ROOM.parent.parent / "target" / "gpu" / "pack.tar.xz")
    parser.add_argument("--work", type=Path, default=Path("/tmp/linnet-gpu"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--shapes", default="minicpm5-1b,llama-8b")
    parser.add_argument("--seconds", type=float, default=480, help="about how long parity and bench may take, each")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    machine = Machine(arguments.pack, arguments.work, arguments.out)
    good = True
    for stage in arguments.stages:
        if stage == "check":
            good = check(machine)
        elif stage == "parity":
            good = parity(machine, arguments.seconds) and good
        else:
            good = bench(machine, arguments.shapes.split(","), arguments.rounds, arguments.seconds) and good
        if stage == "check" and not good:
            break
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
