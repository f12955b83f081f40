"""Makes the fixtures of Whisper's decoding again: `make speech-fixtures`.

openai/whisper's own code says which tokens its rules leave, which texts its beam search finds, and which segments and words
its loop over a recording gives, where the network's answers are made up.
"""

import importlib
import itertools
import json
import random
import sys
import types

import numpy as np

import arrays
import sources

OUT = sources.ROOT / "engine" / "speech" / "tests" / "fixtures" / "decoding.json"
EOT, SOT, TIMESTAMP_BEGIN, N_VOCAB = 50257, 50258, 50364, 51865


def reference():
    """The modules of openai/whisper, without the ones that need a network."""
    arrays.install()
    package = sys.modules["whisper"] = types.ModuleType("whisper")
    package.__path__ = [str(sources.openai_whisper())]
    model = sys.modules["whisper.model"] = types.ModuleType("whisper.model")
    model.disable_sdpa = arrays.NoGrad
    names = ("decoding", "timing", "tokenizer", "transcribe", "utils")
    return types.SimpleNamespace(**{name: importlib.import_module(f"whisper.{name}") for name in names})


# Rules.


def filters(whisper) -> list[dict]:
    """What is left of a small vocabulary: 24 texts, the end, 7 special tokens, 32 times."""
    chance = random.Random(1)
    eot, no_timestamps, begin, length = 24, 31, 32, 64
    tokenizer = types.SimpleNamespace(
        eot=eot, no_timestamps=no_timestamps, timestamp_begin=begin, encode=lambda text: [3]
    )
    cases = []
    for index in range(60):
        prompt = 3
        sampled = [begin + chance.randrange(4)] if index % 6 else []
        while sampled and len(sampled) < index // 6 + 1:
            # Anything that the rules themselves allow so far.
            sampled.append(chance.choice([chance.randrange(eot), min(begin + len(sampled) * 2, length - 1)]))
        logits = [chance.randrange(-64, 64) for _ in range(length)]
        if index % 4 == 3:
            # Times that are together likelier than any text.
            logits = [logit // 4 for logit in logits]
        row = arrays.tensor(np.array([logits], np.float32) / 16)
        tokens = arrays.tensor(np.array([[25, 26, 27, *sampled]]))
        rules = whisper.decoding
        for rule in (
            rules.SuppressBlank(tokenizer, prompt),
            rules.SuppressTokens([5, 6, *range(eot + 1, no_timestamps)]),
            rules.ApplyTimestampRules(tokenizer, prompt, 6),
        ):
            rule.apply(row, tokens)
        left = [int(token) for token in np.flatnonzero(np.isfinite(np.asarray(row[0])))]
        cases.append({"sixteenths": logits, "sampled": sampled, "left": left})
    return cases


# Beam search.


def following(seed: int, prefix: list[int], count: int) -> np.ndarray:
    """Logits after some tokens, from a linear congruential generator that they seed; the same in the tests."""
    state = seed
    for token in prefix:
        state = (1664525 * (state + token) + 1013904223) % 2**32
    logits = np.empty(count, np.float32)
    for index in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        logits[index] = (state >> 20) / 512
    # Texts end now and then.
    logits[-1] += 2
    return logits


def beams(whisper) -> list[dict]:
    """What beam search finds among 12 tokens, of which the last is the end."""
    cases = []
    kinds = ((1, 1.0, 8), (2, 1.0, 12), (3, 2.0, 12), (5, 1.0, 10), (5, 0.4, 20), (5, 1.0, 2), (4, 3.0, 6))
    for seed, (size, patience, steps) in itertools.product((1, 2, 3), kinds):
        inference = types.SimpleNamespace(rearrange_kv_cache=lambda _: None)
        decoder = whisper.decoding.BeamSearchDecoder(size, 11, inference, patience)
        tokens, sums = arrays.tensor(np.zeros((size, 1), np.int64)), arrays.tensor(np.zeros(size, np.float32))
        for _ in range(steps):
            logits = np.stack([following(seed, row[1:], 12) for row in tokens.tolist()])
            tokens, completed = decoder.update(tokens, arrays.tensor(logits), sums)
            if completed:
                break
        found, scores = decoder.finalize(tokens[None], sums[None])
        texts = [[token for token in text.tolist()[1:] if token != 11] for text in found[0]]
        chosen = {}
        for penalty in (None, 0.0, 0.6, 1.0):
            ranker = whisper.decoding.MaximumLikelihoodRanker(penalty)
            # A text of no tokens has no mean.
            lists = [[text or [0] for text in texts]]
            chosen[str(penalty)] = texts[ranker.rank(lists, scores)[0]]
        cases.append(
            {"seed": seed, "size": size, "patience": patience, "steps": steps, "texts": texts, "sums": scores[0], "chosen": chosen}
        )
    return cases


# The loop over a recording.


# Tokens of several bytes.
SEVERAL = {256: b'."', 257: b"...", 258: b" --", 259: b"\xe6\x97", 260: b"\xe2\x82 b"}


def encode(text: str) -> list[int]:
    """Bytes, and some longer tokens."""
    tokens = list(text.encode())
    for token, several in SEVERAL.items():
        at = 0
        while at + len(several) <= len(tokens):
            if tokens[at : at + len(several)] == list(several):
                tokens[at : at + len(several)] = [token]
            at += 1
    return tokens


class Bytes:
    """A vocabulary whose tokens of text are bytes, with few exceptions."""

    eot_token = EOT

    def __init__(self, languages):
        names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages)]
        names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
        self.ids = {name: EOT + index for index, name in enumerate(names)}
        self.ids |= {f"<|{index * 0.02:.2f}|>": TIMESTAMP_BEGIN + index for index in range(1501)}
        self.names = {token: name.encode() for name, token in self.ids.items()}
        self.special_tokens_set = set(self.ids)

    def encode_single_token(self, name):
        return self.ids[name]

    def encode(self, text):
        return encode(text)

    def decode(self, tokens):
        several = SEVERAL | self.names
        pieces = (bytes([token]) if token < 256 else several[token] for token in tokens)
        return b"".join(pieces).decode(errors="replace")


