#!/usr/bin/env python3
"""Write the golden files of the tests of linear layers, layer normalisation and GELU with PyTorch:
python golden_dense.py

Results and gradients of the loss `Σ d · result`, in float64 and rounded once to f32. Weights of linear layers and
their gradients are `[input, output]`, as Burn has them.

`golden/blocks-linear.safetensors` has two layers, and a result with its gradients under `grad.` for each of `linear.`
(the first layer), `add.` (`residual + second(between)` for an input `between`), `gelu.` and `relu.` (`residual +
second(activation(first(x)))`). Its metadata hold `bf16`: by name, the norm-wise relative error of PyTorch's own
linear layer in bf16 (CPU autocast) against float64.

`golden/blocks-layer-norm.safetensors` has rows of different means and widths of values, with a scale and a shift.
`golden/blocks-gelu.safetensors` has PyTorch's default GELU, that of the error function, from -10 to 10 and at some
small numbers.
"""
import json, pathlib

import torch
from torch import nn
from torch.nn import functional as F

from golden import f32, save

FOLDER = pathlib.Path(__file__).parent / "golden"
ROWS, WIDTH, BETWEEN = 13, 21, 37


def write(name, tensors, **metadata):
    metadata = {key: json.dumps(value) for key, value in metadata.items()} | {"torch": torch.__version__}
    save(FOLDER / f"blocks-{name}.safetensors", tensors, metadata)


def gradients(result, d, leaves):
    """The result and the gradients of the leaves that it depends on, by name; weights turned around."""
    found = torch.autograd.grad((result * d).sum(), list(leaves.values()), allow_unused=True)
    return {"result": result} | {
        f"grad.{name}": g.t() if "weight" in name else g for (name, g) in zip(leaves, found) if g is not None
    }


def relative(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def linear():
    torch.manual_seed(1)
    leaves = {
        "x": f32(ROWS, WIDTH), "between": f32(ROWS, BETWEEN), "residual": f32(ROWS, WIDTH),
        "first.weight": f32(BETWEEN, WIDTH) / 4, "first.bias": f32(BETWEEN),
        "second.weight": f32(WIDTH, BETWEEN) / 8, "second.bias": f32(WIDTH),
    }
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    x, between, residual, *_ = leaves.values()
    first = lambda x: F.linear(x, leaves["first.weight"], leaves["first.bias"])
    second = lambda x: F.linear(x, leaves["second.weight"], leaves["second.bias"])
    d = {"d": f32(ROWS, WIDTH), "d.between": f32(ROWS, BETWEEN)}
    cases = {
        "linear": (first(x), d["d.between"]),
        "add": (residual + second(between), d["d"]),
        "gelu": (residual + second(F.gelu(first(x))), d["d"]),
        "relu": (residual + second(F.relu(first(x))), d["d"]),
    }
    results = {f"{case}.{name}": tensor for case, (y, dy) in cases.items() for name, tensor in gradients(y, dy, leaves).items()}
    single = {name: leaves[name].detach().float().requires_grad_() for name in ["x", "first.weight", "first.bias"]}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.linear(*single.values())
    rounded = gradients(y.float(), d["d.between"].float(), single)
    errors = {name: relative(found, results[f"linear.{name}"]) for name, found in rounded.items()}
    stored = {name: leaf.t() if "weight" in name else leaf for name, leaf in leaves.items()}
    write("linear", stored | d | results, bf16=errors)


def layer_norm():
    torch.manual_seed(2)
    rows, width = 7, 33
    scales, means = torch.tensor([1e-3, 0.1, 1, 1, 10, 100, 1e-2]), torch.tensor([0, 1, 0, 3, -20, 5, 0.1])
    x = (f32(rows, width) * scales[:, None] + means[:, None]).float().double()
    leaves = {"input": x, "scale": (1 + 0.5 * f32(width)).float().double(), "shift": f32(width)}
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    d = f32(rows, width)
    y = F.layer_norm(leaves["input"], (width,), leaves["scale"], leaves["shift"], eps=1e-5)
    write("layer-norm", leaves | {"d": d} | gradients(y, d, leaves))


def gelu():
    torch.manual_seed(3)
    small = torch.tensor([0.0, 1e-30, -1e-30, 1e-6, -1e-6, 1e-3, -1e-3])
    x = torch.cat([torch.linspace(-10, 10, 81), small]).double().reshape(4, 22).requires_grad_()
    d = f32(4, 22)
    write("gelu", {"input": x, "d": d} | gradients(F.gelu(x), d, {"input": x}))


if __name__ == "__main__":
    linear()
    layer_norm()
    gelu()
