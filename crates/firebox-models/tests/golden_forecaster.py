"""Writes the golden file of the forecaster's parity test, R2's model in PyTorch, in float64:

    python golden_forecaster.py

`golden/stacked-lstm.safetensors`: inputs of different lengths, static features, targets, every parameter under the
names of the zoo (`param.`), in training with dropout the forecasts, the mean squared, absolute and Huber errors and
every gradient of the first (`grad.`), and forecasts and encodings in evaluation. The random draws of dropout are made
here by the generator of `golden.py`. Needs PyTorch and NumPy.
"""

import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from golden import Stream, write_safetensors

CHANNELS, STATICS, HIDDEN, DENSE, OUTPUTS, DROPOUT = 2, 5, (7, 5), 6, 3, 0.2
LENGTHS, TIME = [9, 4, 1, 9, 6], 9


class StackedLstm(nn.Module):
    def __init__(self):
        super().__init__()
        widths = zip([CHANNELS, *HIDDEN], HIDDEN)
        self.layers = nn.ModuleList([nn.LSTM(a, b, batch_first=True) for a, b in widths])
        self.dense = nn.Linear(HIDDEN[-1] + STATICS, DENSE)
        self.output = nn.Linear(DENSE, OUTPUTS)

    def forward(self, x, statics):
        # Each sample by itself, cut to its length: nothing to get wrong about padding.
        self.encoded = torch.zeros(len(x), TIME, HIDDEN[-1], dtype=x.dtype)
        last = []
        for row, (sample, length) in enumerate(zip(x, LENGTHS)):
            steps = sample[None, :length]
            for layer in self.layers:
                steps, _ = layer(steps)
            self.encoded[row, :length] = steps[0]
            last.append(steps[0, -1])
        dense = torch.relu(self.dense(torch.cat([torch.stack(last), statics], 1)))
        if self.training:
            keep = Stream.new(7, "dropout").substream(3).keep(tuple(dense.shape), DROPOUT)
            dense = dense * torch.tensor(keep) / (1 - DROPOUT)
        return self.output(dense)


def main():
    torch.manual_seed(2)
    exact = lambda tensor: tensor.float().double()
    f32 = lambda tensor: tensor.detach().numpy().astype(np.float32)
    model = StackedLstm().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(exact(2 * parameter))
    batch = len(LENGTHS)
    x, statics = exact(torch.randn(batch, TIME, CHANNELS)), exact(torch.randn(batch, STATICS))
    # Errors on both sides of where Huber's loss turns.
    targets = exact(2 * torch.randn(batch, OUTPUTS))
    tensors = {"inputs": f32(x), "statics": f32(statics), "targets": f32(targets)}
    tensors["lengths"] = np.array(LENGTHS, dtype=np.int64)
    tensors |= {f"param.{name}": f32(parameter) for name, parameter in model.named_parameters()}
    model.train()
    forecast = model(x, statics)
    loss = F.mse_loss(forecast, targets)
    loss.backward()
    others = [F.l1_loss(forecast, targets), F.huber_loss(forecast, targets, delta=0.7)]
    tensors |= {"forecast": f32(forecast), "losses": f32(torch.stack([loss, *others]))}
    tensors |= {f"grad.{name}": f32(parameter.grad) for name, parameter in model.named_parameters()}
    model.eval()
    tensors |= {"evaluated": f32(model(x, statics)), "encoded": f32(model.encoded)}
    folder = pathlib.Path(__file__).parent / "golden"
    write_safetensors(folder / "stacked-lstm.safetensors", tensors)


if __name__ == "__main__":
    main()
