"""Starts the real binary with the starter model for the tests that talk to it.

LINNET_BINARY names the binary under test. Models live in a home of the tests' own (LINNET_TEST_HOME, by default
target/clients/home), never in the user's; the starter is pulled into it once. Every server listens on a free port
of the loopback address and is ended by its process id.
"""

import os
import socket
import subprocess
import time
from pathlib import Path

import httpx
import openai
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
STARTER = "starter"
MODEL = "SmolLM2-135M-Instruct"
# Loading the model and its first answer, on a busy two-core machine with an unoptimised build.
START_SECONDS = 120


class Server:
    """A running `linnet serve`."""

    def __init__(self, binary: Path, home: Path, log: Path, extra: list = (), environment: dict = {}, before=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = home
        self.log = log
        self._log_file = log.open("wb")
        self.process = subprocess.Popen(
            [binary, "serve", "--port", str(self.port), *extra],
            env=os.environ | {"LINNET_HOME": str(home)} | environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log_file,
            stderr=subprocess.STDOUT,
            preexec_fn=before,
        )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                pytest.fail(f"linnet serve ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        pytest.fail(f"linnet serve was not ready after {START_SECONDS} s:\n{self.log.read_text()}")

    def active_requests(self) -> int:
        """Requests that the engine works on or holds in its queue."""
        health = httpx.get(f"{self.url}/health", timeout=5).json()
        return health["active"] + health["queued"]

    def wait_until_idle(self, seconds: float) -> None:
        """Fails unless no request is active within `seconds`."""
        deadline = time.monotonic() + seconds
        while (active := self.active_requests()) > 0:
            if time.monotonic() > deadline:
                pytest.fail(f"{active} requests are still active after {seconds} s")
            time.sleep(0.02)

    def resident_kib(self) -> int:
        """Memory the process holds that is its own (Linux only); mapped model files do not count."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))

    def stop(self) -> int:
        """Asks the server to end and returns its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail("linnet serve did not end within 20 s of SIGTERM")
        finally:
            self._log_file.close()


@pytest.fixture(scope="session")
def binary() -> Path:
    path = (REPOSITORY / os.environ.get("LINNET_BINARY", "target/debug/linnet")).resolve()
    if not path.is_file():
        pytest.exit(f"no binary at {path}: run `make test-clients`", returncode=2)
    return path


@pytest.fixture(scope="session")
def home(binary) -> Path:
    """A home with the starter model in it."""
    path = Path(os.environ.get("LINNET_TEST_HOME", REPOSITORY / "target/clients/home"))
    path.mkdir(parents=True, exist_ok=True)
    pull = subprocess.run(
        [binary, "pull", STARTER],
        env=os.environ | {"LINNET_HOME": str(path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if pull.returncode != 0:
        pytest.exit(f"`linnet pull {STARTER}` failed:\n{pull.stdout}{pull.stderr}", returncode=2)
    return path


@pytest.fixture(scope="session")
def server(binary, home):
    server = Server(binary, home, home.parent / "server.log", os.environ.get("LINNET_SERVE_ARGUMENTS", "").split())
    try:
        server.wait_until_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(autouse=True)
def the_server_survives(request):
    """After each test that used the server, it must still be there and answer."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        assert server.process.poll() is None, f"the server ended:\n{server.log.read_text()}"
        assert httpx.get(f"{server.url}/health", timeout=10).status_code == 200


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="not-needed", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client
