#!/bin/sh
# The archiver beside fake_cc.sh: writes an empty archive. Called as `ar FLAGS ARCHIVE OBJECT...`.
for argument in "$@"; do
    case "$argument" in
    *.a) printf '!<arch>\n' >"$argument" ;;
    esac
done
