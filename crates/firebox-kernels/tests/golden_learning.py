#!/usr/bin/env python3
"""Write golden/optimizer.json with PyTorch: python golden_learning.py

Weights after each step of `torch.optim` in float64, from gradients that f32 holds exactly.
Parameters are `a` [7] and `b` [3]; in cases with `groups`, `b` has no decay and half the learning
rate. `frozen` holds the steps at which `b` has no gradient.
"""
import json, pathlib

import torch

torch.manual_seed(3)
FOLDER = pathlib.Path(__file__).parent / "golden"
STEPS = 9


def f32(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).to(torch.float64)


START = {"a": f32(7), "b": f32(3)}
GRADIENTS = [{"a": f32(7, scale=s), "b": f32(3, scale=s)} for s in [1, 1e-6, 0.1, 3, 100, 0.5, 1e-3, 10, 1]]


def optimizer_case(kind, settings, clip=None, value=None, scale=1.0, groups=False, frozen=()):
    parameters = {name: torch.nn.Parameter(start.clone()) for name, start in START.items()}
    rate, decay = settings["lr"], settings.get("weight_decay", 0.0)
    sets = [dict(params=[parameters["a"]]), dict(params=[parameters["b"]])]
    if groups:
        sets[1] |= dict(lr=rate / 2, weight_decay=0.0)
    optimizer = getattr(torch.optim, kind)(sets, foreach=False, **settings)
    trace, norms = [], []
    for step, gradients in enumerate(GRADIENTS):
        for name, parameter in parameters.items():
            gone = name == "b" and step in frozen
            # As a scaler does it: what is measured and clipped is the unscaled gradient.
            parameter.grad = None if gone else (gradients[name] * scale) / scale
        limit = clip if clip is not None else float("inf")
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), limit).item())
        if value is not None:
            torch.nn.utils.clip_grad_value_(parameters.values(), value)
        factor = 1 - step / 20
        for group, share in zip(optimizer.param_groups, [1, 0.5 if groups else 1]):
            group["lr"] = rate * share * factor
        optimizer.step()
        trace.append({name: p.detach().tolist() for name, p in parameters.items()})
    return dict(kind=kind, settings=settings, clip=clip, value=value, scale=scale, groups=groups,
                frozen=list(frozen), norms=norms, trace=trace)


adam = dict(lr=1e-2, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.1)
sgd = dict(lr=1e-2, momentum=0.9, dampening=0.0, weight_decay=0.1, nesterov=False)
average, trace = START["a"].clone(), []
for gradients in GRADIENTS:
    average.lerp_(gradients["a"], 1 - 0.99)
    trace.append(average.tolist())
golden = dict(
    torch=torch.__version__,
    start={name: start.tolist() for name, start in START.items()},
    gradients=[{name: g.tolist() for name, g in gradients.items()} for gradients in GRADIENTS],
    cases=[
        optimizer_case("AdamW", adam),
        optimizer_case("AdamW", adam, clip=1.0, scale=65536.0, groups=True),
        optimizer_case("AdamW", adam | dict(betas=[0.5, 0.8], eps=1e-3), value=0.25, scale=1024.0, frozen=[0, 1, 5]),
        optimizer_case("SGD", sgd),
        optimizer_case("SGD", sgd | dict(momentum=0.0), clip=2.0),
        optimizer_case("SGD", sgd | dict(nesterov=True), groups=True, frozen=[0, 4]),
        optimizer_case("SGD", sgd | dict(dampening=0.3), value=0.5, scale=8.0, frozen=[0, 1]),
    ],
    average=dict(decay=0.99, trace=trace),
)
path = FOLDER / "optimizer.json"
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path, path.stat().st_size, "bytes")
