#!/usr/bin/env python3
"""Time PyTorch on what `lstm_step.rs` times: python torch_lstm.py [batch] [steps] [--tuned]"""
import json, os, statistics, sys, time

TUNED = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"}
if "--tuned" in sys.argv and "MALLOC_TOP_PAD_" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **TUNED})

import torch

numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
batch, steps = (numbers + [512, 15][len(numbers):])[:2]
torch.manual_seed(1337)
lstm = torch.nn.LSTM(4, 128, 2, batch_first=True, bidirectional=True, dropout=0.2)
x = torch.rand(batch, 105, 4) * 2 - 1
weights = (torch.rand(batch, 105, 256) * 2 - 1) * 1e-3
forward, backward, whole = [], [], []
for step in range(steps + 3):
    if step == 3:
        used = time.process_time()
    start = time.perf_counter()
    xs = x.detach().requires_grad_()
    output, _ = lstm(xs)
    middle = time.perf_counter()
    (output * weights).sum().backward()
    lstm.zero_grad(set_to_none=True)
    end = time.perf_counter()
    if step >= 3:
        forward.append((middle - start) * 1e3)
        backward.append((end - middle) * 1e3)
        whole.append((end - start) * 1e3)
print(json.dumps({
    "workload": "bilstm-2x128", "device": "cpu", "precision": "fp32", "batch": batch,
    "kernels": f"torch {torch.__version__}{' tuned' if '--tuned' in sys.argv else ''}",
    "threads": torch.get_num_threads(), "median_ms": round(statistics.median(whole), 1),
    "least_ms": round(min(whole), 1), "forward_ms": round(statistics.median(forward), 1),
    "backward_ms": round(statistics.median(backward), 1),
    "processor_ms": round((time.process_time() - used) / steps * 1e3, 1)}))
