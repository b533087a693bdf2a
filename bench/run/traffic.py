#!/usr/bin/env python3
"""Sends bursts of mixed requests to one engine and looks at what is left of them after each.

    traffic.py URL PID SECONDS SEED FOLDER LOG

FOLDER gets bursts.csv (a line for each burst, once the engine was idle again) and summary.txt. Ends
with 1 as soon as something is not given back, or when the text of a fixed request changes. The
engine itself checks its pages whenever it is idle, and ends when one is missing."""

import collections
import csv
import http.client
import json
import os
import pathlib
import random
import socket
import sys
import threading
import time
import urllib.parse

URL, PID, SECONDS, SEED, FOLDER, LOG = sys.argv[1:]
ADDRESS = urllib.parse.urlparse(URL)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = "the harbour master wrote that a ship with tea left on day 7 and came back with salt".split()
IDLE_SECONDS_MAX = 600
FIXED = {
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "max_tokens": 24, "temperature": 0,
}
WRONG = [
    b"{", b"[]", b'{"messages": []}', b'{"messages": [{"role": "user"}], "temperature": 9000}',
    b'{"prompt": [1, 99999999]}', b'{"messages": [{"content": "x"}]}', b'{"prompt": "x", "n": 0}',
]
FORMATS = [
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "[a-z]{3,20}( [a-z]{2,9}){0,4}"}},
    {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
]
outcomes = collections.Counter()
counting = threading.Lock()


def count(*names):
    with counting:
        outcomes.update(names)


def connect():
    return http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=300)


def get(path):
    connection = connect()
    connection.request("GET", path)
    answer = connection.getresponse().read().decode()
    connection.close()
    return answer


def body(rng):
    """A request of any kind, short."""
    words = " ".join(rng.choices(WORDS, k=int(rng.paretovariate(0.9) * 3) % 300 + 1))
    request = {"max_tokens": rng.choice([1, 4, 16, 32, 48]), "temperature": rng.choice([0, 0.7, 1.3])}
    path = rng.choice([CHAT, COMPLETIONS])
    if path == CHAT:
        request["messages"] = [{"role": "user", "content": words}]
    else:
        request["prompt"] = rng.choice([words, [words, "one two one two"]])
    wishes = [
        {"seed": rng.randrange(9)}, {"n": rng.randint(2, 3)}, {"stop": [" the", "\n"]},
        {"frequency_penalty": 0.6, "presence_penalty": 0.3}, {"repetition_penalty": 1.2},
        {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2},
        {"ignore_eos": True}, {"speculative": False}, {"priority": rng.randint(-2, 2)},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.05}, {"logit_bias": {"28": 2}}, {"timeout": 0.3},
        rng.choice(FORMATS),
    ]
    for wish in rng.sample(wishes, rng.choice([0, 1, 1, 2, 3])):
        request |= wish
    if rng.random() < 0.6:
        request["stream"] = True
    return path, request


def send(rng):
    """One request and its fate: read to the end, cut somewhere, or ended by its name."""
    if rng.random() < 0.06:
        path, data = rng.choice([CHAT, COMPLETIONS]), rng.choice(WRONG)
    else:
        path, request = body(rng)
        data = json.dumps(request).encode()
    name = f"traffic-{rng.getrandbits(48):x}"
    fate = rng.choices(["read", "cut before", "cut within", "aborted"], [55, 18, 17, 10])[0]
    connection = connect()
    try:
        headers = {"content-type": "application/json", "x-request-id": name}
        connection.request("POST", path, data, headers)
        if fate == "cut before":
            time.sleep(rng.random() * rng.choice([0.01, 0.3, 3]))
            return count(fate)
        if fate == "aborted":
            time.sleep(rng.random())
            other = connect()
            other.request("POST", "/abort_request", json.dumps({"rid": name}))
            other.getresponse().read()
            other.close()
        answer = connection.getresponse()
        if fate == "cut within":
            answer.read(rng.choice([1, 200, 600]))
            return count(fate, f"status {answer.status}")
        answer.read()
        count(fate, f"status {answer.status}")
    except (http.client.HTTPException, socket.error) as error:
        count(fate, f"broken off: {type(error).__name__}")
    finally:
        connection.close()


