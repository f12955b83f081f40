"""Runs scenarios with mlx-lm's own generators and records every call of the model."""

import copy
import hashlib
import importlib
from contextlib import contextmanager
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import cache as caching

from recipes import Scenario

# The package exports a function of the same name.
reference = importlib.import_module("mlx_lm.generate")


@dataclass
class Call:
    """One call of the model: which sequences, how many tokens of each, and what came out."""

    # [sequence, tokens] per row of the batch.
    rows: list
    # Logits after each row's last token and the tokens chosen from them; None while a prompt is only taken in.
    logits: mx.array | None = None
    tokens: mx.array | None = None


@dataclass
class Recorder:
    """Stands in for the model and notes its calls."""

    model: nn.Module
    rows: list | None = None
    sequence: int | None = None
    calls: list[Call] = field(default_factory=list)

    def __call__(self, inputs: mx.array, cache=None) -> mx.array:
        logits = self.model(inputs, cache=cache)
        rows = self.rows if self.rows is not None else [[self.sequence or 0, inputs.shape[1]]]
        self.calls.append(Call(rows))
        # A generator samples from a call's logits right after it, or never.
        self.pending = logits
        return logits

    def sample(self, logprobs: mx.array) -> mx.array:
        """mlx-lm's greedy choice, noted with the logits it came from."""
        tokens = reference.greedy_sampler(logprobs)
        self.calls[-1].logits = self.pending[:, -1]
        self.calls[-1].tokens = tokens
        return tokens

    def rows_of(self, sequence: int | None) -> None:
        """Says whose calls follow, where one sequence runs alone."""
        self.sequence = sequence

    def tokens_of(self, sequence: int, prompt: list) -> list:
        """A sequence's prompt and what was chosen for it so far."""
        chosen = [token for call in self.calls if call.tokens is not None
                  for (row, _), token in zip(call.rows, call.tokens.tolist()) if row == sequence]
        return prompt + chosen

    def __getattr__(self, name: str):
        # What generators ask a model beside calling it, such as its layers.
        return getattr(self.__dict__["model"], name)


@contextmanager
def rows_named(recorder: Recorder):
    """Lets the recorder know whose rows the batch generator is about to feed."""
    batch, prompts = reference.GenerationBatch, reference.PromptProcessingBatch
    step, prompt = batch._step, prompts.prompt

    def named_step(self):
        recorder.rows = [[uid, 1] for uid in self.uids]
        return step(self)

    def named_prompt(self, tokens):
        recorder.rows = [[uid, len(row)] for uid, row in zip(self.uids, tokens)]
        return prompt(self, tokens)

    batch._step, prompts.prompt = named_step, named_prompt
    try:
        yield
    finally:
        batch._step, prompts.prompt = step, prompt
        recorder.rows = None


def run_alone(recorder: Recorder, scenario: Scenario, prompts: list) -> None:
    kv = scenario.kv or {"bits": None, "group_size": 64, "start": 0}
    caches = []
    for sequence, limit in enumerate(scenario.limits):
        cache, prompt = caching.make_prompt_cache(recorder.model), prompts[sequence]
        if scenario.reuse and (source := scenario.reuse[sequence]):
            cache = taken_over(recorder, scenario, prompts, sequence, caches[source[0]])
            prompt = prompts[sequence][cache[0].offset:]
        recorder.rows_of(sequence)
        steps = reference.generate_step(mx.array(prompt), recorder, max_tokens=limit, prompt_cache=cache,
                                        prefill_step_size=scenario.prefill_step, sampler=recorder.sample,
                                        kv_bits=kv["bits"], kv_group_size=kv["group_size"],
                                        quantized_kv_start=kv["start"])
        for _ in steps:
            pass
        caches.append(cache)
    recorder.rows_of(None)


def taken_over(recorder: Recorder, scenario: Scenario, prompts: list, sequence: int, cache: list) -> list:
    """A copy of another sequence's cache, cut to the tokens that are wanted, which become the beginning of the prompt."""
    source, tokens = scenario.reuse[sequence]
    cache = copy.deepcopy(cache)
    held = cache[0].offset
    if tokens is not None:
        trimmed = caching.trim_prompt_cache(cache, held - tokens)
        assert trimmed == held - tokens, "a cache that cannot be cut"
    else:
        scenario.reuse[sequence] = [source, held]
    tokens = cache[0].offset
    prompts[sequence] = recorder.tokens_of(source, prompts[source])[:tokens] + prompts[sequence]
    return cache


def run_batch(recorder: Recorder, scenario: Scenario, prompts: list) -> None:
    generator = reference.BatchGenerator(recorder, sampler=recorder.sample, completion_batch_size=4,
                                         prefill_batch_size=4, prefill_step_size=scenario.prefill_step)
    unfinished, turn = len(prompts), 0
    with rows_named(recorder):
        while unfinished:
            joining = [index for index, join in enumerate(scenario.joins) if join == turn]
            if joining:
                caches = [None] * len(joining)
                new = [prompts[index] for index in joining]
                for place, index in enumerate(joining):
                    if scenario.reuse and (source := scenario.reuse[index]):
                        held, _ = generator.extract_cache([source[0]])[source[0]]
                        caches[place] = taken_over(recorder, scenario, prompts, index, held)
                        new[place] = prompts[index][caches[place][0].offset:]
                generator.insert(new, [scenario.limits[index] for index in joining], caches)
            _, responses = generator.next()
            unfinished -= sum(response.finish_reason is not None for response in responses)
            turn += 1
    generator.close()


def record(model: nn.Module, scenario: Scenario, prompts: list) -> list[Call]:
    """All calls of the model in a scenario, evaluated. Prompts that begin with another sequence's tokens are completed."""
    recorder = Recorder(model)
    (run_alone if scenario.joins is None else run_batch)(recorder, scenario, prompts)
    mx.eval([(call.logits, call.tokens) for call in recorder.calls if call.logits is not None])
    return recorder.calls


def digest(row: np.ndarray) -> str:
    """The first 8 bytes of SHA-256 over a row of f32, little end first; f16 and bf16 are exact in f32."""
    return hashlib.sha256(row.astype("<f4").tobytes()).hexdigest()[:16]


def to_json(scenario: Scenario, prompts: list, calls: list[Call], kept_calls: int) -> tuple[dict, dict]:
    """What a fixture stores of a scenario: its calls, and the whole rows of some of them by name."""
    with_logits = [index for index, call in enumerate(calls) if call.logits is not None]
    places = np.unique(np.linspace(0, len(with_logits) - 1, kept_calls).round().astype(int))
    kept = {with_logits[place] for place in places}
    listed, tensors = [], {}
    for index, call in enumerate(calls):
        entry: dict = {"rows": call.rows}
        if call.logits is not None:
            logits = np.array(call.logits.astype(mx.float32))
            entry["tokens"] = call.tokens.tolist()
            entry["logits"] = [digest(row) for row in logits]
            if index in kept:
                tensors[f"{scenario.name}.{index}"] = logits
        listed.append(entry)
    head = {"name": scenario.name, "kv": scenario.kv, "prompts": prompts}
    if scenario.reuse:
        head["reuse"] = scenario.reuse
    return head | {"calls": listed}, tensors
