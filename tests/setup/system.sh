#!/bin/sh
# Checks that the tools of one kind of work are there, and says how to get those that are not. On Debian and its
# kin, run as root, missing system packages are installed.
#
# usage: system.sh build|python|test
set -eu

missing=""

have() { command -v "$1" >/dev/null 2>&1; }

# want_package TEST PACKAGE REMEDY: runs TEST; when it fails, installs Debian's PACKAGE if it may, else notes REMEDY.
want_package() {
    if eval "$1" >/dev/null 2>&1; then return; fi
    if have apt-get && [ "$(id -u)" = 0 ]; then
        echo "installing $2"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        apt-get install -y -qq $2 >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -y -qq $2 >/dev/null; } || true
        if eval "$1" >/dev/null 2>&1; then return; fi
    fi
    missing="$missing
  $3"
}

case "$(uname -s)" in
Darwin)
    compiler_remedy="a C and C++ compiler: xcode-select --install"
    python_remedy="Python 3.11 or later with pip: brew install python"
    ;;
*)
    compiler_remedy="a C and C++ compiler: apt-get install build-essential (or your system's equal)"
    python_remedy="Python 3.11 or later with pip and venv: apt-get install python3 python3-pip python3-venv"
    ;;
esac

case "$1" in
build)
    have cargo || missing="$missing
  Rust, by rustup, as https://rustup.rs says; then open a new shell"
    want_package "have cc && have c++ && have make" build-essential "$compiler_remedy"
    ;;
python)
    want_package \
        "python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' && python3 -m pip --version" \
        "python3 python3-pip python3-venv" "$python_remedy"
    ;;
test)
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt || missing="$missing
  rustfmt: rustup component add rustfmt"
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy || missing="$missing
  clippy: rustup component add clippy"
    have git || want_package "have git" git "git"
    ;;
*)
    echo "usage: system.sh build|python|test" >&2
    exit 2
    ;;
esac

if [ -n "$missing" ]; then
    echo "Linnet needs what this machine does not have:$missing" >&2
    exit 1
fi