def burst(rng):
    size = rng.choice([1, 1, 2, 3, 5, 8, 12, 16])
    seeds = [random.Random(rng.getrandbits(64)) for _ in range(size)]
    threads = [threading.Thread(target=send, args=(it,)) for it in seeds]
    for thread in threads:
        thread.start()
        time.sleep(rng.choice([0, 0, 0.05, 0.4]))
    for thread in threads:
        thread.join()
    return size


def held():
    """What the process holds: descriptors, threads, memory."""
    status = dict(
        line.split(":", 1) for line in pathlib.Path(f"/proc/{PID}/status").read_text().splitlines()
    )
    return {
        "descriptors": len(os.listdir(f"/proc/{PID}/fd")),
        "threads": int(status["Threads"]),
        "memory_kb": int(status["VmRSS"].split()[0]),
    }


def metric(page, name):
    lines = [it for it in page.splitlines() if it.startswith(name + "{")]
    return sum(float(it.rsplit(" ", 1)[1]) for it in lines)


def wait_idle(descriptors_max):
    """Until nothing runs or waits, no page is in use, and no connection is left."""
    end = time.monotonic() + IDLE_SECONDS_MAX
    while True:
        load, page, now = json.loads(get("/load")), get("/metrics"), held()
        used = metric(page, "crossover_engine_pages_used")
        busy = load["running"] or load["waiting"] or load["kv_usage"] or used
        if not busy and now["descriptors"] <= descriptors_max:
            return now, page
        if end < time.monotonic():
            sys.exit(f"not given back after {IDLE_SECONDS_MAX} s: {load}, {used} pages, {now}")
        time.sleep(0.2)


def fixed():
    connection = connect()
    connection.request("POST", CHAT, json.dumps(FIXED))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["choices"][0]["message"]["content"]


def main():
    folder = pathlib.Path(FOLDER)
    rng = random.Random(int(SEED))
    expected = fixed()
    # One descriptor for the connection that asks.
    start = held() | {"descriptors": held()["descriptors"] + 1}
    begin = time.monotonic()
    requests, rows = 0, []
    with open(folder / "bursts.csv", "w", newline="") as out:
        table = csv.writer(out)
        table.writerow(["second", "requests", "cached_pages", *start])
        while time.monotonic() - begin < float(SECONDS):
            requests += burst(rng)
            now, page = wait_idle(start["descriptors"])
            if fixed() != expected:
                sys.exit("the fixed request has another text now")
            second = round(time.monotonic() - begin)
            cached = int(metric(page, "crossover_engine_pages_cached"))
            rows.append((second, now))
            table.writerow([second, requests, cached, *now.values()])
            out.flush()
            time.sleep(rng.random() * 4)
    # Threads that encode long prompts end when they were idle for ten seconds.
    time.sleep(12)
    now, page = wait_idle(start["descriptors"])
    quarter = len(rows) // 4
    memory = [it["memory_kb"] for _, it in rows]
    starts = (0, quarter, 2 * quarter, len(rows) - quarter)
    means = [sum(memory[at:][:quarter]) // max(quarter, 1) for at in starts]
    names = [
        "vllm:num_preemptions_total", "crossover_engine_draft_depth_switches_total",
        "crossover_engine_clients_gone_total", "crossover_engine_requests_refused_total",
        "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total",
        "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:request_success_total", "crossover_engine_steps_total",
    ]
    complaints = [
        it for it in pathlib.Path(LOG).read_text().splitlines() if "ERROR" in it or "panick" in it
    ]
    lines = [
        f"seconds {round(time.monotonic() - begin)}, bursts {len(rows)}, requests {requests}",
        f"start {start}", f"end {now}",
        f"mean memory by quarter of the bursts, kB: {means}",
        *(f"{name}: {number}" for name, number in sorted(outcomes.items())),
        *(f"{name} {metric(page, name):.0f}" for name in names),
        f"lines of the engine's log with an error: {len(complaints)}", *complaints[:5],
    ]
    text = "\n".join(lines) + "\n"
    (folder / "summary.txt").write_text(text)
    print(text)


main()
