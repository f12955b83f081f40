"""Dropped clients, memory and the end of the process."""

import signal
import sys

import httpx
import pytest
from conftest import MODEL, Server

DROPS = 100
# Allocator noise and the KV pages of requests still being torn down.
GROWTH_KIB = 8 * 1024


def drop_after_three_tokens(http: httpx.Client, number: int) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Tell me a very long story about the number {number}."}],
        "stream": True,
        "max_tokens": 400,
    }
    seen = 0
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: ") and '"content":"' in line.replace('": "', '":"'):
                seen += 1
            if seen == 3:
                break
    assert seen == 3


def test_a_hundred_dropped_streams_leave_nothing_behind(server):
    # A connection of its own each time: leaving the block closes the socket, as a client that went away does.
    def drop(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            drop_after_three_tokens(http, number)

    def drop_all(first: int) -> int:
        """Forgets what was computed before, which is kept on purpose, drops streams and returns the memory then."""
        assert httpx.post(f"{server.url}/admin/cache/clear", timeout=10).status_code == 200
        for number in range(DROPS):
            drop(first + number)
        server.wait_until_idle(1.0)
        return server.resident_kib() if sys.platform == "linux" else 0

    before = drop_all(0)
    growth = drop_all(DROPS) - before
    assert growth < max(GROWTH_KIB, before * 0.03), f"{growth} KiB more than the {before} KiB before"


def test_dropped_streams_at_once_leave_nothing_behind(server):
    bodies = []
    clients = [httpx.Client(base_url=server.url, timeout=60) for _ in range(8)]
    try:
        for number, http in enumerate(clients):
            request = http.build_request(
                "POST",
                "/v1/chat/completions",
                json={
                    "model": MODEL,
                    "messages": [{"role": "user", "content": f"Tell me a very long story, number {number}."}],
                    "stream": True,
                    "max_tokens": 400,
                },
            )
            bodies.append(http.send(request, stream=True))
        assert all(body.status_code == 200 for body in bodies)
        assert server.active_requests() > 0
    finally:
        for http in clients:
            http.close()
    server.wait_until_idle(1.0)


def test_a_dropped_whole_answer_stops_too(server):
    body = {"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 1500}
    # A fast machine writes a whole story in half a second.
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url, timeout=0.1) as http:
        http.post("/v1/chat/completions", json=body)
    server.wait_until_idle(1.0)


def test_a_dropped_long_prefill_stops(server):
    words = "alpha beta gamma delta " * 400
    body = {"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": words}], "stream": True, "max_tokens": 400}
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url, timeout=0.2) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            response.read()
    # A step of prefill is not interrupted half-way, so this takes a little longer than a dropped decode.
    server.wait_until_idle(3.0)


def test_the_server_ends_when_told_to_even_with_a_stream_open(binary, home):
    for number in (signal.SIGTERM, signal.SIGINT):
        server = Server(binary, home, home.parent / f"ends-{number.name}.log")
        try:
            server.wait_until_ready()
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": "Tell me a very long story."}],
                "stream": True,
                "max_tokens": 1500,
            }
            with httpx.Client(base_url=server.url, timeout=30) as http:
                with http.stream("POST", "/v1/chat/completions", json=body) as response:
                    next(response.iter_lines())
                    server.process.send_signal(number)
                    assert server.process.wait(timeout=10) == 0
        finally:
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()


def test_a_taken_port_is_named(binary, home, server):
    import os
    import subprocess

    second = subprocess.run(
        [binary, "serve", "--port", str(server.port)],
        env=os.environ | {"LINNET_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode not in (0, 101)
    assert str(server.port) in second.stderr
