#!/usr/bin/env python3
"""Write the golden files of the attention tests with PyTorch: python attention_golden.py

Each file `golden/attention-*.safetensors` is one case: `q`, `k`, `v` and the gradient `d` of the
result, all `[batch, rows, heads * size]`, the result `out` and the gradients `grad.q`, `grad.k`,
`grad.v` of `F.scaled_dot_product_attention`, computed in float64 and rounded once. Rows of padding
are zero: PyTorch has no lengths, so keys are masked and queries after a length are left out of the
loss and cleared.

The metadata hold sizes, lengths, flags, and under `bf16` the norm-wise relative error of each result
when PyTorch computes the same in bf16 (operands and result are bf16 tensors, as under autocast).
"""
import json, pathlib

import torch
from torch.nn import functional as F

from golden import save

CASES = {
    "plain": dict(batch=2, queries=21, keys=21, heads=2, size=16),
    "lengths": dict(batch=4, queries=19, keys=19, heads=2, size=8, lengths=[19, 1, 7, 12]),
    "causal": dict(batch=2, queries=35, keys=35, heads=1, size=20, causal=True),
    "cross": dict(batch=2, queries=5, keys=70, heads=3, size=12, scale=0.11),
    "wide": dict(batch=1, queries=40, keys=40, heads=1, size=64),
}


def results(tensors, dtype, heads, lengths, causal, scale):
    leaves = {name: tensors[name].to(dtype).clone().requires_grad_() for name in "qkv"}
    split = lambda x: x.unflatten(2, (heads, -1)).transpose(1, 2)
    mask = valid = None
    if lengths is not None:
        valid = torch.arange(tensors["k"].shape[1])[None] < torch.tensor(lengths)[:, None]
        mask = valid[:, None, None, :]
    out = F.scaled_dot_product_attention(*[split(leaves[name]) for name in "qkv"], attn_mask=mask, is_causal=causal, scale=scale)
    out = out.transpose(1, 2).flatten(2)
    if valid is not None:
        out = out * valid[..., None]
    (out * tensors["d"].to(dtype)).sum().backward()
    return dict(out=out.detach()) | {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}


def case(name, batch, queries, keys, heads, size, lengths=None, causal=False, scale=None):
    torch.manual_seed(sum(name.encode()))
    rows = dict(q=queries, k=keys, v=keys, d=queries)
    tensors = {key: torch.randn(batch, n, heads * size).to(torch.float64) for key, n in rows.items()}
    exact = results(tensors, torch.float64, heads, lengths, causal, scale)
    rough = results(tensors, torch.bfloat16, heads, lengths, causal, scale)
    error = lambda key: ((rough[key].double() - exact[key]).norm() / exact[key].norm()).item()
    metadata = dict(
        sizes=json.dumps([batch, queries, keys, heads, size]), lengths=json.dumps(lengths),
        causal=json.dumps(causal), scale=json.dumps(scale), bf16=json.dumps({key: error(key) for key in exact}),
    )
    path = pathlib.Path(__file__).parent / f"golden/attention-{name}.safetensors"
    save(path, tensors | exact, metadata)
    print(path.name, path.stat().st_size, metadata["bf16"])


if __name__ == "__main__":
    for name, settings in CASES.items():
        case(name, **settings)
