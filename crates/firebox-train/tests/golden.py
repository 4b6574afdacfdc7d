"""Writes golden/torch.json: what torch.optim and torch.nn.utils make of given gradients and losses.

    python golden.py

Needs PyTorch.
"""

import json
import pathlib

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

torch.manual_seed(1)
SHAPES = {"weight": [3, 4], "bias": [3]}


def tensors(scale):
    return {name: torch.randn(shape) * scale for name, shape in SHAPES.items()}


def flat(values):
    return {name: value.detach().flatten().tolist() for name, value in values.items()}


def adamw(learning_rate, betas, eps, weight_decay, clip):
    start = tensors(1.0)
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    settings = dict(lr=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay)
    optimizer = torch.optim.AdamW(parameters.values(), foreach=False, **settings)
    steps = []
    for step in range(12):
        gradients = tensors([1e-6, 0.1, 3.0, 100.0][step % 4])
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), clip) if clip else None
        rate = learning_rate * (1 - step / 20)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        norm = None if norm is None else norm.item()
        after = flat(parameters)
        steps.append(dict(rate=rate, gradients=flat(gradients), norm=norm, parameters=after))
    config = dict(settings)
    config["learning_rate"] = config.pop("lr")
    return dict(config=config, clip=clip, start=flat(start), steps=steps)


def rates(make, total):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler, found = make(optimizer), []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def plateau(losses, **settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler, found = ReduceLROnPlateau(optimizer, **settings), []
    for loss in losses:
        optimizer.step()
        scheduler.step(loss)
        found.append(optimizer.param_groups[0]["lr"])
    return dict(settings=settings, losses=losses, rates=found)


losses = [3, 2.5, 2.6, 2.4999, 2.7, 2.8, 2.2, 2.3, 2.3, 2.3, 2.3, 2.3, 2.3, 2.3, 2.1, 2.2, 2.2, 2.2]
golden = dict(
    torch=torch.__version__,
    adamw=[
        adamw(1e-3, [0.9, 0.999], 1e-8, 1e-4, 1.0),
        adamw(0.05, [0.8, 0.95], 1e-3, 0.1, None),
    ],
    cosine=[
        dict(total=t, rates=rates(lambda o: CosineAnnealingLR(o, T_max=t, eta_min=1e-5), t))
        for t in [1, 2, 7, 50]
    ],
    one_cycle=[
        dict(total=t, rise=p, rates=rates(lambda o: OneCycleLR(o, 1e-3, t, pct_start=p), t))
        for t, p in [(10, 0.3), (37, 0.3), (50, 0.5)]
    ],
    plateau=[
        plateau(losses, factor=0.1, patience=5, threshold=1e-4, cooldown=0, min_lr=0.0),
        plateau(losses, factor=0.5, patience=1, threshold=1e-3, cooldown=2, min_lr=2e-4),
    ],
)
path = pathlib.Path(__file__).parent / "golden" / "torch.json"
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path, path.stat().st_size, "bytes")
