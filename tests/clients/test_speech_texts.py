"""What the command line understands of real speech, beside what the references do (engine/speech/tests/fixtures)."""

import json
import os
import re
import subprocess

import pytest

from conftest import REPOSITORY

FIXTURES = REPOSITORY / "engine/speech/tests/fixtures"
REFERENCES = json.loads((FIXTURES / "references.json").read_text())
MODELS = {"tiny.en": "whisper-tiny.en", "base": "whisper-base"}
BEAM = "faster-whisper int8 beam 5"


@pytest.fixture(scope="module")
def speech_home(binary, home):
    for model in MODELS.values():
        pull = subprocess.run([binary, "pull", model], env=environment(home), capture_output=True, text=True, timeout=900)
        assert pull.returncode == 0, pull.stderr
    return home


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips of about 3, 11, 33 and 62 seconds, joined from the fixtures."""
    numpy, soundfile = pytest.importorskip("numpy"), pytest.importorskip("soundfile")
    folder = tmp_path_factory.mktemp("clips")
    for name, parts in REFERENCES["clips"].items():
        samples = [soundfile.read(FIXTURES / f"speech/{part}.flac", dtype="int16")[0] for part in parts]
        soundfile.write(folder / f"{name}.wav", numpy.concatenate(samples), 16_000)
    return folder


def environment(home):
    return os.environ | {"LINNET_HOME": str(home)}


def transcribe(binary, home, model, *arguments):
    command = [binary, "transcribe", "--model", MODELS[model], "--language", "en", *map(str, arguments)]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def words(text: str) -> list[str]:
    """Words as they are counted: no capitals, no punctuation, titles written out."""
    text = re.sub(r"\bmr\.?(?=\s)", "mister", text.lower())
    return re.sub(r"[^a-z' ]", " ", text).split()


def errors(said: str, heard: str) -> int:
    """The fewest words to change, add or leave out."""
    said, heard = words(said), words(heard)
    row = list(range(len(heard) + 1))
    for count, word in enumerate(said, 1):
        diagonal, row[0] = row[0], count
        for place, other in enumerate(heard, 1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (word != other))
    return row[-1]


@pytest.mark.parametrize("model", MODELS)
def test_greedy_texts_on_stored_weights_are_mlx_whispers(binary, speech_home, clips, model, tmp_path):
    transcribe(binary, speech_home, model, "--weights", "stored", "--output-dir", tmp_path, "--format", "txt", clips)
    for clip in REFERENCES["clips"]:
        heard = " ".join((tmp_path / f"{clip}.txt").read_text().split())
        assert heard == REFERENCES[model][clip]["mlx-whisper greedy"], clip


@pytest.mark.parametrize("model", MODELS)
def test_with_five_hypotheses_in_8_bits_no_more_words_are_wrong_than_faster_whispers(
    binary, speech_home, clips, model, tmp_path
):
    transcribe(binary, speech_home, model, "--beam", 5, "--weights", "int8", "--output-dir", tmp_path, "--format", "txt", clips)
    said = REFERENCES["said"]
    ours = {clip: errors(said[clip], (tmp_path / f"{clip}.txt").read_text()) for clip in said}
    theirs = {clip: errors(said[clip], REFERENCES[model][clip][BEAM]) for clip in said}
    assert sum(ours.values()) <= sum(theirs.values()), (ours, theirs)


def test_words_are_counted_as_people_do():
    assert errors("mister john was ill disposed", "Mr. John was, old-sposed!") == 2
    assert errors("one two three", "one three") == 1 and errors("", "you") == 1
