#!/usr/bin/env bash
# Half an hour of mixed requests in bursts, many of them cut off, against an engine that drafts while few requests decode, with
# little memory and short queues so that some have to wait or are refused. After each burst everything must be given back.
#   bench/run/traffic.sh [FOLDER]
#   DURATION=1800 SEED=1
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-traffic}
mkdir -p "$FOLDER"

engine traffic 8301 "$ALL_CORES" --mode eagle3 --draft "$HEAD_DIR" --draft-max 4 --draft-until 4 \
    --memory 32MiB --running-max 6 --waiting-max 8 --rows-max 64
python3 bench/run/traffic.py http://127.0.0.1:8301 "$PID" "${DURATION:-1800}" "${SEED:-1}" "$FOLDER" "$RUN/traffic.log"
