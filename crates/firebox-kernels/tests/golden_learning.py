#!/usr/bin/env python3
"""Write golden/optimizer.json and golden/losses.json with PyTorch: python golden_learning.py

Weights after each step of `torch.optim` in float64, from gradients that f32 holds exactly.
Parameters are `a` [7] and `b` [3]; in cases with `groups`, `b` has no decay and half the learning
rate. `frozen` holds the steps at which `b` has no gradient.

Losses and their gradients, and an embedding over three steps of AdamW, in float64 as well.
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


def listed(x):
    """JSON has no infinities and no NaN."""
    return [v if v == v and abs(v) != float("inf") else str(v) for v in x.flatten().tolist()]


def loss_case(make, name, x, **settings):
    x = x.clone().requires_grad_()
    value = make(x)
    value.backward()
    return dict(name=name, shape=list(x.shape), x=listed(x.detach()), value=listed(value.detach())[0],
                gradient=listed(x.grad), **settings)


F = torch.nn.functional
rows, classes = 9, 5
logits = f32(rows, classes, scale=3.0)
targets = torch.randint(0, classes, (rows,))
some = targets.clone()
some[[1, 4]] = -100
weights = torch.rand(classes).to(torch.float64)
extreme = torch.tensor([[1e4, -1e4, 0], [-1e4, 1e4, 5], [1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [88, 0, -88]], dtype=torch.float64)
wide = f32(2, 300, scale=2.0)
entropy = []
for name, x, t, options in [
    ("plain", logits, targets, {}),
    ("ignored", logits, some, {}),
    ("smooth", logits, some, dict(label_smoothing=0.1)),
    ("weighted", logits, some, dict(weight=weights)),
    ("both", logits, some, dict(label_smoothing=0.3, weight=weights)),
    ("all smooth", logits, targets, dict(label_smoothing=1.0)),
    ("extreme", extreme, torch.tensor([0, 0, 1, 2, 2]), {}),
    ("one class", f32(4, 1), torch.zeros(4, dtype=torch.long), {}),
    ("wide", wide, torch.tensor([3, 299]), dict(label_smoothing=0.1)),
]:
    exact = {k: (v.to(torch.float32).to(torch.float64) if k == "weight" else v) for k, v in options.items()}
    entropy.append(loss_case(
        lambda x: F.cross_entropy(x, t, **exact), name, x, targets=t.tolist(),
        smoothing=options.get("label_smoothing", 0.0),
        class_weights=exact["weight"].tolist() if "weight" in exact else None,
    ))


def focal(x, t, gamma):
    logs = F.log_softmax(x, 1).gather(1, t[:, None])[:, 0]
    return (-((1 - logs.exp()) ** gamma) * logs).mean()


def binary_focal(x, t, gamma):
    """torchvision.ops.sigmoid_focal_loss without alpha, mean."""
    p = torch.sigmoid(x)
    p_t = p * t + (1 - p) * (1 - t)
    return (F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - p_t) ** gamma).mean()


for gamma in [0.5, 2.0]:
    entropy.append(loss_case(lambda x: focal(x, targets, gamma), f"focal {gamma}", logits,
                             targets=targets.tolist(), smoothing=0.0, class_weights=None, focal=gamma))

x, t = f32(4, 3, 5, scale=2.0), f32(4, 3, 5)
labels = (torch.rand(4, 3, 5) < 0.4).to(torch.float64)
soft = torch.rand(4, 3, 5).to(torch.float32).to(torch.float64)
mask = (torch.rand(4, 3, 5) < 0.5).to(torch.float64)
by_row = torch.rand(12).to(torch.float32).to(torch.float64)
positive = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
far = torch.tensor([[1e4, -1e4, 60.0], [-60.0, 0.0, -1e4]], dtype=torch.float64)
far_labels = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.5, 0.0]], dtype=torch.float64)


def averaged(each, weights):
    return (each * weights).sum() / weights.expand_as(each).sum()


wide_rows = by_row.reshape(4, 3, 1)
counted = by_row.reshape(4, 3) > 0.5
elements = [
    loss_case(lambda x: F.mse_loss(x, t), "squared", x, targets=listed(t)),
    loss_case(lambda x: averaged((x - t) ** 2, mask), "squared", x, targets=listed(t), weights=mask.flatten().tolist()),
    loss_case(lambda x: averaged((x - t) ** 2, wide_rows), "squared", x, targets=listed(t), weights=by_row.tolist()),
    loss_case(lambda x: F.huber_loss(x, t, delta=0.7), "huber", x, targets=listed(t), delta=0.7),
    loss_case(lambda x: averaged(F.huber_loss(x, t, delta=1.5, reduction="none"), mask), "huber", x, targets=listed(t), delta=1.5, weights=mask.flatten().tolist()),
    loss_case(lambda x: F.binary_cross_entropy_with_logits(x, labels), "binary", x, targets=listed(labels)),
    loss_case(lambda x: F.binary_cross_entropy_with_logits(x, soft, pos_weight=positive), "binary", x, targets=listed(soft), positive=positive.tolist()),
    loss_case(lambda x: averaged(F.binary_cross_entropy_with_logits(x, labels, reduction="none"), wide_rows), "binary", x, targets=listed(labels), weights=by_row.tolist()),
    loss_case(lambda x: F.binary_cross_entropy_with_logits(x, far_labels), "binary", far, targets=listed(far_labels)),
    loss_case(lambda x: binary_focal(x, labels, 2.0), "binary", x, targets=listed(labels), focal=2.0),
    loss_case(lambda x: F.mse_loss(x[counted], t[counted]), "masked", x, targets=listed(t), weights=counted.flatten().double().tolist()),
]

table = torch.nn.Embedding(7, 3, padding_idx=2).to(torch.float64)
table.weight.data.copy_(f32(7, 3))
places = torch.tensor([[0, 6, 2, 6], [6, 1, 2, 0]])
d = f32(2, 4, 3)
start = table.weight.detach().clone()
optimizer = torch.optim.AdamW(table.parameters(), lr=0.1, weight_decay=0.1)
trace = []
for shift in range(3):
    optimizer.zero_grad()
    out = table((places + shift) % 7)
    (out * d).sum().backward()
    gradient = table.weight.grad.clone()
    optimizer.step()
    trace.append(dict(out=listed(out.detach()), gradient=listed(gradient), table=listed(table.weight.detach())))
embedded = dict(padding=2, table=listed(start), d=listed(d), steps=trace, places=places.flatten().tolist())
golden = dict(torch=torch.__version__, entropy=entropy, elements=elements, embedding=embedded)
path = FOLDER / "losses.json"
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path, path.stat().st_size, "bytes")
