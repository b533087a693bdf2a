# Sourced by the scripts beside it: builds, fetches the model, starts engines and routers, stops them at the end.
#
#   MODEL     the model's file              [what `crossover fetch` brings]
#   HEAD_DIR  its draft head                [the shipped one]
#   CORES     devices: speculative, throughput, and both together; no third on cards that nothing spans
#                                       [cpu:0 cpu:1 cpu:0-1]
#   ENGINE_ARGS, SPECULATIVE_ARGS       more arguments of all engines, and of those that draft
#   QUANTISATION                        part of a calibration's key   [what the engine says]
#   IN_FLIGHT_MAX                       what the routers send to one engine   [64]
#   CLIENT_THREADS                      of the client   [1]
#   SHIFT     is added to every port, so that two runs can stand side by side   [0]
. "$(dirname "${BASH_SOURCE[0]}")/children.sh"

MODEL=${MODEL:-$("$BIN/crossover" fetch | tail -n 1)}
HEAD_DIR=${HEAD_DIR:-deploy/models/smollm2-135m-instruct-eagle3}
CLIENT=("$BIN/crossover-bench" --threads "${CLIENT_THREADS:-1}")
read -r SPECULATIVE_CORES THROUGHPUT_CORES ALL_CORES <<< "${CORES:-cpu:0 cpu:1 cpu:0-1}"
read -ra ENGINE_ARGS <<< "${ENGINE_ARGS:-}"
read -ra SPECULATIVE_ARGS <<< "${SPECULATIVE_ARGS:-}"

# at PORT: the URL of what this run has there
at() { echo "http://127.0.0.1:$(($1 + ${SHIFT:-0}))"; }

# load NAME PORT DEVICE ARGS...: an engine, not waited for: others load their weights meanwhile
load() {
    local name=$1 port=$(($2 + ${SHIFT:-0})) device=$3
    shift 3
    unused "$port"
    start "$name" "$BIN/crossover-engine" --model "$MODEL" --device "$device" \
        --listen "127.0.0.1:$port" "${ENGINE_ARGS[@]}" "$@"
}

# engine NAME PORT DEVICE ARGS...
engine() {
    load "$@"
    ready "$1" "$(at "$2")/health"
}

# The pair on 8101 and 8102. K policies are off in it: the instance that drafts always drafts.
pair() {
    load speculative 8101 "$SPECULATIVE_CORES" --mode eagle3 --draft "$HEAD_DIR" "${SPECULATIVE_ARGS[@]}"
    load throughput 8102 "$THROUGHPUT_CORES" --mode baseline
    ready speculative "$(at 8101)/health"
    ready throughput "$(at 8102)/health"
}

# router NAME PORT: the policy's lines of the configuration come from standard input; not through a pipe, whose children nobody
# here could stop
router() {
    local name=$1 port=$(($2 + ${SHIFT:-0}))
    unused "$port" "$((port + 1000))"
    {
        printf 'listen = "127.0.0.1:%s"\nadmin = "127.0.0.1:%s"\n[policy]\n' "$port" "$((port + 1000))"
        cat
        for role in speculative:8101 throughput:8102; do
            printf '[[endpoint]]\nname = "%s"\nrole = "%s"\nkind = "crossover"\n' "${role%:*}" "${role%:*}"
            printf 'url = "%s"\nin_flight_max = %s\n' "$(at "${role#*:}")" "${IN_FLIGHT_MAX:-64}"
        done
    } > "$RUN/$name.toml"
    start "router-$name" "$BIN/crossover-router" --config "$RUN/$name.toml"
    ready "router-$name" "http://127.0.0.1:$((port + 1000))/readyz"
}

# calibrate FILE ARGS...: the pair must be up
calibrate() {
    local file=$1
    shift
    "${CLIENT[@]}" calibrate --speculative "$(at 8101)" --throughput "$(at 8102)" \
        ${QUANTISATION:+--quantisation "$QUANTISATION"} --device "$SPECULATIVE_CORES" --out "$file" "$@"
}
