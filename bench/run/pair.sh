# Sourced by the scripts beside it: builds, fetches the model, starts engines and routers, stops them at the end.
#
#   BIN       where the programs are        [target/release of this checkout, built]
#   MODEL     the model's file              [what `crossover fetch` brings]
#   HEAD_DIR  its draft head                [the shipped one]
#   CORES     devices: speculative, throughput, and both together   [cpu:0 cpu:1 cpu:0-1]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ -z "${BIN:-}" ]; then
    cargo build --release --locked --bins
    BIN=${CARGO_TARGET_DIR:-target}/release
fi
MODEL=${MODEL:-$("$BIN/crossover" fetch | tail -n 1)}
HEAD_DIR=${HEAD_DIR:-deploy/models/smollm2-135m-instruct-eagle3}
read -r SPECULATIVE_CORES THROUGHPUT_CORES ALL_CORES <<< "${CORES:-cpu:0 cpu:1 cpu:0-1}"
RUN=$(mktemp -d)
CHILDREN=()

stop() {
    for child in "${CHILDREN[@]}"; do kill "$child" 2>/dev/null || true; done
    wait
    rm -rf "$RUN"
}
trap stop EXIT
trap 'exit 130' INT TERM

# unused PORT...: ends the script when something listens there: it would be measured instead
unused() {
    local port
    for port in "$@"; do
        if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then
            echo "something listens on port $port already" >&2
            exit 1
        fi
    done
}

# start NAME PROGRAM ARGS...: in the background, its output in $RUN/NAME.log
start() {
    local name=$1
    shift
    "$@" > "$RUN/$name.log" 2>&1 &
    CHILDREN+=($!)
}

# ready NAME URL: waits until URL answers 200, at most two minutes
ready() {
    for _ in $(seq 600); do
        curl -sf -o /dev/null "$2" && return
        sleep 0.2
    done
    echo "$1 is not ready; its log ends:" >&2
    tail -n 5 "$RUN/$1.log" >&2
    exit 1
}

# engine NAME PORT DEVICE ARGS...
engine() {
    local name=$1 port=$2 device=$3
    shift 3
    unused "$port"
    start "$name" "$BIN/crossover-engine" --model "$MODEL" --device "$device" \
        --listen "127.0.0.1:$port" "$@"
    ready "$name" "http://127.0.0.1:$port/health"
}

# The pair on 8101 and 8102. K policies are off in it: the instance that drafts always drafts.
pair() {
    engine speculative 8101 "$SPECULATIVE_CORES" --mode eagle3 --draft "$HEAD_DIR"
    engine throughput 8102 "$THROUGHPUT_CORES" --mode baseline
}

# router NAME PORT: the policy's lines of the configuration come from standard input
router() {
    local name=$1 port=$2
    unused "$port" "$((port + 1000))"
    {
        printf 'listen = "127.0.0.1:%s"\nadmin = "127.0.0.1:%s"\n[policy]\n' "$port" "$((port + 1000))"
        cat
        for role in speculative:8101 throughput:8102; do
            printf '[[endpoint]]\nname = "%s"\nrole = "%s"\nkind = "crossover"\nin_flight_max = 64\n' \
                "${role%:*}" "${role%:*}"
            printf 'url = "http://127.0.0.1:%s"\n' "${role#*:}"
        done
    } > "$RUN/$name.toml"
    start "router-$name" "$BIN/crossover-router" --config "$RUN/$name.toml"
    ready "router-$name" "http://127.0.0.1:$((port + 1000))/readyz"
}

# calibrate FILE ARGS...: the pair must be up
calibrate() {
    local file=$1
    shift
    "$BIN/crossover-bench" calibrate --quantisation q4_1 --device "$SPECULATIVE_CORES" --out "$file" "$@"
}
