#!/usr/bin/env bash
# The crossover: the pair alone, under every policy and behind HAProxy, and one engine on all cores.
#   bench/run/sweep.sh [FOLDER] [ARGS of sweep...]
# CALIBRATION=FILE takes a calibration instead of making one first, with arguments CALIBRATE; LOADS=1,2,4 is the
# ladder, ROUNDS and LOAD what is sent at each. DEPTHS, arguments of calibrate or a file of depths that it wrote, lets
# the one engine draft as deep as pays there, and not as long as the pair. Takes a quarter of an hour on two cores;
# what was measured is kept step by step.
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-crossover}
shift || true
mkdir -p "$FOLDER"
ONE=(8103 "$ALL_CORES" --mode eagle3 --draft "$HEAD_DIR" "${SPECULATIVE_ARGS[@]}")
if [ -n "$ALL_CORES" ] && [ -n "${DEPTHS:-}" ] && [ ! -f "$DEPTHS" ]; then
    load one-always "${ONE[@]}"
    ALWAYS=$PID
fi
pair
if [ -n "${CALIBRATION:-}" ]; then
    cp "$CALIBRATION" "$FOLDER/calibration.json"
else
    read -ra CALIBRATE <<< "${CALIBRATE:---in-flight-max 32}"
    calibrate "$FOLDER/calibration.json" "${CALIBRATE[@]}" | tee "$FOLDER/found.txt"
fi
FILE=$(realpath "$FOLDER/calibration.json")
HIGH=$(sed -n 's/.*"high": *\([0-9]*\).*/\1/p' "$FILE")
: "${HIGH:?$FILE says no threshold}"
router switch 8010 < <(printf 'kind = "switch"\nhigh = "auto"\ncalibration = "%s"\n' "$FILE")
router spill 8011 < <(printf 'kind = "spill"\nhigh = "auto"\ncalibration = "%s"\n' "$FILE")
router marginal 8012 < <(printf 'kind = "marginal"\ncalibration = "%s"\n' "$FILE")
TARGETS=(
    --target "speculative=$(at 8010)@speculative"
    --target "throughput=$(at 8010)@throughput"
    --target "switch=$(at 8010)"
    --target "spill=$(at 8011)"
    --target "marginal=$(at 8012)"
    --metrics "$(at 8101)/metrics"
)
if [ -n "$ALL_CORES" ]; then
    # An engine on twice the cores has the same step at the same load, only sooner: it drafts as long.
    UNTIL=("$HIGH")
    if [ -f "${DEPTHS:-}" ]; then
        cp "$DEPTHS" "$FOLDER/depths.json"
    elif [ -n "${DEPTHS:-}" ]; then
        read -ra DEPTHS <<< "$DEPTHS"
        ready one-always "$(at 8103)/health"
        "${CLIENT[@]}" calibrate --one --speculative "$(at 8103)" \
            --device "$ALL_CORES" --out "$FOLDER/depths.json" "${DEPTHS[@]}" | tee -a "$FOLDER/found.txt"
        kill "$ALWAYS"
        wait "$ALWAYS" || true
    fi
    if [ -n "${DEPTHS:-}" ]; then UNTIL=(auto --calibration "$FOLDER/depths.json"); fi
    engine one "${ONE[@]}" --draft-until "${UNTIL[@]}"
    TARGETS+=(--target "one=$(at 8103)" --metrics "$(at 8103)/metrics")
fi
# To HAProxy 0 connections at most are as many as come.
if [ "$HIGH" -gt 0 ] && command -v haproxy > "$RUN/haproxy.path"; then
    PORT=$((8013 + ${SHIFT:-0}))
    unused "$PORT"
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
  bind 127.0.0.1:$PORT
  default_backend pair
backend pair
  balance first
  server speculative 127.0.0.1:$((8101 + ${SHIFT:-0})) maxconn $HIGH
  server throughput 127.0.0.1:$((8102 + ${SHIFT:-0})) maxconn ${IN_FLIGHT_MAX:-64}
END
    start haproxy haproxy -f "$RUN/haproxy.cfg"
    ready haproxy "$(at 8013)/health"
    TARGETS+=(--target "haproxy=$(at 8013)")
fi
read -ra LOAD <<< "${LOAD:---requests-each 2 --requests-min 6 --tokens 64 --ignore-eos --same-prompts}"
"${CLIENT[@]}" sweep "${TARGETS[@]}" --concurrency "${LOADS:-1,2,4,6,8,12,16,24,32}" \
    --rounds "${ROUNDS:-3}" "${LOAD[@]}" --out "$FOLDER" "$@"
