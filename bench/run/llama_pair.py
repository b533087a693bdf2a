"""Load through the router with the official OpenAI client, unchanged: whole answers, streams, and clients that leave.

    pip install openai
    python llama_pair.py SECONDS

One client, then eight side by side, each for so long. Fails when an answer is not complete, when a text differs from what
either server says by itself, when the router's counts do not come back to zero, or when a server still works for one who left.
"""

import json
import random
import sys
import threading
import time
import urllib.request

import openai
from openai import OpenAI

ROUTER, ADMIN = "http://127.0.0.1:8320", "http://127.0.0.1:8321"
SERVERS = {"speculative": "http://127.0.0.1:8312", "plain": "http://127.0.0.1:8311"}
ASKED = ["Why is the sky blue?", "Count to ten.", "Name three rivers.", "What is a router?"]
TOKENS = 48


def page(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def metrics():
    lines = (it.rsplit(" ", 1) for it in page(ADMIN + "/metrics").splitlines() if not it.startswith("#"))
    return {name.removeprefix("crossover_router_"): float(value) for name, value in lines}


def wish(text, **more):
    return dict(model="m", messages=[{"role": "user", "content": text}], max_tokens=TOKENS, temperature=0, seed=1, **more)


class Load:
    """What clients did and saw."""

    def __init__(self, texts):
        self.texts, self.lock = texts, threading.Lock()
        self.counts, self.first, self.served = {}, [], {}

    def note(self, what, n=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + n

    def client(self, seed, until):
        client, chance = OpenAI(base_url=ROUTER + "/v1", api_key="none", max_retries=0), random.Random(seed)
        while time.monotonic() < until:
            kind = chance.choices(["whole", "stream", "leaves in mid-stream", "leaves before the head"], [4, 4, 3, 1])[0]
            asked = chance.choice(ASKED)
            try:
                self.ask(client, chance, kind, asked)
            except openai.APITimeoutError:
                self.note(kind + ("" if kind == "leaves before the head" else ": timed out"))
            except openai.APIError as error:
                self.note(f"{kind}: {error}")

    def ask(self, client, chance, kind, asked):
        if kind == "leaves before the head":
            client.with_options(timeout=0.03).chat.completions.create(**wish(asked))
            self.note("leaves before the head, and was answered")
        elif kind == "whole":
            raw = client.chat.completions.with_raw_response.create(**wish(asked))
            self.end(kind, raw.headers["x-crossover-endpoint"], asked, raw.parse().choices[0].message.content)
        else:
            begun, text, leave_at = time.monotonic(), "", chance.randrange(3, 30)
            raw = client.chat.completions.with_raw_response.create(**wish(asked, stream=True))
            for number, piece in enumerate(raw.parse()):
                if number == 1:
                    self.first.append(time.monotonic() - begun)
                if kind == "leaves in mid-stream" and number == leave_at:
                    raw.http_response.close()
                    return self.note(kind)
                text += "".join(it.delta.content or "" for it in piece.choices)
            self.end("stream", raw.headers["x-crossover-endpoint"], asked, text)

    def end(self, kind, server, asked, text):
        self.note(kind)
        self.note("texts like one of the servers' own" if text in self.texts[asked] else "texts unlike both servers' own")
        with self.lock:
            self.served[server] = self.served.get(server, 0) + 1


def alone(url):
    client = OpenAI(base_url=url + "/v1", api_key="none")
    return {it: client.chat.completions.create(**wish(it)).choices[0].message.content for it in ASKED}


def settled():
    """Nothing in flight in the router, and no slot of a server at work."""
    for _ in range(100):
        held = metrics()["total_in_flight"]
        busy = sum(it["is_processing"] for url in SERVERS.values() for it in json.loads(page(url + "/slots")))
        if held == 0 and busy == 0:
            return True
        time.sleep(0.1)
    return False


def main():
    own = [alone(url) for url in SERVERS.values()]
    texts = {it: {said[it] for said in own} for it in ASKED}
    good = True
    for clients in [1, 8]:
        load, before = Load(texts), metrics()
        until = time.monotonic() + float(sys.argv[1])
        threads = [threading.Thread(target=load.client, args=(seed, until)) for seed in range(clients)]
        for it in threads:
            it.start()
        for it in threads:
            it.join()
        done = settled()
        good &= done and not any(":" in it for it in load.counts)
        moved = {name: value - before.get(name, 0) for name, value in metrics().items()}
        print(f"## {clients} clients, openai {openai.__version__}\n\n| | |\n|---|---|")
        for name, count in sorted(load.counts.items()):
            print(f"| {name} | {count} |")
        first = sorted(load.first)
        print(f"| first token of streams, p50, ms | {first[len(first) // 2] * 1e3:.0f} |")
        for name, count in sorted(moved.items()):
            if count and name.startswith(("routed_total", "outcomes_total", "retries_total", "transitions_total", "refused_total")):
                print(f"| `{name}` | {count:.0f} |")
        print(f"| in flight and at work afterwards | {'nothing' if done else 'something'} |\n")
    sys.exit(0 if good else "something went wrong: see above")


main()
