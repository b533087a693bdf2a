#!/usr/bin/env python3
"""Writes the first inputs of each target into corpus/TARGET: small right files and requests.

None of them is kept in the repository: they are made from the fixtures of the tests."""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "tests" / "fixtures"


def seed(target, name, data):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(data.encode() if isinstance(data, str) else data)


def text(it):
    data = it.encode()
    return struct.pack("<Q", len(data)) + data


def value(it):
    """A GGUF value: its type number, and its bytes."""
    if isinstance(it, bool):
        return 7, struct.pack("<?", it)
    if isinstance(it, int):
        return 4, struct.pack("<I", it)
    if isinstance(it, float):
        return 6, struct.pack("<f", it)
    if isinstance(it, str):
        return 8, text(it)
    kind = value(it[0])[0]
    return 9, struct.pack("<IQ", kind, len(it)) + b"".join(value(one)[1] for one in it)


def gguf(arch, tokenizer):
    """A model of one layer: width 4, two heads of two, one key-value head."""
    values = {
        "general.architecture": arch,
        f"{arch}.block_count": 1,
        f"{arch}.context_length": 64,
        f"{arch}.embedding_length": 4,
        f"{arch}.feed_forward_length": 4,
        f"{arch}.attention.head_count": 2,
        f"{arch}.attention.head_count_kv": 1,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        **tokenizer,
    }
    vocab = len(tokenizer["tokenizer.ggml.tokens"])
    tensors = {"token_embd.weight": [4, vocab], "output_norm.weight": [4]}
    for name, dims in {
        "attn_norm": [4], "ffn_norm": [4], "attn_q": [4, 4], "attn_k": [4, 2], "attn_v": [4, 2],
        "attn_output": [4, 4], "ffn_gate": [4, 4], "ffn_up": [4, 4], "ffn_down": [4, 4],
    }.items():
        tensors[f"blk.0.{name}.weight"] = dims
    if arch == "qwen2":
        tensors |= {"blk.0.attn_q.bias": [4], "blk.0.attn_k.bias": [2], "blk.0.attn_v.bias": [2]}
    if arch == "qwen3":
        tensors |= {"blk.0.attn_q_norm.weight": [2], "blk.0.attn_k_norm.weight": [2]}
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, it in values.items():
        kind, data = value(it)
        out += text(key) + struct.pack("<I", kind) + data
    start, datas = 0, []
    for name, dims in tensors.items():
        count = 1
        for it in dims:
            count *= it
        out += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        out += struct.pack("<IQ", 0, start)
        data = struct.pack("<f", 0.5) * count
        datas.append(data + bytes(-len(data) % 32))
        start += len(datas[-1])
    return out + bytes(-len(out) % 32) + b"".join(datas)


def safetensors(tensors):
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for it in shape:
            size *= it
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    data = json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data + bytes(at)


BYTE_PAIRS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<e>", "a", "b", "ab", "\u0120", "H", "e", "l", "o"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
}
PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "\u2581", "a", "b", "ab", "<0x0A>"],
    "tokenizer.ggml.token_type": [2, 3, 1, 1, 1, 1, 6],
    "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0],
    "tokenizer.ggml.bos_token_id": 1,
}

for arch in ("llama", "qwen2", "qwen3"):
    seed("gguf", arch, gguf(arch, BYTE_PAIRS))
seed("gguf", "pieces", gguf("llama", PIECES))

fixture = FIXTURES / "models" / "llama"
index = (fixture / "model.safetensors.index.json").read_text()
shapes = {}
for shard in sorted(fixture.glob("*.safetensors")):
    data = shard.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            shapes[name] = entry["shape"]
seed("safetensors", "index", index)
seed("safetensors", "small", safetensors({"norm.weight": [32], "model.a": [2, 2]}))
seed("safetensors", "whole", safetensors(shapes))

seed("tokenizer", "file", (fixture / "tokenizer.json").read_bytes())
seed("tokenizer", "text", "Hello,  wörld 12\n\t<|im_end|>日本語 🏳️‍🌈 it's")
seed("tokenizer", "tokens", b"#" + struct.pack("<6H", 0, 1, 2, 500, 1000, 49000))

seed("events", "stream", b"\x40\x90" + 'data: {"a": "é"}\n\n: comment\r\n\ndata:[DONE]\n\n'.encode())

MESSAGES = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
REQUESTS = {
    "c-plain": {"messages": MESSAGES, "temperature": 0.5, "seed": 1, "stop": ["x"], "n": 2},
    "c-stream": {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
    "c-parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "c-tools": {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"},
    "c-called": {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [CALL]}]},
    "c-schema": {"messages": MESSAGES, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    "c-regex": {"messages": MESSAGES, "structured_outputs": {"regex": "[a-c]+d?"}},
    "c-choice": {"messages": MESSAGES, "structured_outputs": {"choice": ["yes", "no"]}},
    "c-lark": {"messages": MESSAGES, "structured_outputs": {"grammar": 'start: "a" | /b+/'}},
    "p-ids": {"prompt": [[1, 2], [3]], "logprobs": 2, "echo": False, "logit_bias": {"5": 1}},
    "p-text": {"prompt": "Once", "max_tokens": 4, "min_tokens": 1, "top_k": 3, "min_p": 0.1},
    "t-text": {"prompt": "Once", "return_token_strs": True},
    "d-ids": {"tokens": [1, 2, 300]},
}
for name, body in REQUESTS.items():
    seed("request", name, name[0] + json.dumps(body))
