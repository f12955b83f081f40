"""Speech over the real server with the real whisper-tiny.en: OpenAI's SDK, sessions over HTTP and WebSocket, the command line."""

import json
import os
import re
import subprocess
import time
import wave
from pathlib import Path

import httpx
import openai
import pytest
from websockets.sync.client import connect

from conftest import REPOSITORY, Server

SPEECH = "whisper-tiny.en"
CLIPS = REPOSITORY / "engine/speech/tests/fixtures/speech"
JFK = "and so my fellow americans ask not what your country can do for you ask what you can do for your country"


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


@pytest.fixture(scope="module")
def speech_home(binary, home):
    """The home of the other tests with the speech model in it."""
    environment = os.environ | {"LINNET_HOME": str(home)}
    pull = subprocess.run([binary, "pull", SPEECH], env=environment, capture_output=True, text=True, timeout=900)
    if pull.returncode != 0:
        pytest.exit(f"`linnet pull {SPEECH}` failed:\n{pull.stdout}{pull.stderr}", returncode=2)
    return home


@pytest.fixture(scope="module")
def server(binary, speech_home):
    """Stands in for the server of the other tests, and their clients talk to it."""
    server = Server(binary, speech_home, speech_home.parent / "speech.log", ["--speech-idle-unload", "3s"])
    try:
        server.wait_until_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="module")