def looks(tokens: list[int], heads: int = 1, positions: int = 1500) -> np.ndarray:
    """Scores of cross attention: each token looks at a part of its own, long or short, with some noise; so in the tests."""
    scores = np.empty((heads, len(tokens), positions), np.float32)
    begin = 0
    for row, token in enumerate(tokens):
        at = np.arange(positions, dtype=np.uint64)
        scores[:, row] = (((row * 2654435761 + at * 40503) % 2**32) >> 28) / 16
        width = 0 if token >= SOT and row < 3 else 2 + token * 7 % 9
        scores[:, row, begin : begin + width] += 7
        begin += width
    return scores


class Network:
    """Answers each window with what the script says, and aligns as `looks` says. Words in capitals are improbable."""

    device, is_multilingual, num_languages = "cpu", True, 99

    def __init__(self, whisper, script):
        self.whisper, self.script, self.told, self.hook = whisper, script, [], None
        self.dims = types.SimpleNamespace(n_mels=80, n_audio_ctx=1500, n_text_ctx=448, n_text_layer=1)
        hooks = types.SimpleNamespace(register_forward_hook=self.register)
        self.decoder = types.SimpleNamespace(blocks=[types.SimpleNamespace(cross_attn=hooks)])
        self.alignment_heads = types.SimpleNamespace(indices=lambda: np.array([[0], [0]]))

    def register(self, hook):
        self.hook = hook
        return types.SimpleNamespace(remove=lambda: None)

    def decode(self, _, options):
        self.told.append(list(options.prompt)[-223:])
        tokens = self.script(len(self.told) - 1)
        return self.whisper.decoding.DecodingResult(
            audio_features=None, language="en", tokens=tokens, text="", avg_logprob=-0.01, no_speech_prob=0.01,
            temperature=0.0, compression_ratio=1.0,
        )

    def __call__(self, _, tokens):
        tokens = tokens[0].tolist()
        self.hook(None, None, (None, arrays.tensor(looks(tokens))[None]))
        logits = np.zeros((1, len(tokens), N_VOCAB), np.float32)
        for row, following in enumerate(tokens[1:]):
            if 97 <= following <= 122:
                logits[0, row, following] = 14
        return arrays.tensor(logits)


WORDS = " one two three Four SIX, seven. eight? no! \"so\" ... well... it's (yes) naïve 日本 X A- -b . \"Go.\" he -- said".split(" ")


