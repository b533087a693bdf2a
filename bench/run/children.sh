# Sourced by scripts here: builds, starts programs, waits for them, stops them at the end.
#
#   BIN       where the programs are        [target/release of this checkout, built]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ -z "${BIN:-}" ]; then
    cargo build --release --locked --bins
    BIN=${CARGO_TARGET_DIR:-target}/release
fi
RUN=$(mktemp -d)
CHILDREN=()
declare -A NUMBERS

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

# start NAME PROGRAM ARGS...: in the background, its output in $RUN/NAME.log, its number in $PID
start() {
    local name=$1
    shift
    "$@" > "$RUN/$name.log" 2>&1 &
    PID=$!
    CHILDREN+=("$PID")
    NUMBERS[$name]=$PID
}

# ready NAME URL: waits until URL answers 200, at most two minutes and while the program lives; else says why, and fails
ready() {
    for _ in $(seq 600); do
        curl -sf -o /dev/null "$2" && return
        kill -0 "${NUMBERS[$1]}" 2> /dev/null || break
        sleep 0.2
    done
    echo "$1 is not ready; its log ends:" >&2
    tail -n 5 "$RUN/$1.log" >&2
    return 1
}