def pcm(binary, tmp_path_factory):
    """The clip as 16-bit samples at 16 kHz."""
    wav = tmp_path_factory.mktemp("speech") / "jfk.wav"
    from_flac(wav)
    with wave.open(str(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        return file.readframes(file.getnframes())


def from_flac(wav: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples, rate = soundfile.read(CLIPS / "jfk.flac", dtype="int16")
    soundfile.write(wav, samples, rate)


def jfk():
    return (CLIPS / "jfk.flac").open("rb")


def test_the_sdk_transcribes_a_file(client):
    answer = client.audio.transcriptions.create(model=SPEECH, file=jfk())
    assert words(answer.text) == JFK
    # Clients that were told nothing ask for OpenAI's own.
    assert client.audio.transcriptions.create(model="whisper-1", file=jfk()).text == answer.text


def test_every_format_says_the_same(client):
    text = client.audio.transcriptions.create(model=SPEECH, file=jfk(), response_format="text")
    assert words(text) == JFK
    srt = client.audio.transcriptions.create(model=SPEECH, file=jfk(), response_format="srt")
    assert re.match(r"1\n00:00:0\d,\d{3} --> 00:00:\d\d,\d{3}\n", srt), srt
    assert words(re.sub(r"(?m)^(\d+|.*-->.*)$", "", srt)) == JFK
    vtt = client.audio.transcriptions.create(model=SPEECH, file=jfk(), response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:0"), vtt


def test_words_and_segments_get_times(client):
    answer = client.audio.transcriptions.create(
        model=SPEECH, file=jfk(), response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert answer.language == "english" and 10.9 < answer.duration < 11.1
    assert words(" ".join(word.word for word in answer.words)) == JFK
    times = [time for word in answer.words for time in (word.start, word.end)]
    assert times == sorted(times) and 0 <= times[0] < 1 and 9 < times[-1] <= 11
    assert answer.segments[0].avg_logprob > -1


def test_a_stream_gives_the_same_text_in_pieces(client):
    whole = client.audio.transcriptions.create(model=SPEECH, file=jfk()).text
    events = list(client.audio.transcriptions.create(model=SPEECH, file=jfk(), stream=True))
    assert [event.type for event in events[-1:]] == ["transcript.text.done"]
    assert events[-1].text == whole
    assert "".join(event.delta for event in events if event.type == "transcript.text.delta") == whole


def test_an_english_model_says_that_it_cannot_translate(client):
    with pytest.raises(openai.BadRequestError, match="multilingual"):
        client.audio.translations.create(model=SPEECH, file=jfk())


def test_errors_say_what_to_do(client):
    with pytest.raises(openai.NotFoundError, match=SPEECH):
        client.audio.transcriptions.create(model="whisper-huge", file=jfk())
    with pytest.raises(openai.BadRequestError, match="speech model"):
        client.chat.completions.create(model=SPEECH, messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError, match="text model"):
        client.audio.transcriptions.create(model="SmolLM2-135M-Instruct", file=jfk())
    with pytest.raises(openai.BadRequestError, match="not an audio file"):
        client.audio.transcriptions.create(model=SPEECH, file=("a.wav", b"no sound"))


def test_the_models_say_what_they_do(client, http):
    kinds = {model.id: model.linnet["kind"] for model in client.models.list()}
    assert kinds[SPEECH] == "speech" and kinds["SmolLM2-135M-Instruct"] == "text"
    client.audio.transcriptions.create(model=SPEECH, file=jfk())
    stats = http.get("/stats").json()["speech"]
    assert stats["models"][0]["windows"]["finished"] > 0
    assert "linnet_speech_windows_finished_total" in http.get("/metrics").text


def test_a_session_hears_pieces_and_is_done_when_the_speaker_was(http, pcm):
    session = http.post("/v1/audio/sessions", json={"model": SPEECH}).json()
    kind = {"Content-Type": "audio/pcm;rate=16000;encoding=s16"}
    committed = ""
    for start in range(0, len(pcm), 16000):
        state = http.post(f"/v1/audio/sessions/{session['id']}/audio", content=pcm[start : start + 16000], headers=kind)
        assert state.json()["text"]["committed"].startswith(committed)
        committed = state.json()["text"]["committed"]
        time.sleep(0.3)
    done = http.post(f"/v1/audio/sessions/{session['id']}/finish").json()
    assert done["text"].startswith(committed) and words(done["text"]) == JFK
    assert http.post(f"/v1/audio/sessions/{session['id']}/audio", content=b"", headers=kind).status_code == 409
    assert http.delete(f"/v1/audio/sessions/{session['id']}").status_code == 204
    assert http.get(f"/v1/audio/sessions/{session['id']}").status_code == 404


def test_a_websocket_shows_text_while_it_is_spoken(server, pcm):
    address = server.url.replace("http", "ws") + f"/v1/audio/stream?model={SPEECH}&encoding=s16"
    with connect(address) as socket:
        assert json.loads(socket.recv())["type"] == "session"
        for start in range(0, len(pcm), 9600):
            socket.send(pcm[start : start + 9600])
            time.sleep(0.15)
        socket.send(json.dumps({"type": "finish"}))
        messages = []
        while not messages or messages[-1]["type"] != "transcript.text.done":
            messages.append(json.loads(socket.recv(timeout=120)))
            assert messages[-1]["type"] != "error", messages[-1]
    committed = [message["committed"] for message in messages if message["type"] == "transcript.partial"]
    assert all(later.startswith(earlier) for earlier, later in zip(committed, committed[1:]))
    assert any(message.get("tail") or message.get("committed") for message in messages[:-1])
    assert words(messages[-1]["text"]) == JFK


def test_a_web_page_of_somebody_else_gets_no_websocket(server):
    address = server.url.replace("http", "ws") + "/v1/audio/stream"
    with pytest.raises(Exception, match="403"):
        connect(address, origin="https://evil.example")


def test_a_speech_model_that_nobody_uses_is_let_go(client, http):
    client.audio.transcriptions.create(model=SPEECH, file=jfk())
    deadline = time.monotonic() + 30
    while http.get("/stats").json()["speech"]["models"][0]["loaded"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def run(binary, home, *arguments):
    environment = os.environ | {"LINNET_HOME": str(home)}
    return subprocess.run([binary, *arguments], env=environment, capture_output=True, text=True, timeout=600)


def test_the_command_line_prints_a_text(binary, speech_home):
    done = run(binary, speech_home, "transcribe", str(CLIPS / "jfk.flac"), "--model", SPEECH)
    assert done.returncode == 0, done.stderr
    assert words(done.stdout) == JFK


def test_the_command_line_writes_files_of_a_folder(binary, speech_home, tmp_path):
    (tmp_path / "in/sub").mkdir(parents=True)
    for name in ["jfk.flac", "sub/again.flac"]:
        (tmp_path / "in" / name).write_bytes((CLIPS / "jfk.flac").read_bytes())
    (tmp_path / "in/broken.wav").write_bytes(b"no sound")
    arguments = ["--model", SPEECH, "--format", "srt,json", "--words", "--output-dir", str(tmp_path / "out")]
    done = run(binary, speech_home, "transcribe", str(tmp_path / "in"), *arguments)
    # One bad file does not keep the others from being written, and is told.
    assert done.returncode == 1 and "broken.wav" in done.stderr
    assert (tmp_path / "out/jfk.srt").read_text().startswith("1\n00:00:0")
    whole = json.loads((tmp_path / "out/sub/again.json").read_text())
    assert words(whole["text"]) == JFK and whole["segments"][0]["words"]


def test_what_was_interrupted_goes_on_where_it_stopped(binary, speech_home, tmp_path):
    """The clip many times over with pauses; the run is ended in the middle."""
    wav = tmp_path / "long.wav"
    from_flac(wav)
    with wave.open(str(wav)) as file:
        clip = file.readframes(file.getnframes())
    with wave.open(str(wav), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", "NONE"))
        for _ in range(12):
            file.writeframes(clip + bytes(32000 * 3))
    environment = os.environ | {"LINNET_HOME": str(speech_home)}
    arguments = [binary, "transcribe", str(wav), "--model", SPEECH]
    first = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = speech_home / "transcripts"
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 1000 for path in folder.glob("*.jsonl")):
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.01)
    first.kill()
    first.wait()
    kept = [path for path in folder.glob("*.jsonl") if path.stat().st_size > 1000]
    finished = kept[0].read_text().count("\n")
    assert 1 <= finished < 12
    again = run(binary, speech_home, *arguments[1:])
    assert again.returncode == 0, again.stderr
    assert words(again.stdout) == " ".join([JFK] * 12)
    assert not kept[0].exists()


def test_nothing_of_what_is_said_reaches_the_log(server):
    log = server.log.read_text().lower()
    assert "americans" not in log and "country" not in log
