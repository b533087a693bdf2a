"""Times PyTorch's bf16 products (cuBLAS) at model shapes, us each: the yardstick of `selftest`.

Weights are rotated so that none is found in the L2 cache; each time is the median of 7 replays of a
recorded graph.
"""

import torch

SHAPES = [
    ("1B qkv", 3072, 2048),
    ("1B o", 2048, 2048),
    ("1B gate_up", 16384, 2048),
    ("1B down", 2048, 8192),
    ("1B lm_head", 128256, 2048),
    ("8B qkv", 6144, 4096),
    ("8B o", 4096, 4096),
    ("8B gate_up", 28672, 4096),
    ("8B down", 4096, 14336),
    ("8B lm_head", 128256, 4096),
]
ROWS = [1, 8, 16, 32, 64, 128, 192, 256, 512, 1024]


def random(rows, columns):
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def median_us(x, weights, out):
    inside = max(len(weights), 2 if weights[0].numel() > 1 << 27 else 10)
    torch.mm(x, weights[0].t(), out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(inside):
            torch.mm(x, weights[i % len(weights)].t(), out=out)
    graph.replay()
    times = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / inside)
    return sorted(times)[3]


print("torch", torch.__version__, "CUDA", torch.version.cuda)
for name, outputs, inputs in SHAPES:
    copies = max(1, min(100, (400 << 20) // (2 * outputs * inputs)))
    weights = [random(outputs, inputs) * inputs**-0.5 for _ in range(copies)]
    line = name
    for rows in ROWS:
        out = torch.empty(rows, outputs, device="cuda", dtype=torch.bfloat16)
        line += f" {rows}:{median_us(random(rows, inputs), weights, out):.1f}"
    print(line, flush=True)
    del weights
    torch.cuda.empty_cache()
