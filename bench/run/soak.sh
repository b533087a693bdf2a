#!/usr/bin/env bash
# Ten minutes of churn at a modest rate: the real router between clients that behave badly and engines that do too, while an
# operator reloads. Prints what the router holds every fifteen seconds; fails unless it gives everything back.
#   SECONDS_EACH=600 RATE=40 bench/run/soak.sh [FOLDER]
. "$(dirname "$0")/children.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-soak}
SOAK=${SOAK:-}
mkdir -p "$FOLDER"
unused 17500 17501
if [ -z "$SOAK" ]; then
    cargo build --locked --workspace --example soak
    SOAK=${CARGO_TARGET_DIR:-target}/debug/examples/soak
fi
{
    printf 'commit %s, %s, load before %s\n\n' "$(git describe --always --dirty)" "$(uname -r)" "$(cut -d' ' -f1-3 /proc/loadavg)"
    nice "$SOAK" "$BIN/crossover-router" "${SECONDS_EACH:-600}" "${RATE:-40}"
} | tee "$FOLDER/figures.md"
