# Sourced by what runs inside the machine: says what holds, and streams through the router.
set -uo pipefail
cd /try

ROUTER=http://127.0.0.1:8000
ADMIN=http://127.0.0.1:8001
CONFIG=/etc/crossover/router.toml
BAD=0

# holds TEXT COMMAND...: says whether the command succeeds, and what it said when it does not
holds() {
  local text=$1
  shift
  if "$@" > /tmp/said 2>&1; then
    echo "ok    $text"
  else
    echo "FAIL  $text"
    tail -n 8 /tmp/said | sed 's/^/      /'
    BAD=1
  fi
}
not() { ! "$@"; }
is() { [ "$1" = "$2" ] || { echo "$1 is not $2"; return 1; }; }
# soon SECONDS COMMAND...: tries until it succeeds
soon() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || return 1
    sleep 0.2
  done
}
shows() { systemctl show -P "$2" "$1"; }
main() { shows "$1" MainPID; }
is_state() { is "$(shows "$1" ActiveState)" "$2"; }
value() { curl -s "$ADMIN/metrics" | awk -v name="$1" 'index($0, name " ") == 1 { print $2 }'; }
answers() { curl -sf -o /dev/null --max-time 5 "$1"; }
up() { crossover status --json 2> /dev/null | jq '[.endpoints[] | select(.up and (.resting | not))] | length'; }
pair_up() { soon 120 eval 'is "$(up)" 2 > /dev/null'; }

# stream NAME TOKENS [CURL ARGS...]: one answer as it comes; NAME.* says how it went
stream() {
  local name=$1 tokens=$2
  shift 2
  curl -sS -N --max-time 900 -o "$name.sse" -D "$name.head" \
    -w '%{http_code} %{time_starttransfer} %{time_total}\n' \
    -H 'content-type: application/json' "$@" "$ROUTER/v1/chat/completions" -d '{
      "messages": [{"role": "user", "content": "Tell a long story of a lighthouse and a storm."}],
      "temperature": 0, "ignore_eos": true, "stream": true,
      "stream_options": {"include_usage": true}, "max_tokens": '"$tokens"'}' \
    > "$name.times" 2> "$name.error"
  echo $? > "$name.rc"
}
text() { sed -n 's/^data: //p' "$1.sse" | jq -Rj 'fromjson? | .choices[0].delta.content // empty'; }
begun() { grep -q '"content":"[^"]' "$1.sse" 2> /dev/null; }

# whole NAME TOKENS: it ended well, has all of its tokens, and says what `reference` says
whole() {
  local name=$1 said wanted
  is "$(cat "$name.rc")" 0 || { cat "$name.error"; return 1; }
  grep -q '^data: \[DONE\]' "$name.sse" || { echo "no end"; return 1; }
  is "$(sed -n 's/^data: //p' "$name.sse" | jq -R 'fromjson? | .usage.completion_tokens // empty' | tail -n 1)" "$2" ||
    return 1
  # The last piece may be half a character of the longer text.
  [ -e reference.text ] || text reference > reference.text
  said=$(text "$name") wanted=$(< reference.text)
  [ -n "$said" ] && [ "${wanted#"${said%?}"}" != "$wanted" ] || { echo "another text: $said"; return 1; }
}
