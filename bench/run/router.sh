#!/usr/bin/env bash
# What our router costs between a client and two instant engines, beside nginx, HAProxy and the routers of SGLang and vLLM
# where they are installed. Each has one thread where it can be told so, and keeps connections; all in turns, one run.
#   bench/run/router.sh [FOLDER]
#   ROUNDS=5 SECONDS_EACH=3 SGLANG_ROUTER=PATH VLLM_ROUTER=PATH
#   ROUTER=PATH     ours       [built as packages have it]
#   BEFORE=PATH     another one of ours, to compare with
. "$(dirname "$0")/children.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-router}
ROUNDS=${ROUNDS:-5} SECONDS_EACH=${SECONDS_EACH:-3}
if [ -z "${ROUTER:-}" ]; then
    cargo build --profile dist --locked -p router
    ROUTER=${CARGO_TARGET_DIR:-target}/dist/crossover-router
fi
mkdir -p "$FOLDER"
ulimit -n "$(ulimit -Hn)"
unused 19001 19002 19100 19101 19200 19201 19300 19400 19500 19501 19510 19511

start mock-a "$BIN/crossover-bench" hop mock 127.0.0.1:19001
TARGETS=(--target "direct=127.0.0.1:19001@$PID")
start mock-b "$BIN/crossover-bench" hop mock 127.0.0.1:19002
ready mock-a http://127.0.0.1:19001/health
ready mock-b http://127.0.0.1:19002/health

# ours NAME PORT PROGRAM
ours() {
    cat > "$RUN/$1.toml" << END
listen = "127.0.0.1:$2"
admin = "127.0.0.1:$(($2 + 1))"
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
END
    start "$1" "$3" --config "$RUN/$1.toml"
    ready "$1" "http://127.0.0.1:$2/health"
    TARGETS+=(--target "$1=127.0.0.1:$2@$PID")
}
ours crossover 19500 "$ROUTER"
if [ -n "${BEFORE:-}" ]; then ours before 19510 "$BEFORE"; fi

if command -v nginx > "$RUN/found"; then
    cat > "$RUN/nginx.conf" << END
daemon off; worker_processes 1; pid $RUN/nginx.pid; error_log $RUN/nginx.err;
events { worker_connections 16384; }
http {
  access_log off; client_max_body_size 512m; client_body_buffer_size 1m; keepalive_requests 1000000000;
  upstream engines { least_conn; server 127.0.0.1:19001; server 127.0.0.1:19002; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:19300 backlog=4096;
    location / {
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 1800s;
    }
  }
}
END
    start nginx nginx -p "$RUN" -c "$RUN/nginx.conf"
    MASTER=$PID
    ready nginx http://127.0.0.1:19300/health && TARGETS+=(--target "nginx=127.0.0.1:19300@$(pgrep -P "$MASTER" | head -n 1)")
fi

if command -v haproxy > "$RUN/found"; then
    cat > "$RUN/haproxy.cfg" << 'END'
global
  maxconn 9000
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
  server a 127.0.0.1:19001
  server b 127.0.0.1:19002
END
    start haproxy haproxy -f "$RUN/haproxy.cfg"
    ready haproxy http://127.0.0.1:19400/health && TARGETS+=(--target "haproxy=127.0.0.1:19400@$PID")
fi

if [ -n "${SGLANG_ROUTER:-}" ]; then
    start sglang-router "$SGLANG_ROUTER" launch --host 127.0.0.1 --port 19100 --policy power_of_two --log-level warn \
        --worker-urls http://127.0.0.1:19001 http://127.0.0.1:19002 --prometheus-host 127.0.0.1 --prometheus-port 19101
    ready sglang-router http://127.0.0.1:19100/health && TARGETS+=(--target "sglang-router=127.0.0.1:19100@$PID")
fi
if [ -n "${VLLM_ROUTER:-}" ]; then
    start vllm-router "$VLLM_ROUTER" --host 127.0.0.1 --port 19200 --policy power_of_two --log-level warning \
        --worker-urls http://127.0.0.1:19001 http://127.0.0.1:19002 --prometheus-host 127.0.0.1 --prometheus-port 19201
    ready vllm-router http://127.0.0.1:19200/health && TARGETS+=(--target "vllm-router=127.0.0.1:19200@$PID")
fi

: > "$FOLDER/figures.md"
measure() {
    printf '## %s\n\n' "$*" | tee -a "$FOLDER/figures.md"
    "$BIN/crossover-bench" hop "$@" "${TARGETS[@]}" | tee -a "$FOLDER/figures.md"
}

printf 'load before: %s\n\n' "$(cut -d' ' -f1-3 /proc/loadavg)" >> "$FOLDER/figures.md"
measure latency --rate 400 --seconds "$SECONDS_EACH" --rounds "$ROUNDS"
for size in 65536 1048576 16777216; do
    measure latency --rate 20 --size "$size" --seconds "$SECONDS_EACH" --rounds 3
done
for connections in 1 16 64; do
    measure saturate --connections "$connections" --seconds "$SECONDS_EACH" --rounds "$ROUNDS"
done
measure stream --streams 500 --pieces 40 --every 100 --rounds 3
measure stream --streams 64 --pieces 100 --every 20 --rounds 3
if [ "${MANY:-1}" = 1 ]; then
    measure stream --streams 5000 --pieces 10 --every 500 --ramp 4000 --rounds 1
fi
printf 'load after: %s\n' "$(cut -d' ' -f1-3 /proc/loadavg)" >> "$FOLDER/figures.md"
