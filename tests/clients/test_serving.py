"""A server under load: many clients of which some leave, several models, what it says about itself."""

import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from conftest import Server

REQUESTS = 500
# Until threads, allocator and caches have what they need.
WARM_UP = 300
GRAIN_KIB = 1024
ROUNDS = 3
CLIENTS = 16
MARKER = "zq7marker"


def small_model(folder: Path, seed: int, inner: int = 128, hidden: int = 64, layers: int = 2, context: int = 512) -> None:
    """Writes a llama of random weights in MLX's layout, with a tokenizer of bytes: loads and answers in no time."""
    import struct

    folder.mkdir(parents=True)
    generator = random.Random(seed)
    vocabulary = 257
    heads, kv_heads = 4, 2
    head_dim = hidden // heads
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
        "num_hidden_layers": layers, "intermediate_size": inner, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-5, "vocab_size": vocabulary,
        "max_position_embeddings": context, "tie_word_embeddings": True, "eos_token_id": 256, "bos_token_id": 256,
    }
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {
            at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (hidden, hidden), at + "self_attn.o_proj.weight": (hidden, hidden),
            at + "self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
            at + "self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
            at + "mlp.gate_proj.weight": (inner, hidden), at + "mlp.up_proj.weight": (inner, hidden),
            at + "mlp.down_proj.weight": (hidden, inner),
        }
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        start = len(data)
        if len(shape) == 1:
            data += struct.pack("<f", 1.0) * count
        else:
            # Large ones repeat a block whose length divides none of their rows.
            block = struct.pack("<4093f", *(generator.gauss(0, 0.08) for _ in range(4093)))
            data += (block * (4 * count // len(block) + 1))[: 4 * count]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    # GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {byte: chr(byte) for byte in printable}
    names |= {byte: chr(0x100 + place) for place, byte in enumerate(b for b in range(256) if b not in names)}
    # Split into words, as real ones: the tokenizer remembers each piece, and whole prompts would look like a leak.
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 256, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {names[byte]: byte for byte in range(256)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<end>"}))
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def small_home(tmp_path_factory) -> Path:
    """A home with three small models."""
    home = tmp_path_factory.mktemp("home")
    for seed, name in enumerate(("small-a", "small-b", "small-c")):
        # The first one is large enough for five in a hundred of the process to be more than an allocator's whim.
        small_model(home / "models" / name, seed, inner=2048 if name == "small-a" else 128)
    return home


@pytest.fixture
def serve(binary, small_home, tmp_path):
    """Starts servers of the small models, each test with a disk cache of its own, and ends them."""
    servers = []

    def start(*extra: str, **options) -> Server:
        log = tmp_path / f"server-{len(servers)}.log"
        own = [] if "--ssd-cache-dir" in extra else ["--ssd-cache-dir", str(tmp_path / "cache")]
        arguments = [*own, *extra]
        server = Server(binary, small_home, log, arguments, **options)
        servers.append(server)
        server.wait_until_ready()
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.stop()


def ask(url: str, model: str, **fields) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4} | fields
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def one_client(url: str, number: int) -> str:
    """One request of the soak: of some length, streamed or not, read to its end or left half-way."""
    choice = random.Random(number)
    words = " ".join(choice.choice(("alpha", "beta", "gamma", "delta")) for _ in range(choice.randrange(2, 50)))
    body = {
        "model": "small-a",
        "messages": [{"role": "user", "content": words}],
        "max_tokens": choice.randrange(1, 120),
        "stream": choice.random() < 0.7,
        "seed": number,
    }
    leaves_after = choice.randrange(1, 12) if choice.random() < 0.4 else None
    with httpx.Client(base_url=url, timeout=60) as http:
        if not body["stream"]:
            if leaves_after is None:
                assert http.post("/v1/chat/completions", json=body).status_code == 200
                return "whole"
            http.timeout = httpx.Timeout(60, read=choice.random() / 20)
            try:
                http.post("/v1/chat/completions", json=body)
            except httpx.ReadTimeout:
                return "left"
            return "whole"
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            for place, line in enumerate(response.iter_lines()):
                if leaves_after is not None and place >= leaves_after:
                    return "left"
            assert line == "" or line == "data: [DONE]"
            return "streamed"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory as Linux tells it")
def test_five_hundred_clients_of_which_some_leave_take_no_memory_with_them(serve):
    # A small cache, so that it is full before the measurement begins and what grows afterwards is a leak.
    server = serve("--model", "small-a", "--max-queued", "1000", "--cache-memory", "1MB", "--ssd-cache", "0")

    def soak(numbers: range) -> list:
        with ThreadPoolExecutor(CLIENTS) as clients:
            return list(clients.map(lambda number: one_client(server.url, number), numbers))

    soak(range(10_000, 10_000 + WARM_UP))
    server.wait_until_idle(5)
    # A leak grows with every round; what an allocator keeps for threads that met in a new order comes to an end.
    sizes = [server.resident_kib()]
    for round_number in range(ROUNDS):
        outcomes = soak(range(round_number * REQUESTS, (round_number + 1) * REQUESTS))
        server.wait_until_idle(5)
        sizes.append(server.resident_kib())
        assert {outcomes.count(kind) > 50 for kind in ("whole", "streamed", "left")} == {True}, outcomes
        # A twentieth of a server with a tiny model is less than what an allocator takes at a time.
        if sizes[-1] <= sizes[-2] + max(sizes[-2] * 0.05, GRAIN_KIB):
            break
    else:
        pytest.fail(f"every {REQUESTS} requests take memory: {sizes} KiB")
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'linnet_requests_total{model="small-a",outcome="cancelled"}' in metrics
    assert 'outcome="error"' not in metrics, metrics


def test_models_come_when_they_are_named_and_leave_when_others_need_the_room(serve):
    server = serve("--idle-unload", "0", "--kv-memory", "10MB", "--memory", "1GB")
    listed = {card["id"]: card for card in httpx.get(f"{server.url}/v1/models").json()["data"]}
    assert set(listed) == {"small-a", "small-b", "small-c"}
    assert not any(card["loaded"] for card in listed.values())
    assert all(card["linnet"]["state"] == "on_disk" and card["linnet"]["size_on_disk"] > 1000 for card in listed.values())
    for name in ("small-a", "small-b"):
        assert ask(server.url, name).json()["model"] == name
    stats = httpx.get(f"{server.url}/stats").json()
    assert [model["id"] for model in stats["models"]] == ["small-a", "small-b"]
    assert stats["process"]["memory_bytes"] > 1_000_000
    # Without a default model a request must say which one it means.
    nameless = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert nameless.status_code == 400 and "small-c" in nameless.json()["error"]["message"]
    # A folder is not a name, even if a model lies in it.
    for path in ("../models/small-a", "./small-a", str(server.home / "models" / "small-a")):
        assert ask(server.url, path).status_code == 404, path
    pinned = httpx.post(f"{server.url}/admin/models/pin", json={"model": "small-a"}).json()
    assert pinned["linnet"]["pinned"] is True
    gone = httpx.post(f"{server.url}/admin/models/unload", json={"model": "small-b"}).json()
    assert gone["loaded"] is False


def test_what_does_not_fit_is_refused_with_the_figures_and_harms_nobody(serve):
    # Room for two of the models, each with its conversations.
    server = serve("--kv-memory", "300MB", "--memory", "700MB")
    for name in ("small-a", "small-b", "small-c", "small-a"):
        answer = ask(server.url, name)
        assert answer.status_code == 200, answer.text
    residency = httpx.get(f"{server.url}/stats").json()["residency"]
    assert residency["evictions"] >= 1 and residency["used_bytes"] <= residency["budget_bytes"], residency
    for name in ("small-a", "small-b"):
        httpx.post(f"{server.url}/admin/models/pin", json={"model": name})
    refused = ask(server.url, "small-c")
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "insufficient_memory"
    message = refused.json()["error"]["message"]
    assert "it needs 300.4 MB" in message and "pinned" in message and "MB" in message, message
    assert ask(server.url, "small-a").status_code == 200


def test_a_model_that_nobody_uses_is_unloaded(serve):
    server = serve("--idle-unload", "500ms")
    assert ask(server.url, "small-a").status_code == 200
    deadline = time.monotonic() + 10
    while httpx.get(f"{server.url}/v1/models/small-a").json()["loaded"]:
        assert time.monotonic() < deadline, "still loaded"
        time.sleep(0.05)
    assert ask(server.url, "small-a").status_code == 200


def test_nothing_that_was_written_is_in_the_log_at_its_loudest(serve):
    server = serve("--model", "small-a", environment={"LINNET_LOG": "trace"})
    messages = [{"role": "system", "content": MARKER}, {"role": "user", "content": f"Say {MARKER}."}]
    headers = {"x-session-affinity": MARKER, "authorization": f"Bearer {MARKER}"}
    with httpx.Client(base_url=server.url, timeout=60, headers=headers) as http:
        for path, body in (
            ("/v1/chat/completions", {"model": "small-a", "messages": messages, "max_tokens": 8}),
            ("/v1/chat/completions", {"model": "small-a", "messages": messages, "max_tokens": 8, "stream": True}),
            ("/v1/chat/completions", {"model": "small-a", "messages": messages, "session_id": MARKER, "stop": [MARKER]}),
            ("/v1/chat/completions", {"model": MARKER, "messages": messages}),
            ("/v1/chat/completions", {"messages": messages, "temperature": MARKER}),
            ("/v1/completions", {"model": "small-a", "prompt": MARKER, "max_tokens": 8}),
            ("/v1/completions", {"model": "small-a", "prompt": MARKER * 1000}),
            ("/admin/models/load", {"model": MARKER}),
            ("/admin/cache/session/close", {"session_id": MARKER}),
            (f"/{MARKER}", {}),
        ):
            http.post(path, json=body)
        http.post("/v1/completions", content=b'{"prompt": "' + MARKER.encode())
        for path in ("/stats", "/metrics"):
            assert MARKER not in http.get(path).text.lower(), path
    server.stop()
    log = server.log.read_text().lower()
    assert "answer finished" in log
    assert [line for line in log.splitlines() if MARKER in line] == []


def test_answers_that_run_may_finish_when_the_server_is_told_to_end(serve):
    server = serve("--model", "small-a", "--drain", "20s")
    seen = []

    def read() -> None:
        body = {"model": "small-a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 300, "stream": True}
        with httpx.Client(base_url=server.url, timeout=60) as http:
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                seen.extend(line for line in response.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    while len(seen) < 3:
        time.sleep(0.01)
    assert server.stop() == 0
    reader.join()
    assert seen[-1] == "data: [DONE]" and "error" not in seen[-2]


def long_answer(url: str, number: int) -> dict:
    """An answer to a prompt of some hundred tokens; the same number is the same prompt."""
    messages = [{"role": "user", "content": f"{number}: " + "alpha beta gamma delta " * 12}]
    answer = ask(url, "small-a", messages=messages, temperature=0)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def ssd_cache(url: str) -> dict:
    return httpx.get(f"{url}/stats").json()["models"][0]["ssd_cache"]


def test_what_was_flushed_is_found_after_a_restart(serve):
    server = serve("--model", "small-a")
    first = long_answer(server.url, 1)
    assert cached(first) == 0 and cached(long_answer(server.url, 1)) > 100
    flushed = httpx.post(f"{server.url}/admin/cache/flush")
    assert flushed.status_code == 200, flushed.text
    body = flushed.json()
    assert body["durable"] is True and body["entries"] > 0 and body["longest_durable_prefix_tokens"] > 100
    assert ssd_cache(server.url)["state"] == "ready"
    server.stop()
    again = serve("--model", "small-a")
    second = long_answer(again.url, 1)
    assert cached(second) > 100
    assert second["choices"][0]["message"] == first["choices"][0]["message"]


def test_a_session_is_known_until_it_is_closed(serve):
    server = serve("--model", "small-a")
    messages = [{"role": "user", "content": "alpha beta gamma delta " * 12}]
    for fields in ({"session_id": "one", "prompt_cache_key": "two"}, {"prompt_cache_key": "three"}):
        assert ask(server.url, "small-a", messages=messages, **fields).status_code == 200
    close = f"{server.url}/admin/cache/session/close"
    answers = {name: httpx.post(close, json={"session_id": name}).json()["closed"] for name in ("one", "two", "three")}
    assert answers == {"one": True, "two": False, "three": True}
    assert httpx.post(close, json={"session_id": "one"}).json() == {"closed": False}


def test_a_cache_folder_that_cannot_be_used_leaves_memory_alone_to_work(serve, tmp_path):
    # A file stands where the folder should be; permissions would not stop a server that runs as root.
    (tmp_path / "taken").write_text("not a folder")
    server = serve("--model", "small-a", "--ssd-cache-dir", str(tmp_path / "taken"))
    long_answer(server.url, 1)
    assert cached(long_answer(server.url, 1)) > 100
    state = ssd_cache(server.url)
    assert state["state"] == "degraded" and "cache directory" in state["problem"], state
    assert httpx.post(f"{server.url}/admin/cache/flush").status_code == 503
    assert 'linnet_ssd_cache_degraded{model="small-a"} 1' in httpx.get(f"{server.url}/metrics").text
    assert "warning: the cache on disk" in server.log.read_text()


def forbid_large_files() -> None:
    """In the server's process, before it begins: no file may grow beyond a few blocks, as on a full disk."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 * 1024, 128 * 1024))


@pytest.mark.skipif(sys.platform != "linux", reason="relies on how Linux limits files")
def test_a_disk_that_becomes_full_leaves_memory_alone_to_work(serve):
    server = serve("--model", "small-a", before=forbid_large_files)
    deadline = time.monotonic() + 20
    number = 0
    while (state := ssd_cache(server.url))["state"] == "ready":
        assert time.monotonic() < deadline, state
        number += 1
        long_answer(server.url, number)
    assert "free some space" in state["problem"], state
    assert cached(long_answer(server.url, number)) > 100
    assert httpx.post(f"{server.url}/admin/cache/flush").status_code == 503
    assert httpx.get(f"{server.url}/health").json()["status"] == "ok"
