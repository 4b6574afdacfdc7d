#!/usr/bin/env python3
"""Times in PyTorch what loss_step.rs times: python torch_loss.py [rows] [classes] [width] [steps]"""
import statistics, sys, time

import torch

given = [int(a) for a in sys.argv[1:]]
rows, classes, width, steps = (given + [1024, 30_522, 768, 9][len(given):])[:4]
torch.set_num_threads(2)
tokens = torch.randint(0, classes, (rows,))
table = torch.nn.Embedding(classes, width)
leaf = (torch.rand(rows, classes) * 8 - 4).requires_grad_()
losses, embeddings = [], []
for _ in range(steps):
    logits = leaf * 1.0
    start = time.perf_counter()
    torch.nn.functional.cross_entropy(logits, tokens).backward()
    losses.append(time.perf_counter() - start)
    leaf.grad = None
    start = time.perf_counter()
    table(tokens).sum().backward()
    embeddings.append(time.perf_counter() - start)
    table.weight.grad = None
loss, embedding = (statistics.median(times) * 1e3 for times in (losses, embeddings))
print(f"{rows} rows of {classes}, PyTorch: cross-entropy {loss:.2f} ms, embedding of {width} {embedding:.2f} ms")
