"""Chat and completions as programs use them, through OpenAI's own SDK."""

import json

import pytest
from conftest import MODEL

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def streamed(client, **arguments) -> tuple[str, list]:
    """The joined text of a streamed chat, and its chunks."""
    chunks = list(client.chat.completions.create(model=MODEL, stream=True, **arguments))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks


def test_capital_of_france(client):
    answer = client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=40, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id and answer.created
    usage = answer.usage
    assert usage.prompt_tokens > 5 and usage.completion_tokens > 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_capital_of_france_streamed(client):
    text, chunks = streamed(client, messages=FRANCE, max_tokens=40, temperature=0)
    assert "Paris" in text
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop" and not any(reasons[:-1])
    assert len(chunks) > 3, "tokens must arrive one by one, not all at the end"


def test_stream_equals_non_stream(client):
    for prompt in ("Tell me a short story about a fox.", "Count from one to ten.", "Write a haiku about rain."):
        arguments = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 48, "temperature": 0}
        whole = client.chat.completions.create(model=MODEL, **arguments)
        text, chunks = streamed(client, **arguments)
        assert text == whole.choices[0].message.content
        reason = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
        assert reason == whole.choices[0].finish_reason


def test_stream_on_the_wire_ends_with_done(http):
    body = {"model": MODEL, "messages": FRANCE, "max_tokens": 5, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].split(";")[0] == "text/event-stream"
        lines = [line for line in response.iter_lines() if line]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert all(line.startswith(("data: ", ":")) for line in lines)
    assert not any(json.loads(item).get("usage") for item in data[:-1]), "usage was not asked for"


def test_stream_usage_comes_last_when_asked_for(client):
    _, chunks = streamed(client, messages=FRANCE, max_tokens=8, temperature=0, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    whole = client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=8, temperature=0)
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_max_tokens_is_kept_and_named(client):
    for field in ("max_tokens", "max_completion_tokens"):
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell me a long story."}], temperature=0, **{field: 7}
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 7


def test_stop_strings_never_leak(client):
    arguments = {
        "messages": [{"role": "user", "content": "Tell me a short story about a fox."}],
        "max_tokens": 40,
        "temperature": 0,
    }
    full = client.chat.completions.create(model=MODEL, **arguments).choices[0].message.content
    # Cuts inside words, across spaces and across several tokens, as the model's own text gives them.
    stops = [full[5:6], full[12:16], full[20:31], full[30:37]]
    for stop in stops:
        expected = full[: full.index(stop)]
        for value in (stop, [stop], ["\u2603 never said", stop]):
            whole = client.chat.completions.create(model=MODEL, stop=value, **arguments)
            assert whole.choices[0].message.content == expected
            assert whole.choices[0].finish_reason == "stop"
        text, chunks = streamed(client, stop=stop, **arguments)
        assert text == expected
        assert not any(stop in (chunk.choices[0].delta.content or "") for chunk in chunks if chunk.choices)


def test_a_stop_string_that_only_begins_is_not_swallowed(client):
    arguments = {"messages": FRANCE, "max_tokens": 12, "temperature": 0}
    full = client.chat.completions.create(model=MODEL, **arguments).choices[0].message.content
    never = full[-3:] + "\u2603"
    assert client.chat.completions.create(model=MODEL, stop=never, **arguments).choices[0].message.content == full
    assert streamed(client, stop=never, **arguments)[0] == full


def test_seeds(client):
    def say(seed: int) -> str:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Invent a name for a town."}],
            max_tokens=24,
            temperature=1.2,
            seed=seed,
        )
        return answer.choices[0].message.content

    first = say(1)
    assert say(1) == first
    assert len({first, *(say(seed) for seed in range(2, 6))}) > 1, "the seed must matter"


def test_content_in_parts_is_read_in_order(client):
    parts = [{"type": "text", "text": text} for text in ("What is ", "the capital ", "of France?")]
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=40, temperature=0
    )
    whole = client.chat.completions.create(model=MODEL, messages=FRANCE, max_tokens=40, temperature=0)
    assert answer.usage.prompt_tokens >= whole.usage.prompt_tokens
    assert "Paris" in answer.choices[0].message.content


def test_completions(client):
    arguments = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**arguments)
    assert "Paris" in whole.choices[0].text
    assert whole.object == "text_completion"
    chunks = list(client.completions.create(stream=True, **arguments))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text


# A text that the model goes on repeating, so that its answer is made of characters of several tokens each.
@pytest.mark.parametrize(
    "prompt",
    [
        "\U0001f600" * 12,
        "\U0001f600\U0001f600\U0001f600\n" * 5,
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\n" * 8,
        "한국어 " * 11 + "한국어",
    ],
)
def test_characters_split_over_tokens_never_become_replacement_marks(client, prompt):
    whole = client.completions.create(model=MODEL, prompt=prompt, max_tokens=32, temperature=0).choices[0].text
    assert any(ord(character) > 0x7FF for character in whole), "the continuation holds no wide character to split"
    for limit in range(1, 14):
        arguments = {"model": MODEL, "prompt": prompt, "max_tokens": limit, "temperature": 0}
        text = "".join(
            chunk.choices[0].text for chunk in client.completions.create(stream=True, **arguments) if chunk.choices
        )
        assert "\ufffd" not in text
        assert whole.startswith(text)


def test_models_are_listed(client):
    models = client.models.list().data
    assert models and all(model.object == "model" for model in models)
    named = client.chat.completions.create(model=models[0].id, messages=FRANCE, max_tokens=3)
    assert named.model == models[0].id


def test_requests_at_once_each_get_their_own_answer(client):
    from concurrent.futures import ThreadPoolExecutor

    def ask(prompt: str) -> str:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=24, temperature=0
        )
        return answer.choices[0].message.content

    prompts = [f"What is {number} plus {number}?" for number in range(4)]
    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == alone
