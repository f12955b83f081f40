"""`linnet chat` in a terminal and in a pipe."""

import os
import re
import select
import subprocess
import sys
import time

import pytest

CTRL_C = b"\x03"
CTRL_D = b"\x04"
# Loading the model on a busy machine with an unoptimised build.
PATIENCE = 120
# At temperature 0 the answer to this goes on for thousands of tokens.
LONG = "Write a long story about a ship."
# In the answer, again and again, and neither in the question nor in what moves the cursor.
SAID = b"ship of the sea"
# A key pressed before the line is cleared and the prompt stands there may meet a terminal that is not yet set up.
PROMPT = b"\x1b[K> "
# What the line editor writes when it has read a line: pasting is no longer bracketed.
READ = b"\x1b[?2004l"


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, command: list, environment: dict):
        pty = pytest.importorskip("pty")
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            os.execvpe(command[0], command, environment)
        self.output = b""

    def expect(self, text: bytes, seconds: float = PATIENCE) -> None:
        """Waits until `text` is written, and forgets all up to it."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, f"{text!r} did not come, only {self.output!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.descriptor, 4096)
                except OSError:
                    pytest.fail(f"the program ended before {text!r}: {self.output!r}")
        self.output = self.output.split(text, 1)[1]

    def type(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)

    def wait(self, seconds: float = 20) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if ended:
                os.close(self.descriptor)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.descriptor], [], [], 0.05)[0]:
                try:
                    self.output += os.read(self.descriptor, 4096)
                except OSError:
                    time.sleep(0.05)
        os.kill(self.process, 9)
        os.waitpid(self.process, 0)
        pytest.fail(f"the program did not end: {self.output!r}")


def environment(home) -> dict:
    return os.environ | {"LINNET_HOME": str(home), "TERM": "xterm"}


@pytest.fixture
def chat(binary, home):
    if sys.platform == "win32":
        pytest.skip("needs a Unix terminal")
    terminal = Terminal([str(binary), "chat", "--temperature", "0"], environment(home))
    terminal.expect(b"is ready")
    terminal.expect(PROMPT)
    return terminal


def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on_until_it_comes_twice(chat):
    chat.type(LONG.encode() + b"\r")
    chat.expect(SAID)
    chat.type(CTRL_C)
    chat.expect(b"(stopped; Ctrl-C again leaves)")
    chat.type(b"What is the capital of France?\r")
    chat.expect(READ)
    chat.expect(PROMPT)
    chat.type(CTRL_C)
    chat.expect(b"(Ctrl-C again or /exit leaves)")
    chat.type(CTRL_C)
    assert chat.wait() == 0


def test_ctrl_c_right_behind_the_question_is_not_lost(chat):
    chat.type(LONG.encode() + b"\r")
    chat.expect(READ)
    chat.type(CTRL_C)
    chat.expect(b"(stopped; Ctrl-C again leaves)")
    assert chat.output.count(SAID) < 20
    chat.expect(PROMPT)
    chat.type(CTRL_D)
    assert chat.wait() == 0


def test_ctrl_c_once_for_the_answer_and_once_more_leaves(chat):
    chat.type(LONG.encode() + b"\r")
    chat.expect(SAID)
    chat.type(CTRL_C)
    chat.expect(b"(stopped")
    chat.expect(PROMPT)
    chat.type(CTRL_C)
    assert chat.wait() == 0


def test_bytes_that_are_no_text_do_not_end_the_conversation(chat):
    chat.type(b"\xff\xfe\r")
    chat.expect(b"not UTF-8")
    chat.type(b"/model no-such-model\r")
    chat.expect(b"error: there is no model")
    chat.type(b"/nonsense\r")
    chat.expect(b"there is no /nonsense")
    chat.expect(PROMPT)
    chat.type(CTRL_D)
    assert chat.wait() == 0


def test_ctrl_c_stops_a_single_question_with_the_code_of_an_interrupt(binary, home):
    terminal = Terminal([str(binary), "chat", "--temperature", "0", LONG], environment(home))
    terminal.expect(SAID)
    terminal.type(CTRL_C)
    assert terminal.wait() == 130


def ask(binary, home, *arguments, **options) -> subprocess.CompletedProcess:
    command = [binary, "chat", "--max-tokens", "4", *arguments]
    return subprocess.run(command, env=environment(home), capture_output=True, timeout=PATIENCE, **options)


def test_a_question_from_a_pipe_is_answered_and_nothing_else_is_written(binary, home):
    answer = ask(binary, home, "--temperature", "0", input="What is the capital of France?\n".encode())
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert re.fullmatch(rb"The capital of France\n", answer.stdout), answer.stdout


@pytest.mark.parametrize(("text", "says"), [(b"", b"empty"), (b" \n", b"empty"), (b"\xff\xfe", b"UTF-8")])
def test_a_pipe_without_a_question_is_refused(binary, home, text, says):
    answer = ask(binary, home, input=text)
    assert answer.returncode == 1
    assert says in answer.stderr and answer.stdout == b""


def test_a_full_disk_under_the_answer_is_told(binary, home):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "wb") as full:
        command = [binary, "chat", "--max-tokens", "4", "Hi"]
        answer = subprocess.run(command, env=environment(home), stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE)
    assert answer.returncode == 1
    assert b"No space left" in answer.stderr


def test_a_reader_that_has_enough_ends_the_answer_quietly(binary, home):
    command = [binary, "chat", "--temperature", "0", LONG]
    with subprocess.Popen(
        command, env=environment(home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == b""
