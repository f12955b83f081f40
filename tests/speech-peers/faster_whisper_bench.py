"""Times faster-whisper: MODEL KIND THREADS BEAM LANGUAGE FILE, then as whisper_bench.c."""

import sys
import time

import soundfile
from faster_whisper import WhisperModel


def main() -> None:
    model, kind, threads, beam, language, file = sys.argv[1:]
    loaded = WhisperModel(model, device="cpu", compute_type=kind, cpu_threads=int(threads))
    samples, _ = soundfile.read(file, dtype="float32")
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        segments, _ = loaded.transcribe(samples, language=language, beam_size=int(beam), temperature=0.0)
        text = "".join(segment.text for segment in segments)
        print(f"{time.perf_counter() - begin:.6f}\t{text}", flush=True)


if __name__ == "__main__":
    main()
