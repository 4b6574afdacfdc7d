#!/usr/bin/env python3
"""Write the golden files of the tests of convolution, batch normalisation and pooling with PyTorch:
python golden_blocks.py

Each file `golden/blocks-*.safetensors` is one run of `Conv1d → BatchNorm1d → ReLU → MaxPool1d` in training, in
float64 and rounded once to f32, sequences as `[batch, time, channel]`: the input and the gradient `d` that the
loss `Σ d · result` gives to the result, parameters under PyTorch's names, the results after each part, the
running statistics afterwards, `eval` (the same input in evaluation then), and under `grad.` the gradients of the
input and of every parameter. One value of the input of the file `blocks-nan` is NaN; it has results only.

The metadata hold the configuration and `bf16`: by name, the norm-wise relative error of PyTorch's own convolution
in bf16 (CPU autocast) against float64, for the loss `Σ dy · y` of its result, with `dy` in the file.
"""
import json, pathlib

import torch
from torch import nn

from golden import f32, save

CASES = {
    "same": dict(batch=3, time=20, input=5, output=7, kernel=3, stride=1, padding=1, dilation=1, pool=[2, 2, 0]),
    "strided": dict(batch=2, time=41, input=6, output=20, kernel=5, stride=2, padding=3, dilation=2, pool=[3, 2, 1]),
    "wide": dict(batch=2, time=19, input=70, output=33, kernel=3, stride=1, padding=1, dilation=1, pool=[2, 2, 0]),
    "valid": dict(batch=5, time=9, input=4, output=18, kernel=2, stride=1, padding=0, dilation=1, pool=[3, 3, 0]),
    "nan": dict(batch=2, time=12, input=3, output=4, kernel=3, stride=1, padding=1, dilation=1, pool=[2, 2, 0]),
}


def convolution_errors(conv, x, dy, exact):
    """PyTorch's errors in bf16 by name, from the same numbers in float32 leaves."""
    conv = nn.Conv1d(**conv.settings).float()
    for name, parameter in conv.named_parameters():
        parameter.data.copy_(exact[name].float())
    x = x.float().clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = conv(x.transpose(1, 2)).transpose(1, 2)
    (y.float() * dy.float()).sum().backward()
    rounded = {"y": y, "grad.x": x.grad, "grad.weight": conv.weight.grad, "grad.bias": conv.bias.grad}
    return {name: ((rounded[name].double() - exact[name]).norm() / exact[name].norm()).item() for name in rounded}


def case(name, batch, time, pool, **settings):
    torch.manual_seed(sum(name.encode()))
    names = dict(input="in_channels", output="out_channels", kernel="kernel_size")
    torch_settings = {names.get(key, key): value for key, value in settings.items()}
    conv, norm = nn.Conv1d(**torch_settings).double(), nn.BatchNorm1d(settings["output"]).double()
    conv.settings = torch_settings
    for parameter in [*conv.parameters(), *norm.parameters()]:
        parameter.data.copy_((parameter + 0.1 * torch.randn_like(parameter)).float())
    x = f32(batch, time, settings["input"])
    if name == "nan":
        x[1, 4, 2] = float("nan")
    parameters = {**{f"conv.{n}": p for n, p in conv.named_parameters()}, **{f"norm.{n}": p for n, p in norm.named_parameters()}}
    before = {n: p.detach().clone() for n, p in parameters.items()}
    leaf = x.clone().requires_grad_()
    last = lambda tensor: tensor.transpose(1, 2)
    maximum = nn.MaxPool1d(pool[0], pool[1], pool[2])
    y = conv(last(leaf))
    normal = norm(y)
    result = maximum(torch.relu(normal))
    d = f32(*last(result).shape)
    (last(result) * d).sum().backward()
    tensors = {"input": x, "d": d, **before, "y": last(y), "normal": last(normal), "result": last(result)}
    tensors |= {"running_mean": norm.running_mean, "running_var": norm.running_var}
    norm.eval()
    tensors["eval"] = last(maximum(torch.relu(norm(conv(last(x))))))
    metadata = {"config": json.dumps(dict(batch=batch, time=time, pool=pool, **settings)), "torch": torch.__version__}
    if name != "nan":
        tensors |= {"grad.input": leaf.grad, **{f"grad.{n}": p.grad for n, p in parameters.items()}}
        plain, dy = x.clone().requires_grad_(), f32(*last(y).shape)
        conv.zero_grad()
        (last(conv(last(plain))) * dy).sum().backward()
        exact = {"y": last(y).detach(), "grad.x": plain.grad, "grad.weight": conv.weight.grad, "grad.bias": conv.bias.grad}
        exact |= {"weight": before["conv.weight"], "bias": before["conv.bias"]}
        tensors |= {"dy": dy, **{f"conv only.{n}": t for n, t in exact.items() if n.startswith("grad")}}
        metadata["bf16"] = json.dumps(convolution_errors(conv, x, dy, exact))
    folder = pathlib.Path(__file__).parent / "golden"
    save(folder / f"blocks-{name}.safetensors", tensors, metadata)


if __name__ == "__main__":
    for name, settings in CASES.items():
        case(name, **settings)
