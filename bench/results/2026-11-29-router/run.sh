#!/usr/bin/env bash
# Measures what a proxy adds between a client and two instant engines, against nginx and HAProxy, in interleaved rounds.
#
#   ROUTER=target/release/crossover-router MOCK=... CLIENT=... bench/results/2026-11-29-router/run.sh OUT_FOLDER
#
# MOCK PORT THREADS NAME   is an engine that answers POST at once, and streams when the prompt says `mock:n=PIECES,d=MS`.
# CLIENT lat|sat|stream --t NAME=HOST:PORT@PID ...   measures one target after the other in each round.
# Every proxy has one thread and keeps connections to both engines. Nothing leaves the loopback device.
set -euo pipefail
: "${ROUTER:?}" "${MOCK:?}" "${CLIENT:?}"
out=${1:?a folder for the results}
seconds=${SECONDS_EACH:-5} rounds=${ROUNDS:-5}
mkdir -p "$out"
run=$(mktemp -d)
pids=()
stop() { kill "${pids[@]}" 2>/dev/null || true; rm -rf "$run"; }
trap stop EXIT

up() { # PORT: waits until it answers
  for _ in $(seq 100); do curl -sf -o /dev/null "http://127.0.0.1:$1/health" && return; sleep .1; done
  echo "port $1 does not answer" >&2; exit 1
}

"$MOCK" 19001 1 a >"$run/a.log" 2>&1 & pids+=($!); direct=$!
"$MOCK" 19002 1 b >"$run/b.log" 2>&1 & pids+=($!)
up 19001; up 19002

cat >"$run/router.toml" <<'CONFIG'
listen = "127.0.0.1:19500"
admin = "127.0.0.1:19501"
threads = 1
[policy]
kind = "spill"
high = 8
[[endpoint]]
name = "a"
role = "speculative"
url = "http://127.0.0.1:19001"
in_flight_max = 16384
[[endpoint]]
name = "b"
role = "throughput"
url = "http://127.0.0.1:19002"
in_flight_max = 16384
CONFIG
"$ROUTER" --config "$run/router.toml" >"$run/router.log" 2>&1 & pids+=($!); router=$!
up 19500

targets=(--t "direct=127.0.0.1:19001@$direct" --t "crossover=127.0.0.1:19500@$router")

if command -v nginx >/dev/null; then
  cat >"$run/nginx.conf" <<CONFIG
daemon off; worker_processes 1; pid $run/nginx.pid; error_log $run/nginx.err;
events { worker_connections 16384; }
http {
  access_log off; client_max_body_size 512m; keepalive_requests 1000000000;
  upstream engines { least_conn; server 127.0.0.1:19001; server 127.0.0.1:19002; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:19300 backlog=4096;
    location / { proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 1800s; }
  }
}
CONFIG
  nginx -p "$run" -c "$run/nginx.conf" >"$run/nginx.log" 2>&1 & pids+=($!); master=$!
  up 19300
  targets+=(--t "nginx=127.0.0.1:19300@$(pgrep -P "$master")")
fi

if command -v haproxy >/dev/null; then
  cat >"$run/haproxy.cfg" <<'CONFIG'
global
  maxconn 16384
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 1800s
  timeout server 1800s
  option http-no-delay
frontend all
  bind 127.0.0.1:19400
  default_backend engines
backend engines
  balance leastconn
  http-reuse always
  server a 127.0.0.1:19001 check
  server b 127.0.0.1:19002 check
CONFIG
  haproxy -f "$run/haproxy.cfg" >"$run/haproxy.log" 2>&1 & pids+=($!); haproxy=$!
  up 19400
  targets+=(--t "haproxy=127.0.0.1:19400@$haproxy")
fi

say() { echo "== $*" | tee -a "$out/figures.txt"; }
measure() { "$CLIENT" "$@" "${targets[@]}" | tee -a "$out/figures.txt"; }

: >"$out/figures.txt"
say "$(uname -r), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)"
say 'latency at 400 requests a second, 100 for each target'
measure lat --rate 400 --secs $((seconds * 4))
for size in 1024 65536 1048576; do
  say "latency at 100 requests a second, prompts of $size bytes"
  measure lat --rate 100 --secs $((seconds * 2)) --prompt "$size"
done
for connections in 1 16 64; do
  say "as fast as it goes, $connections connections"
  measure sat --conc "$connections" --secs "$seconds" --rounds "$rounds"
done
say '500 streams of 50 pieces, one every 100 ms'
measure stream --conc 500 --n 50 --d 100 --rounds 3
say '64 streams of 200 pieces, one every 20 ms'
measure stream --conc 64 --n 200 --d 20 --rounds 3
if [ "${MANY:-1}" = 1 ]; then
  ulimit -n "$(ulimit -Hn)"
  say '5000 streams of 20 pieces, one every 500 ms'
  measure stream --conc 5000 --n 20 --d 500 --ramp 5000 --rounds 1
fi
say "load at the end $(cut -d' ' -f1-3 /proc/loadavg)"
