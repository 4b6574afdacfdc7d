"""Writes golden/update_bn.json: averaged weights of a model with a batch normalisation, in PyTorch.

    python golden_update_bn.py

A linear layer, a batch normalisation and another linear layer learn targets by SGD, in batches of 4
of 10 samples, the last one of 2. Weights are averaged from the second epoch on, all alike; then
`torch.optim.swa_utils.update_bn` fits the statistics to them, over the batches of the third epoch,
and over the first two of these alone. Needs PyTorch. Orders are those of golden/order.json, which
`accumulate.rs` compares with those of Firebox's loader.
"""

import copy
import json
import pathlib

import torch
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn, update_bn

FOLDER = pathlib.Path(__file__).parent / "golden"
ORDER = json.loads((FOLDER / "order.json").read_text())
BATCH, TIME, INPUT, HIDDEN, OUTPUT = 4, 4, 3, 3, 2

torch.manual_seed(11)
inputs = torch.randn(10, TIME, INPUT) * 2.0 + 0.7
targets = torch.randn(10, TIME, OUTPUT)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input = torch.nn.Linear(INPUT, HIDDEN)
        self.norm = torch.nn.BatchNorm1d(HIDDEN)
        self.output = torch.nn.Linear(HIDDEN, OUTPUT)

    def forward(self, x):
        return self.output(self.norm(self.input(x.reshape(-1, INPUT))))


def parameters(model):
    return {name: value.flatten().tolist() for name, value in model.state_dict().items() if "batches" not in name}


def batches(epoch):
    return [ORDER[epoch][i : i + BATCH] for i in range(0, 10, BATCH)]


model = Model()
start = parameters(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
average = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
for epoch in range(2):
    for samples in batches(epoch):
        loss = ((model(inputs[samples]) - targets[samples].reshape(-1, OUTPUT)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch >= 1:
            average.update_parameters(model)

golden = dict(
    torch=torch.__version__,
    inputs=inputs.flatten().tolist(),
    targets=targets.flatten().tolist(),
    start=start,
    latest=parameters(average.module),
)
for name, count in [("two", 2), ("epoch", 3)]:
    fitted = copy.deepcopy(average)
    update_bn([inputs[samples] for samples in batches(2)[:count]], fitted)
    golden[name] = parameters(fitted.module)
(FOLDER / "update_bn.json").write_text(json.dumps(golden) + "\n")
