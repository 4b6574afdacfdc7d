#!/usr/bin/env python3
"""Time PyTorch's attention as `attention_step.rs` times ours: python torch_attention.py [batch] [time] [heads] [size] [steps] [bf16] [plain]

`F.scaled_dot_product_attention` on parts of one tensor `[batch, time, 3 * heads * size]`, with the heads
put side by side again, forward and backward of the sum. With dropout (0.1, none with `plain`) PyTorch
stores all scores on a CPU; without it runs its flash attention.
"""
import json, statistics, sys, time

import torch
from torch.nn import functional as F

numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
batch, length, heads, size, steps = numbers + [256, 105, 8, 16, 15][len(numbers):]
dropout = 0.0 if "plain" in sys.argv else 0.1
kind = torch.bfloat16 if "bf16" in sys.argv else torch.float32
torch.manual_seed(1337)
x = torch.empty(batch, length, 3 * heads * size).uniform_(-2, 2).to(kind)
forward, backward = [], []
for step in range(steps + 3):
    x.requires_grad_().grad = None
    start = time.perf_counter()
    q, k, v = x.unflatten(2, (3, heads, size)).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).flatten(2)
    middle = time.perf_counter()
    out.sum().backward()
    if step >= 3:
        forward.append(1e3 * (middle - start))
        backward.append(1e3 * (time.perf_counter() - middle))
print(json.dumps(dict(workload="self-attention", engine=f"torch {torch.__version__}", batch=batch, time=length, heads=heads, size=size, dropout=dropout,
    precision=str(kind), threads=torch.get_num_threads(), forward_ms=round(statistics.median(forward), 2), backward_ms=round(statistics.median(backward), 2))))
