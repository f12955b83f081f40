#!/bin/sh
# Checks that the tools of one kind of work are there, and says how to get those that are not. On Debian and its
# kin, run as root, missing system packages are installed.
#
# usage: system.sh build|python|test|macos|arm
set -eu

missing=""
recommends=""
# The Python that make uses.
python="${PYTHON:-python3}"

have() { command -v "$1" >/dev/null 2>&1; }

# want TEST REMEDY: runs TEST; when it fails, notes REMEDY.
want() {
    if eval "$1" >/dev/null 2>&1; then return; fi
    missing="$missing
  $2"
}

# want_package TEST PACKAGE REMEDY: runs TEST; when it fails, installs Debian's PACKAGE if it may, else notes REMEDY.
want_package() {
    if eval "$1" >/dev/null 2>&1; then return; fi
    if have apt-get && [ "$(id -u)" = 0 ]; then
        echo "installing $2"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086
        apt-get install -y -qq $recommends $2 >/dev/null 2>&1 || true
        if eval "$1" >/dev/null 2>&1; then return; fi
        # Not known, or too old: the lists of packages may be.
        # shellcheck disable=SC2086
        { apt-get update -qq && apt-get install -y -qq $recommends $2 >/dev/null; } || true
    fi
    want "$1" "$3"
}

is_debian() { (. /etc/os-release && [ "$ID" = debian ]) 2>/dev/null; }

# What MLX needs to be built, on a Mac. Each thing is named with the command that brings it.
want_mac_tools() {
    # /usr/bin/cc is there on every Mac; without the tools it only opens a dialogue.
    want "xcode-select -p" "the Xcode command line tools: xcode-select --install"
    [ -z "$missing" ] || return 0
    want "cc --version" "your consent to Xcode's licence: sudo xcodebuild -license accept"
    if [ "$(sysctl -n sysctl.proc_translated 2>/dev/null)" = 1 ]; then
        missing="$missing
  a terminal that does not run under Rosetta: in the Finder, Get Info of the terminal, clear \"Open using Rosetta\""
    fi
    # Apple silicon alone has the GPU that MLX works on; elsewhere Linnet computes on the processor.
    [ "$(uname -m)" = arm64 ] || return 0
    want '[ "$(sw_vers -productVersion | cut -d. -f1)" -ge 14 ]' "macOS 14 or later: System Settings, Software Update"
    want "have cmake" "CMake 3.25 or later, for MLX: brew install cmake (https://brew.sh)"
    want "xcrun -sdk macosx metal --version" "the Metal compiler, for MLX: Xcode from the App Store, started once; then
    sudo xcode-select -s /Applications/Xcode.app; with Xcode 26 also xcodebuild -downloadComponent MetalToolchain"
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
    if [ "$(uname -s)" = Darwin ]; then want_mac_tools; fi
    want_package "have cc && have c++ && have make" build-essential "$compiler_remedy"
    # The microphone, for `linnet listen`; Macs bring their own sound system.
    [ "$(uname -s)" = Darwin ] || want_package "pkg-config --exists alsa" "pkg-config libasound2-dev" \
        "ALSA's headers: apt-get install pkg-config libasound2-dev (or your system's equal)"
    ;;
python)
    want_package \
        "$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' && $python -m pip --version" \
        "python3 python3-pip python3-venv" "$python_remedy"
    ;;
test)
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt || missing="$missing
  rustfmt: rustup component add rustfmt"
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy || missing="$missing
  clippy: rustup component add clippy"
    have git || want_package "have git" git "git"
    # The Metal kernels are compiled and run by clang on Linux; on a Mac they run on the GPU.
    [ "$(uname -s)" = Darwin ] || want_package \
        "have clang++-19 && have llvm-cov-19 && have llvm-profdata-19 && have llvm-symbolizer-19 &&
         ls \"\$(clang++-19 --print-resource-dir)\"/lib/linux/libclang_rt.asan-*.so" \
        "clang-19 libclang-rt-19-dev llvm-19" \
        "clang 19 with its runtime and tools: apt-get install clang-19 libclang-rt-19-dev llvm-19"
    ;;
macos)
    recommends="--no-install-recommends"
    packages="rustc-web cargo-web rust-web-src rust-web-clippy"
    want_package "$python tests/cross/toolchain.py" "$packages" \
        "the Rust that checks for macOS ($("$python" tests/cross/toolchain.py 2>&1)): apt-get install $packages"
    # Other systems have no such packages; the check says itself that it is skipped.
    is_debian || missing=""
    ;;
arm)
    recommends="--no-install-recommends"
    packages="rustc-web cargo-web rust-web-src rust-web-clippy gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
    want_package "$python tests/cross/toolchain.py && have aarch64-linux-gnu-gcc && have qemu-aarch64" "$packages" \
        "Rust with its standard library's sources, a C compiler for Arm, and qemu: apt-get install $packages"
    ;;
*)
    echo "usage: system.sh build|python|test|macos|arm" >&2
    exit 2
    ;;
esac

if [ -n "$missing" ]; then
    echo "Linnet needs what this machine does not have:$missing" >&2
    exit 1
fi
