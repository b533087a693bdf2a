#!/usr/bin/env bash
# A pair on GPUs: each mode alone, routed by each policy, its crossover; and the front door over it.
#   BIN=FOLDER MODEL=FILE [DEVICES="cuda:0 cuda:1 [cuda:0,1]"] bench/gpu/pair.sh OUT STAGE...
#
# Stages: `up` (crossover up), `real` (the default pair), `strong` and `weak` (8B with random weights and a head of
# which 80, 60, 45 or 60, 30, 15 of 100 drafts are kept at the three places), `share` (weights shared on one card),
# `cores` (the default pair on CORES of this machine). `NAME&` runs beside those that follow. SHAPE=FOLDER keeps the
# 8B's files. A third device is one engine over both cards, beside the pair in the same tables: it drafts as deep as
# pays there (DEPTHS_REAL, DEPTHS_8B: arguments of calibrate, or a file), and all engines then take MEMORY of each of
# their cards. Prints a short table last.
set -uo pipefail
OUT=$(realpath -m "$1")
shift
here=$(cd "$(dirname "$0")" && pwd)
run=$here/../run
mkdir -p "$OUT"
export CLIENT_THREADS=${CLIENT_THREADS:-8}
export BIN MODEL HEAD_DIR=${HEAD_DIR:-$(realpath "$here/../../deploy/models/smollm2-135m-instruct-eagle3")}
DEVICES=${DEVICES:-cuda:0 cuda:1}
SHAPE=${SHAPE:-/tmp/shape-8b}
read -r first second together <<< "$DEVICES"
SHARE=${SHARE:-}
if [ "$first" = "$second" ]; then SHARE="--memory-fraction 0.4"; fi
if [ -n "$together" ]; then SHARE="--memory ${MEMORY:-24GiB}"; fi
say() { printf '%s\n' "$*" | tee -a "$OUT/summary.txt"; }

# stage NAME COMMAND...: its output in a file, how it ended in the summary
stage() {
    local name=$1 start=$SECONDS
    shift
    timeout "${STAGE_SECONDS_MAX:-400}" bash -c '"$@"' stage "$@" > "$OUT/$name.log" 2>&1
    say "$name: exit $? in $((SECONDS - start)) s"
    if [ "$name" = share ]; then cat "$OUT/share.log" | tee -a "$OUT/summary.txt"; fi
    if [ -f "$OUT/$name/found.txt" ]; then tee -a "$OUT/summary.txt" < "$OUT/$name/found.txt"; fi
    if [ -f "$OUT/$name/table.md" ]; then sed '/^$/q' "$OUT/$name/table.md" | tee -a "$OUT/summary.txt"; fi
}

# Both roles answer through the front door, and it ends cleanly.
front_door() {
    local dir=$OUT/up-run url=http://127.0.0.1:8000 pid
    "$BIN/crossover" up --model "$MODEL" --head "$HEAD_DIR" --device-speculative "$first" \
        --device-throughput "$second" --high "${HIGH:-16}" --run-dir "$dir" &
    pid=$!
    for port in 8101 8102; do
        for _ in $(seq 300); do
            if curl -sf -o /dev/null "http://127.0.0.1:$port/health"; then break; fi
            sleep 0.1
        done
    done
    for role in auto speculative throughput; do
        curl -sf -D - "$url/v1/chat/completions" -H 'content-type: application/json' -H "x-crossover-target: $role" \
            -d '{"messages":[{"role":"user","content":"What is the capital of France?"}],"temperature":0,"max_tokens":24}' \
            | grep -iE '^x-crossover|content' || return 1
    done
    kill -INT "$pid"
    wait "$pid"
}

# of_random RATES NAME: the 8B pair, its drafts kept by chance
of_random() {
    MODEL=$SHAPE HEAD_DIR=$SHAPE/head CORES=$DEVICES IN_FLIGHT_MAX=256 \
        ENGINE_ARGS="--load-format dummy --context-max 2048 $SHARE" SPECULATIVE_ARGS="--simulate-acceptance $1" \
        CALIBRATE=${CALIBRATE_8B:---in-flight-max 256 --repeats-min 2 --repeats-max 2 --requests-each 2 --requests-min 3 --drafts-max 0} \
        DEPTHS=${DEPTHS_8B:---in-flight-max 256 --repeats-min 2 --requests-each 2 --requests-min 4} \
        LOADS=${LOADS_8B:-1,4,16,32,64,128,256} ROUNDS=${ROUNDS_8B:-2} \
        LOAD=${LOAD_8B:---requests-each 2 --requests-min 3 --tokens 96-160 --ignore-eos --same-prompts} \
        bash "$run/sweep.sh" "$OUT/$2"
}

real() {
    CORES=$DEVICES IN_FLIGHT_MAX=256 ENGINE_ARGS="--context-max 2048 $SHARE" \
        CALIBRATE=${CALIBRATE_REAL:---in-flight-max 256 --repeats-min 2 --repeats-max 2 --tokens 256 --natural-ends --drafts-max 0} \
        DEPTHS=${DEPTHS_REAL:---in-flight-max 256 --repeats-min 2 --requests-each 2 --tokens 256 --natural-ends} \
        LOADS=${LOADS_REAL:-1,4,16,32,64,128,240} ROUNDS=${ROUNDS_REAL:-3} \
        LOAD=${LOAD_REAL:---requests-each 3 --requests-min 12 --tokens 256 --same-prompts} \
        bash "$run/sweep.sh" "$OUT/real"
}

share() { bash "$here/share.sh" "$OUT/share"; }

cores() {
    SHIFT=200 LOADS=${LOADS_CORES:-1,2,4,8,16,32} ROUNDS=${ROUNDS_CORES:-3} \
        taskset -c "${CORES_CLIENT:-12-15}" bash "$run/sweep.sh" "$OUT/cores"
}

export OUT SHAPE SHARE DEVICES here run first second
export -f front_door of_random real share cores
python3 "$here/shape.py" "$SHAPE" || exit 1

one() {
    case $1 in
        up) stage up front_door ;;
        real | share | cores) stage "$1" "$1" ;;
        strong) stage strong of_random 0.8,0.75,0.75 strong ;;
        weak) stage weak of_random 0.6,0.5,0.5 weak ;;
        *) say "no stage is called $1"; exit 64 ;;
    esac
}
for it in "$@"; do
    case $it in
        *'&') one "${it%&}" & ;;
        *) one "$it" ;;
    esac
done
wait
echo ======
cat "$OUT/summary.txt"
