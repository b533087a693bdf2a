#!/usr/bin/env bash
# Our pair against what is installed, one run. LLAMA_SERVER=PATH names llama.cpp's server; HIGH and LOADS.
#   bench/run/compare.sh [FOLDER] [ARGS of compare...]
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-peers}
shift || true
HIGH=${HIGH:-8}
pair
router switch 8010 < <(printf 'kind = "switch"\nhigh = %s\n' "$HIGH")
PROGRAMS=()
if [ -n "${LLAMA_SERVER:-}" ]; then PROGRAMS=(--program "llama-server=$LLAMA_SERVER"); fi
"$BIN/crossover-bench" compare --routed http://127.0.0.1:8010 --high "$HIGH" --gguf "$MODEL" \
    "${PROGRAMS[@]}" --concurrency "${LOADS:-1,2,4,8,16,32}" --rounds 3 --tokens 128 --ignore-eos \
    --out "$FOLDER" "$@"
