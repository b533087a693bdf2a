"""Holds crossover-engine on a GPU to its HTTP surface: surface.py ENGINE MODEL HEAD LOGS."""

import concurrent.futures
import http.client
import json
import os
import signal
import subprocess
import sys
import time

ENGINE, MODEL, HEAD, LOGS = sys.argv[1:5]
FAILED = []


def check(name, holds, detail=""):
    print("ok  " if holds else "FAIL", name, detail if not holds else "", flush=True)
    if not holds:
        FAILED.append(name)


class Engine:
    def __init__(self, name, port, *flags):
        self.port = port
        self.log = open(os.path.join(LOGS, f"engine-{name}.txt"), "w+")
        line = [ENGINE, "--model", MODEL, "--device", "cuda:0", "--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(line + list(flags), stderr=self.log, stdout=self.log)

    def wait_ready(self):
        start = time.monotonic()
        while time.monotonic() - start < 90 and self.process.poll() is None:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return time.monotonic() - start
            except OSError:
                pass
            time.sleep(0.05)
        self.log.seek(0)
        print(self.log.read())
        raise SystemExit("the engine did not become ready")

    def ask(self, method, path, body=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        text = None if body is None else json.dumps(body)
        link.request(method, path, text, {"content-type": "application/json"})
        answer = link.getresponse()
        return answer.status, answer.read().decode()

    def chat(self, content, **fields):
        body = {"model": "", "messages": [{"role": "user", "content": content}], "max_tokens": 64}
        del body["model"]
        status, text = self.ask("POST", "/v1/chat/completions", body | {"temperature": 0} | fields)
        return status, json.loads(text)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(40)


def text(answer):
    return answer[1]["choices"][0]["message"]["content"]


def refused(name, words, *flags):
    line = [ENGINE, "--model", MODEL, "--listen", "127.0.0.1:8139", *flags]
    run = subprocess.run(line, capture_output=True, text=True, timeout=90)
    last = run.stderr.strip().splitlines()[-1] if run.stderr.strip() else ""
    check(f"{name}: exit {run.returncode}, {last!r}", run.returncode not in (0, 101) and words in last)


PROMPTS = ["Write a haiku about wheat.", "What is the capital of France?", "Count to twenty.",
           "Explain rain to a child.", "Name five fish.", "Tell me a short story about a fox."]

refused("no such GPU", "number 7", "--device", "cuda:7")
refused("no such part", "CUDA_VISIBLE_DEVICES", "--device", "MIG-41b35e1f-2b7d-5e3a-8d0c-6a1f0c6f9b42")
refused("too much memory", "left beside the weights", "--device", "cuda:0", "--memory", "900GiB")
refused("too little memory", "one text of 8192 tokens", "--device", "cuda:0", "--memory", "1MiB", "--context-max", "8192")

plain = Engine("baseline", 8101, "--memory-fraction", "0.3", "--context-max", "2048")
print(f"baseline ready in {plain.wait_ready():.1f} s")
fast = Engine("eagle3", 8102, "--memory-fraction", "0.3", "--context-max", "2048", "--mode", "eagle3", "--draft", HEAD)
print(f"eagle3 on the same card ready in {fast.wait_ready():.1f} s")

for name, engine in [("baseline", plain), ("eagle3", fast)]:
    answer = engine.chat(PROMPTS[1])
    check(f"{name}: chat says {text(answer)!r}", answer[0] == 200 and "Paris" in text(answer))
    status, models = engine.ask("GET", "/v1/models")
    check(f"{name}: models", status == 200 and len(json.loads(models)["data"]) == 1)
    status, load = engine.ask("GET", "/load")
    check(f"{name}: load {load}", status == 200 and json.loads(load)["mode"] == name)
    status, metrics = engine.ask("GET", "/metrics")
    check(f"{name}: metrics", status == 200 and "vllm:" in metrics)
    check(f"{name}: unknown token", engine.ask("POST", "/v1/completions", {"prompt": [99_999_999], "max_tokens": 4})[0] == 400)
    check(f"{name}: too long", engine.chat("x", max_tokens=100_000)[0] == 400)
    stopped = engine.chat(PROMPTS[1], stop=["capital"])
    check(f"{name}: stop string", text(stopped) == "The " and stopped[1]["choices"][0]["finish_reason"] == "stop", str(stopped))
    several = engine.chat(PROMPTS[0], n=3, temperature=0.9, seed=3)
    texts = {it["message"]["content"] for it in several[1]["choices"]}
    check(f"{name}: n = 3", len(texts) == 3, str(several))
    logs = engine.chat(PROMPTS[1], logprobs=True, top_logprobs=3, max_tokens=8)
    entries = logs[1]["choices"][0]["logprobs"]["content"]
    right = all(len(it["top_logprobs"]) == 3 and it["top_logprobs"][0]["token"] == it["token"] for it in entries)
    check(f"{name}: logprobs", right and all(it["logprob"] <= 0 for it in entries), str(entries))
    banned = engine.chat(PROMPTS[1], logit_bias={str(json.loads(engine.ask("POST", "/tokenize", {"prompt": "The"})[1])["tokens"][0]): -100})
    check(f"{name}: bias, {text(banned)!r}", not text(banned).startswith("The"))

    link = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    body = {"messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 64, "stream": True, "temperature": 0}
    link.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    events = [it[6:] for it in link.getresponse().read().decode().split("\n") if it.startswith("data: ")]
    parts = [json.loads(it)["choices"][0]["delta"].get("content") or "" for it in events[:-1] if json.loads(it)["choices"]]
    whole = text(engine.chat(PROMPTS[0]))
    check(f"{name}: stream of {len(events)} events", events[-1] == "[DONE]" and "".join(parts) == whole, "".join(parts))

    link = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=60)
    link.request("POST", "/v1/chat/completions", json.dumps(body | {"max_tokens": 1500, "ignore_eos": True}), {"content-type": "application/json"})
    link.getresponse().read(200)
    link.sock.close() if link.sock else None
    link.close()
    for _ in range(100):
        if json.loads(engine.ask("GET", "/load")[1])["running"] == 0:
            break
        time.sleep(0.05)
    check(f"{name}: a client that went away", json.loads(engine.ask("GET", "/load")[1])["running"] == 0)

same = 0
settings = [{}, {"temperature": 0.8, "seed": 7, "top_p": 0.9}, {"temperature": 1.1, "seed": 8, "top_k": 20, "min_p": 0.02},
            {"presence_penalty": 0.7, "frequency_penalty": 0.3}, {"repetition_penalty": 1.2}]
alone = [(prompt, it, text(plain.chat(prompt, **it))) for prompt in PROMPTS for it in settings]
with concurrent.futures.ThreadPoolExecutor(30) as pool:
    both = [(pool.submit(plain.chat, p, **it), pool.submit(fast.chat, p, **it), want) for p, it, want in alone]
    differ = [sum(text(one[at].result()) != one[2] for one in both) for at in (0, 1)]
check(f"{len(alone)} texts alone, together, and with drafts: {differ} differ", differ == [0, 0])

def closed(engine, at_once, seconds=4.0):
    end, tokens = time.monotonic() + seconds, 0
    def client(number):
        count = 0
        while time.monotonic() < end:
            answer = engine.chat(PROMPTS[number % 6] + f" {number}", max_tokens=200)
            count += answer[1]["usage"]["completion_tokens"]
        return count
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        tokens = sum(pool.map(client, range(at_once)))
    return tokens / (time.monotonic() - start)

for at_once in (1, 16, 64):
    print(f"{at_once} at once through HTTP, tok/s (a rough figure): baseline {closed(plain, at_once):.0f}, eagle3 {closed(fast, at_once):.0f}")

status, metrics = fast.ask("GET", "/metrics")
print("\n".join(it for it in metrics.splitlines() if "spec_decode" in it and not it.startswith("#")))
for name, engine in [("baseline", plain), ("eagle3", fast)]:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        last = pool.submit(engine.chat, PROMPTS[5], max_tokens=400)
        time.sleep(0.1)
        code = engine.stop()
        check(f"{name}: drained, exit {code}", code == 0 and last.result()[0] == 200)
# A GPU that fails in the middle of a text.
folder = os.path.join(LOGS, "fault")
os.makedirs(folder, exist_ok=True)
here = os.path.dirname(os.path.abspath(__file__))
real = next(it.split()[-1] for it in subprocess.check_output(["ldconfig", "-p"], text=True).splitlines() if "libcuda.so.1" in it)
subprocess.check_call(["cc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", f"{folder}/libcuda.so", f"{here}/fault.c", real, "-ldl"])
os.environ["LD_LIBRARY_PATH"] = folder + ":" + os.environ.get("LD_LIBRARY_PATH", "")
broken = Engine("fault", 8103, "--memory-fraction", "0.1", "--context-max", "2048")
broken.wait_ready()
link = http.client.HTTPConnection("127.0.0.1", broken.port, timeout=60)
link.request("POST", "/v1/chat/completions", json.dumps(body | {"max_tokens": 1500, "ignore_eos": True}), {"content-type": "application/json"})
answer, received = link.getresponse(), b""
try:
    while part := answer.read1(65536):
        received += part
    clean = True
except (http.client.HTTPException, OSError):
    clean = False
text_seen = received.decode()
check(f"a failing GPU: an error and no clean end ({len(received)} bytes)", not clean and "engine_failed" in text_seen and "[DONE]" not in text_seen, text_seen[-400:])
code = broken.process.wait(30)
broken.log.seek(0)
last = broken.log.read().strip().splitlines()[-1]
check(f"a failing GPU: exit {code}, {last!r}", code == 1 and "ILLEGAL_ADDRESS" in last)

print(f"{len(FAILED)} failures")
sys.exit(bool(FAILED))
