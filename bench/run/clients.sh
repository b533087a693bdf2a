#!/usr/bin/env bash
# Official OpenAI clients and benchmark tools of others, unchanged, against both engines and the router. What is not named is
# left out, and said.
#   PYTHON=PATH     of a Python with the package `openai`
#   NODE_MODULES=DIR  with the package `openai`
#   VLLM=PATH AIPERF=PATH GUIDELLM=PATH TOKENIZER=DIR   the tools, and a folder with the model's tokenizer.json
#   bench/run/clients.sh [FOLDER]
. "$(dirname "$0")/pair.sh"
FOLDER=${1:-bench/results/$(date -u +%F)-clients}
mkdir -p "$FOLDER"
pair
router clients 8100 < <(printf 'kind = "switch"\nhigh = 3\n')
NAMES=(speculative throughput routed)
PORTS=(8101 8102 8100)
URLS=()
for port in "${PORTS[@]}"; do URLS+=("http://127.0.0.1:$port/v1"); done
ID=$(curl -s http://127.0.0.1:8101/v1/models | sed 's/.*"id":"\([^"]*\)".*/\1/')

# kept NAME LINES PROGRAM ARGS...: runs it and keeps the lines that the sed address LINES names; a failure ends the script
kept() {
    local name=$1 lines=$2
    shift 2
    if "$@" > "$RUN/$name.out" 2>&1; then
        sed -n "${lines}p" "$RUN/$name.out" > "$FOLDER/$name.txt"
        echo "$name: right"
    else
        tail -n 30 "$RUN/$name.out" >&2
        echo "$name: FAILED" >&2
        return 1
    fi
}

if [ -n "${PYTHON:-}" ]; then
    kept openai-python '1,$' "$PYTHON" tests/clients/openai_client.py "${URLS[@]}"
else
    echo 'openai-python: left out'
fi
if [ -n "${NODE_MODULES:-}" ]; then
    # Node looks for packages beside the script.
    cp tests/clients/openai_client.mjs "$RUN/"
    ln -s "$NODE_MODULES" "$RUN/node_modules"
    kept openai-node '1,$' node "$RUN/openai_client.mjs" "${URLS[@]}"
else
    echo 'openai-node: left out'
fi
for at in 0 1 2; do
    name=${NAMES[$at]} url=http://127.0.0.1:${PORTS[$at]}
    if [ -n "${VLLM:-}" ]; then
        for kind in "openai-chat /v1/chat/completions" "openai /v1/completions"; do
            read -r backend path <<< "$kind"
            kept "vllm-bench-$backend-$name" '/ Serving Benchmark Result /,/^=*$/' \
                env HF_HUB_OFFLINE=1 "$VLLM" bench serve --backend "$backend" --base-url "$url" \
                --endpoint "$path" --model "$ID" --tokenizer "$TOKENIZER" --dataset-name random --random-input-len 64 \
                --random-output-len 16 --num-prompts 24 --max-concurrency 4 --ignore-eos --seed 1
        done
    else
        echo "vllm-bench-$name: left out"
    fi
    if [ -n "${AIPERF:-}" ]; then
        kept "aiperf-$name" '/ LLM Metrics/,/^└/' \
            env -u HF_HUB_OFFLINE "$AIPERF" profile --model "$ID" --url "$url" --endpoint-type chat --streaming \
            --tokenizer "$TOKENIZER" --concurrency 4 --request-count 24 --synthetic-input-tokens-mean 64 \
            --synthetic-input-tokens-stddev 0 --output-tokens-mean 16 --extra-inputs ignore_eos:true --random-seed 1 \
            --ui none --artifact-dir "$RUN/aiperf-$name"
    else
        echo "aiperf-$name: left out"
    fi
    if [ -n "${GUIDELLM:-}" ]; then
        for path in chat/completions completions; do
            kept "guidellm-${path%/*}-$name" '/ Benchmark .* Timings/,/^|=/' \
                env HF_HUB_OFFLINE=1 "$GUIDELLM" run --disable-console-interactive \
                --backend "kind=openai_http,target=$url,model=$ID,request_format=/v1/$path" \
                --tokenizer "kind=huggingface_auto,model=$TOKENIZER" \
                --data kind=synthetic_text,prompt_tokens=64,output_tokens=16 --profile kind=concurrent,streams=4 \
                --constraint kind=max_requests,count=24 --output "kind=json,path=$RUN/guidellm.json"
        done
    else
        echo "guidellm-$name: left out"
    fi
done
curl -s http://127.0.0.1:9100/metrics | grep -E '^crossover_router_routed_total' | grep -v ' 0$' > "$FOLDER/routed.txt"
