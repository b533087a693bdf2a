#!/usr/bin/env bash
# The crossover: the pair alone, under every policy and behind HAProxy, and one engine on all cores.
#   bench/run/sweep.sh [FOLDER] [ARGS of sweep...]
# CALIBRATION=FILE takes a calibration instead of making one first; LOADS=1,2,4 is the ladder. Takes a quarter
# of an hour on two cores; what was measured is kept step by step.
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-crossover}
shift || true
mkdir -p "$FOLDER"
pair
if [ -n "${CALIBRATION:-}" ]; then
    cp "$CALIBRATION" "$FOLDER/calibration.json"
else
    calibrate "$FOLDER/calibration.json" --in-flight-max 32
fi
FILE=$(realpath "$FOLDER/calibration.json")
HIGH=$(sed -n 's/.*"high": *\([0-9]*\).*/\1/p' "$FILE")
# An engine on twice the cores has the same step at the same load, only sooner: it drafts as long.
engine one 8103 "$ALL_CORES" --mode eagle3 --draft "$HEAD_DIR" --draft-until "$HIGH"
router switch 8010 < <(printf 'kind = "switch"\nhigh = "auto"\ncalibration = "%s"\n' "$FILE")
router spill 8011 < <(printf 'kind = "spill"\nhigh = "auto"\ncalibration = "%s"\n' "$FILE")
router marginal 8012 < <(printf 'kind = "marginal"\ncalibration = "%s"\n' "$FILE")
TARGETS=(
    --target speculative=http://127.0.0.1:8010@speculative
    --target throughput=http://127.0.0.1:8010@throughput
    --target switch=http://127.0.0.1:8010
    --target spill=http://127.0.0.1:8011
    --target marginal=http://127.0.0.1:8012
    --target one=http://127.0.0.1:8103
)
if command -v haproxy > "$RUN/haproxy.path"; then
    unused 8013
    cat > "$RUN/haproxy.cfg" << END
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  option http-no-delay
frontend all
  bind 127.0.0.1:8013
  default_backend pair
backend pair
  balance first
  server speculative 127.0.0.1:8101 maxconn $HIGH
  server throughput 127.0.0.1:8102 maxconn 64
END
    start haproxy haproxy -f "$RUN/haproxy.cfg"
    ready haproxy http://127.0.0.1:8013/health
    TARGETS+=(--target haproxy=http://127.0.0.1:8013)
fi
"$BIN/crossover-bench" sweep "${TARGETS[@]}" --concurrency "${LOADS:-1,2,4,6,8,12,16,24,32}" --rounds 3 \
    --requests-each 2 --requests-min 6 --tokens 64 --ignore-eos --same-prompts \
    --metrics http://127.0.0.1:8101/metrics --metrics http://127.0.0.1:8103/metrics \
    --out "$FOLDER" "$@"
