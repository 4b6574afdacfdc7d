#!/usr/bin/env python3
"""Write the golden files of the LSTM and GRU tests with PyTorch: python golden.py

Each file of `golden/` is one case as safetensors in f32: the parameters of `torch.nn.LSTM` or
`torch.nn.GRU` under their own names, `input`, `h_0`, `c_0` (not for a GRU), the gradients that the loss gives to the outputs
(`d_output`, `d_h_n`, `d_c_n`), the results `output`, `h_n`, `c_n`, and under `grad.` the gradient
of every parameter, of the input and of the initial state. The metadata hold the configuration and
the lengths. Results are computed in float64 and rounded once.

The metadata of the cases without padding also hold `bf16`: by the name of each result and gradient,
the norm-wise relative error of PyTorch's own bf16 (CPU autocast) against float64.
"""
import json, pathlib, struct

import torch

CASES = {
    "stacked": dict(input=4, hidden=5, layers=2, bidirectional=True, batch=3, lengths=[7, 7, 7]),
    "lengths": dict(input=3, hidden=6, layers=2, bidirectional=True, batch=5, lengths=[9, 1, 4, 8, 2]),
    "plain": dict(input=7, hidden=9, layers=1, bidirectional=False, batch=2, lengths=[1, 1]),
    "wide": dict(input=6, hidden=33, layers=1, bidirectional=True, batch=2, lengths=[5, 3]),
    "long": dict(input=4, hidden=20, layers=2, bidirectional=True, batch=6, lengths=[40] * 6),
    "gru-stacked": dict(input=4, hidden=5, layers=2, bidirectional=True, batch=3, lengths=[7, 7, 7], kind="GRU"),
    "gru-lengths": dict(input=3, hidden=18, layers=2, bidirectional=True, batch=5, lengths=[9, 1, 4, 8, 2], kind="GRU"),
    "gru-long": dict(input=4, hidden=20, layers=2, bidirectional=True, batch=6, lengths=[40] * 6, kind="GRU"),
}


def save(path, tensors, metadata):
    """The safetensors format: 8 bytes of header size, a JSON header, the data."""
    header, blobs, at = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        blob = tensor.detach().to(torch.float32).contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def f32(*shape):
    """float64 numbers that f32 holds exactly, so that both sides start from the same ones."""
    return torch.randn(*shape).to(torch.float64)


def results(module, inputs, lengths, d, bf16):
    """Outputs and gradients by name, from leaves that hold the same numbers in either type."""
    kind = torch.float32 if bf16 else torch.float64
    module = type(module)(**module.settings).to(kind)
    leaves = {name: tensor.to(kind).clone().requires_grad_() for name, tensor in inputs.items()}
    for name, parameter in module.named_parameters():
        parameter.data.copy_(inputs[name])
        leaves[name] = parameter
    x, state = leaves["input"], tuple(leaves[name] for name in ("h_0", "c_0") if name in leaves)
    state = state if len(state) == 2 else state[0]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        if len(set(lengths)) > 1:
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            output, last = module(packed, state)
            output, _ = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=max(lengths))
        else:
            output, last = module(x, state)
    last = dict(zip(("h_n", "c_n"), last if isinstance(last, tuple) else (last,)))
    outputs = dict(output=output, **last)
    sum((tensor.to(kind) * d[f"d_{name}"].to(kind)).sum() for name, tensor in outputs.items()).backward()
    return outputs | {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}


def case(name, batch, lengths, input, hidden, layers, bidirectional, kind="LSTM"):
    torch.manual_seed(sum(name.encode()))
    settings = dict(input_size=input, hidden_size=hidden, num_layers=layers, batch_first=True, bidirectional=bidirectional)
    module = getattr(torch.nn, kind)(**settings)
    module.settings = settings
    time, directions = max(lengths), 1 + bidirectional
    states = (layers * directions, batch, hidden)
    inputs = {name: parameter.detach().to(torch.float64) for name, parameter in module.named_parameters()}
    inputs |= dict(input=f32(batch, time, input), h_0=f32(*states))
    d = dict(d_output=f32(batch, time, directions * hidden), d_h_n=f32(*states))
    if kind == "LSTM":
        inputs["c_0"], d["d_c_n"] = f32(*states), f32(*states)
    exact = results(module, inputs, lengths, d, bf16=False)
    config = dict(input=input, hidden=hidden, layers=layers, bidirectional=bidirectional)
    metadata = {"kind": kind, "config": json.dumps(config), "lengths": json.dumps(lengths), "torch": torch.__version__}
    if len(set(lengths)) == 1:
        rounded = results(module, inputs, lengths, d, bf16=True)
        error = lambda name: ((rounded[name].to(torch.float64) - exact[name]).norm() / exact[name].norm()).item()
        metadata["bf16"] = json.dumps({name: error(name) for name in exact})
    folder = pathlib.Path(__file__).parent / "golden"
    folder.mkdir(exist_ok=True)
    save(folder / f"{name}.safetensors", inputs | d | exact, metadata)


if __name__ == "__main__":
    for name, settings in CASES.items():
        case(name, **settings)
