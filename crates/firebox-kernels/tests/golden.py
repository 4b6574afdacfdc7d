#!/usr/bin/env python3
"""Write the golden files of the LSTM tests with PyTorch: python golden.py

Each file of `golden/` is one case as safetensors in f32: the parameters of `torch.nn.LSTM` under
their own names, `input`, `h_0`, `c_0`, the gradients that the loss gives to the outputs
(`d_output`, `d_h_n`, `d_c_n`), the results `output`, `h_n`, `c_n`, and under `grad.` the gradient
of every parameter, of the input and of the initial state. The metadata hold the configuration and
the lengths. Results are computed in float64 and rounded once.
"""
import json, pathlib, struct

import torch

CASES = {
    "stacked": dict(input=4, hidden=5, layers=2, bidirectional=True, batch=3, lengths=[7, 7, 7]),
    "lengths": dict(input=3, hidden=6, layers=2, bidirectional=True, batch=5, lengths=[9, 1, 4, 8, 2]),
    "plain": dict(input=7, hidden=9, layers=1, bidirectional=False, batch=2, lengths=[1, 1]),
    "wide": dict(input=6, hidden=33, layers=1, bidirectional=True, batch=2, lengths=[5, 3]),
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


def case(name, batch, lengths, input, hidden, layers, bidirectional):
    torch.manual_seed(sum(name.encode()))
    lstm = torch.nn.LSTM(input, hidden, layers, batch_first=True, bidirectional=bidirectional).to(torch.float64)
    time, directions = max(lengths), 1 + bidirectional
    x = f32(batch, time, input).requires_grad_()
    h_0 = f32(layers * directions, batch, hidden).requires_grad_()
    c_0 = f32(layers * directions, batch, hidden).requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, (h_n, c_n) = lstm(packed, (h_0, c_0))
    output, _ = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=time)
    d_output, d_h_n, d_c_n = f32(*output.shape), f32(*h_n.shape), f32(*c_n.shape)
    ((output * d_output).sum() + (h_n * d_h_n).sum() + (c_n * d_c_n).sum()).backward()
    inputs = dict(lstm.named_parameters(), input=x, h_0=h_0, c_0=c_0)
    tensors = dict(inputs, d_output=d_output, d_h_n=d_h_n, d_c_n=d_c_n, output=output, h_n=h_n, c_n=c_n)
    tensors |= {f"grad.{name}": tensor.grad for name, tensor in inputs.items()}
    config = dict(input=input, hidden=hidden, layers=layers, bidirectional=bidirectional)
    folder = pathlib.Path(__file__).parent / "golden"
    folder.mkdir(exist_ok=True)
    save(folder / f"{name}.safetensors", tensors,
         {"config": json.dumps(config), "lengths": json.dumps(lengths), "torch": torch.__version__})


if __name__ == "__main__":
    for name, settings in CASES.items():
        case(name, **settings)