def answer(chance: random.Random) -> list[int]:
    """Some segments as Whisper writes them."""
    time, tokens = chance.randrange(0, 50), []
    count = chance.randrange(1, 5)
    for index in range(count):
        # Now and then all words are improbable.
        words = WORDS if chance.random() < 0.7 else ["SIX", "X", "A"]
        text = "".join(f" {chance.choice(words)}" for _ in range(chance.randrange(1, 7)))
        end = min(time + chance.randrange(20, 380), 1500)
        tokens += [TIMESTAMP_BEGIN + time, *encode(text)]
        if index + 1 < count or chance.random() < 0.8:
            tokens.append(TIMESTAMP_BEGIN + end)
        if index + 1 < count:
            time = min(end + chance.choice([0, 0, 10, 200]), 1500)
            if time + 20 > 1500:
                break
    if chance.random() < 0.4 and tokens[-1] > EOT:
        # Cut off by the window's end.
        tokens += [tokens[-1], *encode(" and th")]
    return tokens


def transcripts(whisper) -> list[dict]:
    """Recordings with made-up answers, with and without words, and with the guard against what was not spoken."""
    tokenizer = whisper.tokenizer.Tokenizer(
        encoding=Bytes(list(whisper.tokenizer.LANGUAGES)[:99]), num_languages=99, language="en", task="transcribe"
    )
    transcribe = whisper.transcribe
    transcribe.get_tokenizer = lambda *_, **__: tokenizer
    transcribe.pad_or_trim = lambda mel, _: mel
    cases = []
    for index in range(24):
        chance = random.Random(index)
        seconds = chance.choice([7, 29, 31, 64])
        words, threshold = index % 3 > 0, 2.0 if index % 3 == 2 else None
        windows = []

        def script(window):
            while len(windows) <= window:
                windows.append(answer(chance))
            return windows[window]

        network = Network(whisper, script)
        mel = arrays.tensor(np.zeros((1, seconds * 100 + 3000), np.float32))
        transcribe.log_mel_spectrogram = lambda *_, **__: mel
        found = transcribe.transcribe(
            network, None, temperature=0.0, fp16=False, language="en", word_timestamps=words,
            hallucination_silence_threshold=threshold,
        )
        if len(windows) > 60:
            continue
        segments = [
            {
                "seek": segment["seek"],
                "start": float(segment["start"]),
                "end": float(segment["end"]),
                "tokens": segment["tokens"],
                "words": [
                    [word["word"], float(word["start"]), float(word["end"]), round(float(word["probability"]), 6)]
                    for word in segment.get("words", [])
                ],
            }
            for segment in found["segments"]
            if segment["text"]
        ]
        cases.append({
            "seconds": seconds, "words": words, "threshold": threshold, "windows": windows, "told": network.told,
            "segments": segments,
        })
    return cases


def splits(whisper) -> list[dict]:
    """Words of texts, and of tokens that are not whole characters."""
    cases = []
    texts = [encode(" ".join(WORDS)), encode("日本語 is so."), list(b" caf\xc3")]
    texts += [[97, 260, 98, 32], encode(" “Ça va ?” …"), [32, 257, 256, 98, 257]]
    for language in ("en", "ja"):
        tokenizer = whisper.tokenizer.Tokenizer(
            encoding=Bytes(list(whisper.tokenizer.LANGUAGES)[:99]), num_languages=99, language=language, task="transcribe"
        )
        for text in texts:
            words, tokens = tokenizer.split_to_word_tokens([*text, EOT])
            cases.append({"language": language, "tokens": list(text), "words": words[:-1], "lengths": [len(of) for of in tokens[:-1]]})
    return cases


def ratios(whisper) -> list[list]:
    """Compression ratios."""
    texts = ["And so my fellow Americans ask not what your country can do for you", "la " * 50, "né à Zürich 日本"]
    return [[text, whisper.utils.compression_ratio(text)] for text in texts]


def main() -> None:
    whisper = reference()
    made = {
        "filters": filters(whisper), "beams": beams(whisper), "transcripts": transcripts(whisper),
        "splits": splits(whisper), "ratios": ratios(whisper),
    }
    lines = [f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]" for name, cases in made.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print({name: len(cases) for name, cases in made.items()}, OUT.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
