"""Writes golden/accumulate.json: what PyTorch makes of accumulated batches.

    python golden_accumulate.py

A linear layer learns masked targets. Batches of 3 of 10 samples, two of them to an update, so that
each epoch ends in a tail; sample 4 has no step that counts. The loss of an update is the sum of
squared errors of all its batches over the number of values that count in them. Gradients are scaled
by GradScaler, unscaled, clipped by their norm and used by AdamW; averages are those of
`torch.optim.swa_utils`. Needs PyTorch. ORDER is the order in which Firebox's loader gives the
samples for the seed 5; the test in Rust compares it.
"""

import json
import pathlib

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

ORDER = json.loads((pathlib.Path(__file__).parent / "golden/order.json").read_text())
BATCH, GROUP, TIME, INPUT, OUTPUT = 3, 2, 4, 3, 2
DECAY = 0.9

torch.manual_seed(7)
inputs = torch.randn(10, TIME, INPUT)
targets = torch.randn(10, TIME, OUTPUT)
mask = (torch.rand(10, TIME) < 0.6).float()
mask[4] = 0
start = [torch.randn(OUTPUT, INPUT) * 0.5, torch.randn(OUTPUT) * 0.5]

model = torch.nn.Linear(INPUT, OUTPUT)
with torch.no_grad():
    model.weight.copy_(start[0])
    model.bias.copy_(start[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
# Stochastic weight averaging, from the second epoch on.
equal = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())


def error(samples):
    """The summed squared error of some samples, and the number of values in it."""
    counts = mask[samples][..., None].expand(-1, -1, OUTPUT)
    return ((model(inputs[samples]) - targets[samples]) ** 2 * counts).sum(), counts.sum()


steps = []
for number, epoch in enumerate(ORDER):
    batches = [epoch[i : i + BATCH] for i in range(0, len(epoch), BATCH)]
    for group in [batches[i : i + GROUP] for i in range(0, len(batches), GROUP)]:
        sums, counts = zip(*(error(samples) for samples in group))
        loss = sum(sums) / sum(counts)
        optimizer.zero_grad()
        used = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        if number >= 1:
            equal.update_parameters(model)
        steps.append(dict(loss=loss.item(), norm=norm.item(), scale=used))

golden = dict(
    torch=torch.__version__,
    inputs=inputs.flatten().tolist(),
    targets=targets.flatten().tolist(),
    mask=mask.flatten().tolist(),
    start=dict(weight=start[0].flatten().tolist(), bias=start[1].tolist()),
    steps=steps,
    weight=model.weight.flatten().tolist(),
    bias=model.bias.tolist(),
    average_weight=average.module.weight.flatten().tolist(),
    average_bias=average.module.bias.tolist(),
    equal_weight=equal.module.weight.flatten().tolist(),
    equal_bias=equal.module.bias.tolist(),
)
path = pathlib.Path(__file__).parent / "golden/accumulate.json"
path.write_text(json.dumps(golden) + "\n")
