"""Writes the golden files of the classifiers' parity tests, the models of R3 and R4 in PyTorch, in float64:

    python golden_classifiers.py

`golden/mlp.safetensors`, `golden/cnn-bilstm.safetensors`, the same with R3's gate and R4's embedding and classifier, and
`golden/bilstm-attention.safetensors`: inputs, labels, every parameter and running statistic
under the names of the zoo (`param.`), logits and mean cross-entropy in training with dropout, every gradient
(`grad.`), the running statistics after that step (`after.`), and logits in evaluation then. The random draws of
dropout are made here by the generator of `golden.py`. Needs PyTorch and NumPy.
"""

import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from golden import Stream, write_safetensors

DROPOUT = Stream.new(7, "dropout").substream(3)


class Dropout:
    """Keeps what the stream says, element by element in the order `[batch, ..., channel]`."""

    def __init__(self, stream, probability):
        self.stream, self.probability = stream, probability

    def __call__(self, x):
        keep = torch.tensor(self.stream.keep(tuple(x.shape), self.probability))
        return x * keep / (1 - self.probability)


class Mlp(nn.Module):
    def __init__(self, features, hidden, classes, gate=False):
        super().__init__()
        self.gate = nn.Linear(hidden[-1], hidden[-1]) if gate else None
        self.norm, self.layers = nn.BatchNorm1d(features), nn.ModuleList()
        for a, b in zip([features, *hidden], hidden):
            self.layers.append(nn.ModuleDict({"linear": nn.Linear(a, b), "norm": nn.BatchNorm1d(b)}))
        self.output = nn.Linear(hidden[-1], classes)

    def forward(self, x):
        x = self.norm(x.flatten(1))
        for index, layer in enumerate(self.layers):
            x = torch.relu(layer["norm"](layer["linear"](x)))
            if self.training:
                x = Dropout(DROPOUT.substream(index), 0.3)(x)
        if self.gate is not None:
            x = x * torch.sigmoid(self.gate(x))
        return self.output(x)


class CnnBiLstm(nn.Module):
    def __init__(self, channels, convolutions, hidden, head, classes, embedding=0, classifier=()):
        super().__init__()
        self.head_norm = nn.BatchNorm1d(head) if embedding else None
        self.embedding = nn.Linear(2 * head, embedding) if embedding else None
        self.classifier = nn.ModuleList()
        for a, b in zip([embedding, *classifier], classifier):
            self.classifier.append(nn.ModuleDict({"linear": nn.Linear(a, b), "norm": nn.BatchNorm1d(b)}))
        self.blocks = nn.ModuleList()
        for a, b in zip([channels, *convolutions], convolutions):
            self.blocks.append(nn.ModuleDict({"conv": nn.Conv1d(a, b, 3, padding=1), "norm": nn.BatchNorm1d(b)}))
        # Layer by layer, so that dropout between them can be given.
        lstm = lambda width: nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.lstms = nn.ModuleList([lstm(convolutions[-1]), lstm(2 * hidden)])
        width = classifier[-1] if classifier else 2 * head
        self.head, self.output = nn.Linear(2 * hidden, head), nn.Linear(width, classes)

    def forward(self, x):
        drop = lambda stream, p, x: Dropout(stream, p)(x) if self.training else x
        for index, block in enumerate(self.blocks):
            y = block["norm"](block["conv"](x.transpose(1, 2)))
            x = F.max_pool1d(torch.relu(y), 2).transpose(1, 2)
            x = drop(DROPOUT.substream(2 + index), 0.2, x)
        x = drop(DROPOUT.substream(0).substream(0), 0.3, self.lstms[0](x)[0])
        x = self.head(self.lstms[1](x)[0])
        if self.embedding is None:
            x = drop(DROPOUT.substream(1), 0.3, torch.relu(x))
            self.pooled = torch.cat([x.amax(1), x.mean(1)], 1)
            return self.output(self.pooled)
        x = torch.relu(self.head_norm(x.transpose(1, 2)).transpose(1, 2))
        self.pooled = x = self.embedding(torch.cat([x.amax(1), x.mean(1)], 1))
        for index, layer in enumerate(self.classifier):
            x = torch.relu(layer["norm"](layer["linear"](x)))
            x = drop(DROPOUT.substream(1000).substream(index), 0.4, x)
        return self.output(x)


