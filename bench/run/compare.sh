#!/usr/bin/env bash
# Our pair against what is installed, one run.
#   bench/run/compare.sh [FOLDER] [ARGS of compare...]
# LLAMA_SERVER=PATH names llama.cpp's server; HIGH is the threshold for HAProxy and for `switch`; CALIBRATION=FILE
# makes our policy `marginal`; LOADS, ROUNDS and LOAD are as for sweep.sh.
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-peers}
shift || true
HIGH=${HIGH:-8}
pair
if [ -n "${CALIBRATION:-}" ]; then
    router ours 8010 < <(printf 'kind = "marginal"\ncalibration = "%s"\n' "$(realpath "$CALIBRATION")")
else
    router ours 8010 < <(printf 'kind = "switch"\nhigh = %s\n' "$HIGH")
fi
PROGRAMS=()
if [ -n "${LLAMA_SERVER:-}" ]; then PROGRAMS=(--program "llama-server=$LLAMA_SERVER"); fi
read -ra LOAD <<< "${LOAD:---tokens 128 --ignore-eos}"
"$BIN/crossover-bench" compare --routed "$(at 8010)" --speculative "$(at 8101)" --throughput "$(at 8102)" \
    --high "$HIGH" --gguf "$MODEL" "${PROGRAMS[@]}" --concurrency "${LOADS:-1,2,4,8,16,32}" \
    --rounds "${ROUNDS:-3}" "${LOAD[@]}" --out "$FOLDER" "$@"
