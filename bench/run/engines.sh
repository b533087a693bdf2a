#!/usr/bin/env bash
# Our engine in both modes beside llama.cpp's server, all on the same two cores, in turns: decoding alone and in company,
# prompts, and decoding while another program takes one of the cores.
#   LLAMA_SERVER=PATH [LLAMA_MODELS="NAME=GGUF ..."] bench/run/engines.sh [FOLDER]
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-engines}
ROUNDS=${ROUNDS:-3}
mkdir -p "$FOLDER"

engine baseline 8201 "$ALL_CORES" --mode baseline
engine eagle3 8202 "$ALL_CORES" --mode eagle3 --draft "$HEAD_DIR"
engine silent 8203 "$ALL_CORES" --mode eagle3 --draft "$HEAD_DIR" --draft-max 0
TARGETS=()
port=8211
for pair in q4_1="$MODEL" ${LLAMA_MODELS:-}; do
    if [ -n "${LLAMA_SERVER:-}" ]; then
        name=llama.cpp-${pair%%=*}
        unused "$port"
        start "$name" "$LLAMA_SERVER" -m "${pair#*=}" --host 127.0.0.1 --port "$port" -t 2 -np 16 -c 32768 --no-webui
        ready "$name" "http://127.0.0.1:$port/health"
        TARGETS+=(--target "$name=http://127.0.0.1:$port")
        port=$((port + 1))
    fi
done
TARGETS+=(--target baseline=http://127.0.0.1:8201 --target eagle3=http://127.0.0.1:8202)
TARGETS+=(--target eagle3-silent=http://127.0.0.1:8203)
sweep() { "$BIN/crossover-bench" sweep "${TARGETS[@]}" --ignore-eos --rounds "$ROUNDS" "$@"; }

sweep --concurrency 1,8,16 --requests-each 2 --requests-min 4 --tokens 64 --out "$FOLDER/decoding"

# About 500 tokens each, no two with the same start.
for number in $(seq 24); do
    printf '%s: ' "Report $number of the harbour master"
    for line in $(seq 22); do
        printf 'on day %s the ship number %s brought %s crates of tea and left with salt. ' \
            "$line" "$((number * line))" "$((number + 7 * line))"
    done
    printf '\n'
done > "$RUN/prompts.txt"
sweep --concurrency 1 --requests-each 1 --requests-min 4 --tokens 2 --prompts-file "$RUN/prompts.txt" --out "$FOLDER/prompts"

# Another program takes the second core.
taskset -c 1 sh -c 'while :; do :; done' &
CHILDREN+=($!)
sweep --concurrency 1 --requests-each 1 --requests-min 3 --tokens 32 --out "$FOLDER/crowded"