class BiLstmAttention(nn.Module):
    def __init__(self, channels, hidden, attention, head, classes, lengths):
        super().__init__()
        self.lengths = torch.tensor(lengths)
        self.input_norm, self.norm = nn.LayerNorm(channels), nn.LayerNorm(2 * hidden)
        lstm = lambda width: nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.lstms = nn.ModuleList([lstm(channels), lstm(2 * hidden)])
        score = nn.Linear(attention, 1, bias=False)
        self.attention = nn.ModuleDict({"hidden": nn.Linear(2 * hidden, attention), "score": score})
        self.head = nn.ModuleDict({"hidden": nn.Linear(2 * hidden, head), "output": nn.Linear(head, classes)})

    def forward(self, x):
        drop = lambda stream, x: Dropout(stream, 0.4)(x) if self.training else x
        x = self.input_norm(x)
        for index, lstm in enumerate(self.lstms):
            packed = pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])
            x = drop(DROPOUT.substream(0).substream(0), x) if index == 0 else x
        x = self.norm(x)
        scores = self.attention["score"](torch.tanh(self.attention["hidden"](x)))
        padding = torch.arange(x.shape[1])[None] >= self.lengths[:, None]
        weights = torch.softmax(scores.masked_fill(padding[..., None], -torch.inf), 1)
        self.pooled = (weights * x).sum(1)
        return self.head["output"](drop(DROPOUT.substream(1), torch.relu(self.head["hidden"](self.pooled))))


def rename(name):
    parts = name.split(".")
    if parts[0] == "lstms":
        return "lstm." + parts[2].replace("_l0", f"_l{parts[1]}")
    return name


def case(name, model, x, classes):
    model = model.double()
    f32 = lambda tensor: tensor.detach().numpy().astype(np.float32)
    state = lambda: {rename(n): f32(t) for n, t in model.state_dict().items() if "num_batches" not in n}
    with torch.no_grad():
        for parameter in model.parameters():
            # Values that float32 holds exactly, and norms that are not the identity.
            noise = 0.1 * torch.randn_like(parameter) if parameter.dim() == 1 else 0
            parameter.copy_((parameter + noise).float().double())
        for buffer_name, buffer in model.named_buffers():
            if "running" in buffer_name:
                buffer.copy_((buffer + 0.1 * torch.rand_like(buffer)).float().double())
    x = x.float().double()
    labels = torch.randint(0, classes, (len(x),))
    tensors = {"inputs": f32(x), "labels": labels.numpy()} | {f"param.{n}": t for n, t in state().items()}
    model.train()
    logits = model(x)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    tensors |= {"logits": f32(logits), "loss": f32(loss.reshape(1))}
    tensors |= {f"grad.{rename(n)}": f32(p.grad) for n, p in model.named_parameters()}
    tensors |= {f"after.{n}": t for n, t in state().items() if "running" in n}
    model.eval()
    tensors["evaluated"] = f32(model(x))
    if hasattr(model, "pooled"):
        tensors["embedding"] = f32(model.pooled)
    write_safetensors(pathlib.Path(__file__).parent / "golden" / f"{name}.safetensors", tensors)


if __name__ == "__main__":
    torch.manual_seed(1)
    case("mlp", Mlp(7 * 3, [12, 9, 8, 5], 3), torch.randn(20, 7, 3) * 1.5, 3)
    torch.manual_seed(1)
    case("cnn-bilstm", CnnBiLstm(6, [5, 8, 12], 7, 10, 5), torch.randn(6, 37, 6) * 1.5, 5)
    torch.manual_seed(1)
    case("mlp-gate", Mlp(7 * 3, [12, 9, 8, 5], 3, gate=True), torch.randn(20, 7, 3) * 1.5, 3)
    torch.manual_seed(1)
    model = CnnBiLstm(6, [5, 8, 12], 7, 10, 5, embedding=9, classifier=[8, 6])
    case("cnn-bilstm-embedding", model, torch.randn(9, 37, 6) * 1.5, 5)
    torch.manual_seed(1)
    model = BiLstmAttention(5, 6, 7, 8, 3, [9, 4, 1, 9, 6, 7])
    case("bilstm-attention", model, torch.randn(6, 9, 5) * 1.5, 3)
