#!/usr/bin/env python3
"""Times PyTorch's clipping and AdamW on the sizes of optimizer_step.rs: python torch_optimizer.py [small|lstm-mae|bert-base] [steps]

Both of PyTorch's variants: `foreach` (several tensors a call) and `fused`. Zeroing sets gradients to
None in training and takes no time.
"""
import statistics, sys, time

import torch

model = sys.argv[1] if len(sys.argv) > 1 else "bert-base"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 11
width, wide = 768, 3072
SIZES = {
    "small": [32 * 64, 64, 64 * 64, 64] * 5,
    "lstm-mae": [4 * 512, 128 * 512, 512, 256 * 512, 128 * 512, 512] * 2 + [256, 256, 256 * 512, 128 * 512, 512, 128 * 4, 4],
    "bert-base": [30522 * width, 512 * width, 2 * width] + ([width * width, width] * 4 + [width * wide, wide, wide * width] + [width] * 5) * 12,
}
torch.set_num_threads(2)
for kind in ("foreach", "fused"):
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in SIZES[model]]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, **{kind: True})
    clips, updates = [], []
    for _ in range(steps):
        start = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        middle = time.perf_counter()
        optimizer.step()
        clips.append(middle - start)
        updates.append(time.perf_counter() - middle)
    clip, update = (statistics.median(times) * 1e3 for times in (clips, updates))
    print(f"{model} {kind}: clip {clip:.3f} ms, update {update:.3f} ms, both {clip + update:.3f} ms")
