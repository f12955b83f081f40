#!/bin/sh
# Says where the server that is about to start can be reached, with a request to paste.
cat <<TEXT

Linnet is about to serve on http://127.0.0.1:5466 (Ctrl-C ends it). From another terminal:

  curl http://127.0.0.1:5466/v1/chat/completions -H 'Content-Type: application/json' -d '{
    "model": "$1", "temperature": 0, "stream": true,
    "messages": [{"role": "user", "content": "What is the capital of France?"}]}'

TEXT
