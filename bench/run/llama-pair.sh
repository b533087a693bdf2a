#!/usr/bin/env bash
# The router in front of two servers of others: llama.cpp plain, and llama.cpp with its own speculation (a smaller draft of the
# same model). The official OpenAI client asks through it, also in company, also leaving in the middle.
#   LLAMA_SERVER=PATH MODEL=GGUF DRAFT=GGUF PYTHON="python with the package openai" bench/run/llama-pair.sh [FOLDER]
. "$(dirname "$0")/children.sh"
: "${LLAMA_SERVER:?}" "${MODEL:?}" "${DRAFT:?}"
FOLDER=${1:-bench/results/$(date -u +%F)-llama-pair}
PYTHON=${PYTHON:-python3} SECONDS_EACH=${SECONDS_EACH:-40}
mkdir -p "$FOLDER"
unused 8311 8312 8320 8321

llama() {
    local name=$1 port=$2
    shift 2
    start "$name" "$LLAMA_SERVER" -m "$MODEL" --host 127.0.0.1 --port "$port" -t 1 -np 8 -c 16384 --alias m --slots --no-webui "$@"
}
llama plain 8311
llama speculative 8312 --spec-type draft-simple -md "$DRAFT"
ready plain http://127.0.0.1:8311/health
ready speculative http://127.0.0.1:8312/health

cat > "$RUN/router.toml" << 'TOML'
listen = "127.0.0.1:8320"
admin = "127.0.0.1:8321"
[policy]
high = 3
low = 2
dwell_ms = 500
[[endpoint]]
name = "speculative"
role = "speculative"
url = "http://127.0.0.1:8312"
in_flight_max = 8
[[endpoint]]
name = "plain"
role = "throughput"
url = "http://127.0.0.1:8311"
in_flight_max = 8
TOML
start router "$BIN/crossover-router" --config "$RUN/router.toml"
ready router http://127.0.0.1:8321/readyz

{
    printf 'commit %s, %s, %s\n\n' "$(git describe --always --dirty)" "$("$LLAMA_SERVER" --version 2>&1 | head -n 1)" "$(uname -r)"
    "$PYTHON" bench/run/llama_pair.py "$SECONDS_EACH"
} | tee "$FOLDER/figures.md"
