#!/usr/bin/env bash
# Checks and times the GPU side on the machine it runs on: `run.sh BIN OUT STAGE...`.
#
# BIN holds selftest, gpu, crossover-engine, the draft head's folder `head`, golden.json and
# model.gguf (stages that need the pair). The full logs go to OUT; a short table is printed last.
set -uo pipefail
bin=$1 out=$2
shift 2
here=$(dirname "$0")
mkdir -p "$out"
export XDG_CACHE_HOME=$out/cache RUST_BACKTRACE=1
say() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }
stage() {
  local name=$1
  shift
  local start=$SECONDS
  timeout "${STAGE_SECONDS_MAX:-200}" "$@" >"$out/$name.txt" 2>&1
  say "$name: exit $? in $((SECONDS - start)) s"
}

say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)"
for it in "$@"; do
  case $it in
    parity)
      stage parity "$bin/selftest" compare
      grep -E '^FAIL|comparisons|^error|skipped' "$out/parity.txt" | head -40 | tee -a "$out/summary.txt" ;;
    models)
      stage models "$bin/selftest" models
      grep -vE '^ok ' "$out/models.txt" | tee -a "$out/summary.txt" ;;
    times)
      stage times "$bin/selftest"
      grep -vE '^ok ' "$out/times.txt" | tee -a "$out/summary.txt" ;;
    sanitize)
      # racecheck of `layers quick` has not been seen to end.
      for it in "memcheck quick" "memcheck layers quick" "racecheck quick"; do
        read -ra words <<<"$it"
        name=${it// /-}
        stage "$name" timeout 200 compute-sanitizer --tool "${words[0]}" --error-exitcode 9 "$bin/selftest" "${words[@]:1}"
        grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|FAIL|comparisons' "$out/$name.txt" | tee -a "$out/summary.txt"
      done ;;
    prompts | switch)
      stage "$it" "$bin/gpu" "$it"
      cat "$out/$it.txt" | tee -a "$out/summary.txt" ;;
    pair)
      stage pair timeout 400 "$bin/gpu" pair "$bin/model.gguf" "$bin/head" "$bin/golden.json" 200
      cat "$out/pair.txt" | tee -a "$out/summary.txt" ;;
    steps)
      stage steps timeout 300 "$bin/gpu" steps
      cat "$out/steps.txt" | tee -a "$out/summary.txt" ;;
    http)
      stage http timeout 200 python3 "$here/surface.py" "$bin/crossover-engine" "$bin/model.gguf" "$bin/head" "$out"
      cat "$out/http.txt" | tee -a "$out/summary.txt" ;;
    nvrtc)
      # Compiles every kernel, then finds them on disk.
      for start in first second; do
        stage "nvrtc-$start" "$bin/selftest-nvrtc" compare
        grep -E '^opened|^FAIL|comparisons|^error' "$out/nvrtc-$start.txt" | tee -a "$out/summary.txt"
      done
      say "$(find "$out/cache" -name '*.ptx' | wc -l) kernels kept" ;;
    *) say "no stage is called $it"; exit 64 ;;
  esac
done
echo ======
cat "$out/summary.txt"
