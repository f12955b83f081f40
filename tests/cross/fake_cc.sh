#!/bin/sh
# A C compiler that is enough to type-check Rust: build scripts that compile C find one that says yes. Preprocessing
# goes to this machine's compiler (some build scripts ask it which compiler it is); every other call writes an empty
# object where the object belongs.
output=""
previous=""
for argument in "$@"; do
    case "$argument" in
    -E) exec cc "$@" ;;
    -o?*) output="${argument#-o}" ;;
    esac
    if [ "$previous" = "-o" ]; then output="$argument"; fi
    previous="$argument"
done
if [ -n "$output" ]; then : >"$output"; fi
