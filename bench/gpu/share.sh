#!/usr/bin/env bash
# Two engines on one card: with a copy of the weights each, with one copy between them, and when one of them is killed.
#   BIN=FOLDER MODEL=FILE HEAD_DIR=FOLDER SHAPE=FOLDER [CARD=0] bench/gpu/share.sh OUT
#
# SHAPE is a folder that shape.py wrote: memory and speed are an 8B's, texts the default pair's.
mkdir -p "$1"
OUT=$(realpath "$1")
. "$(dirname "$0")/../run/children.sh"
export CUDA_VISIBLE_DEVICES=${CARD:=0}
EMPTY=$(nvidia-smi -i "$CARD" --query-gpu=memory.used --format=csv,noheader,nounits)

# engine NAME PORT ARGS...
engine() {
    local name=$1 port=$2
    shift 2
    unused "$port"
    start "$name" "$BIN/crossover-engine" --listen "127.0.0.1:$port" --device cuda:0 --memory 6GiB --context-max 2048 "$@"
}

# both NAME ARGS...: two engines, started at once; SPECULATIVE is the one that drafts
both() {
    local name=$1 start=$SECONDS
    shift
    engine "$name-plain" 8401 "$@"
    PLAIN=$PID
    engine "$name-drafts" 8402 "$@" --mode eagle3 "${DRAFT[@]}"
    ready "$name-plain" http://127.0.0.1:8401/health
    ready "$name-drafts" http://127.0.0.1:8402/health
    local used
    used=$(nvidia-smi -i "$CARD" --query-gpu=memory.used --format=csv,noheader,nounits)
    echo "$name: both ready in about $((SECONDS - start)) s, $((used - EMPTY)) MiB of the card"
    grep -h 'weights: ' "$RUN/$name-plain.log" "$RUN/$name-drafts.log" || true
}

end() {
    kill "${CHILDREN[@]}" 2> /dev/null || true
    wait
    CHILDREN=()
}

speed() {
    "$BIN/crossover-bench" sweep --target plain=http://127.0.0.1:8401 --target drafts=http://127.0.0.1:8402 \
        --concurrency 1,32 --rounds 2 --requests-each 2 --requests-min 2 --tokens 96 --ignore-eos --out "$OUT/$1" \
        > "$OUT/$1.log" 2>&1
    sed '/^$/q' "$OUT/$1/table.md"
}

# text PORT: what the engine there writes
text() {
    curl -sf "http://127.0.0.1:$1/v1/chat/completions" -H 'content-type: application/json' -d \
        '{"messages":[{"role":"user","content":"Tell me about the sea."}],"temperature":0,"max_tokens":96}' \
        | sed 's/.*"content":"\([^"]*\).*/\1/'
}

DRAFT=(--draft "$SHAPE/head" --simulate-acceptance 0.8,0.75,0.75)
for way in copies shared; do
    ARGS=(--model "$SHAPE" --load-format dummy)
    if [ "$way" = shared ]; then ARGS+=(--share-weights "$RUN/weights"); fi
    both "8b-$way" "${ARGS[@]}"
    speed "8b-$way"
    end
done

DRAFT=(--draft "$HEAD_DIR")
both pair-copies --model "$MODEL"
WANTED=$(text 8401)
end
ARGS=(--model "$MODEL" --share-weights "$RUN/weights")
both pair-shared "${ARGS[@]}"
equal() { if [ "$(text "$2")" = "$WANTED" ]; then echo "$1: the same text"; else echo "$1: ANOTHER TEXT"; fi; }
equal "mapped or laid out, plain" 8401
equal "mapped or laid out, drafts" 8402
kill -KILL "$PLAIN"
wait "$PLAIN" || true
equal "after the other was killed" 8402
engine pair-again 8401 "${ARGS[@]}"
ready pair-again http://127.0.0.1:8401/health
grep -h 'weights: ' "$RUN/pair-again.log"
equal "started again" 8401
echo "${WANTED:0:60}..."
