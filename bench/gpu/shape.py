#!/usr/bin/env python3
"""Writes a folder with the sizes of a model and, in `head`, of its draft head, both without weights, for
`--load-format dummy`: `shape.py FOLDER`. The sizes are Llama 3.1 8B's with a head of 32,000 drafts."""

import json
import os
import sys

VOCAB = 128_256
LAYER = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 4096, "intermediate_size": 14_336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": False,
}


def spelled():
    """The characters that stand for the 256 bytes in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [it for it in range(256) if it not in plain]
    return {it: chr(it) for it in plain} | {it: chr(256 + at) for at, it in enumerate(rest)}


def tokenizer():
    """Bytes are tokens; every further token is a word of its own, so that each is seen by who counts them."""
    names = [spelled()[it] for it in range(256)] + [f"\u0120{it}" for it in range(256, VOCAB)]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": bytes_, "post_processor": None,
        "decoder": bytes_,
        "model": {"type": "BPE", "vocab": {it: at for at, it in enumerate(names)}, "merges": []},
    }


def write(folder):
    head = os.path.join(folder, "head")
    os.makedirs(head, exist_ok=True)
    files = {
        "config.json": LAYER | {"num_hidden_layers": 32},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {"chat_template": "{% for it in messages %}{{ it.content }}\n{% endfor %}"},
        "head/config.json": LAYER | {"num_hidden_layers": 1, "draft_vocab_size": 32_000},
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)


write(sys.argv[1])
