"""Writes the golden files of the parity tests of fine-tuning's classifier, of the patch Transformer and of the
dilated encoder with its contrastive loss, in float64.

    python golden_finetune.py

Recurrent layers, attention and encoder layers are PyTorch's own. Only random draws are replaced by an independent
implementation of firebox-core's generator. Needs PyTorch and NumPy.
"""

import math
import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from golden import Stream, write_safetensors
from golden_transformer import Draws, probabilities

DROPOUT = Stream.new(7, "dropout").substream(3)
FOLDER = pathlib.Path(__file__).parent / "golden"


def keep(stream, x, p):
    return x * torch.tensor(stream.keep(tuple(x.shape), p)) / (1 - p)


class Classifier(nn.Module):
    """R1's: a recurrent encoder, attention around a residual connection, and a head."""

    def __init__(self, cell, channels, hidden, heads, head, classes, pooling):
        super().__init__()
        # Layer by layer, so that dropout between them can be given.
        one = lambda width: cell(width, hidden, batch_first=True, bidirectional=True)
        self.recurrent, width = nn.ModuleList([one(channels), one(2 * hidden)]), 2 * hidden
        self.norm, self.attention_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.hidden = nn.Linear(width * (2 if pooling == "mean-max" else 1), head)
        self.output, self.pooling = nn.Linear(head, classes), pooling

    def forward(self, x, lengths):
        training, p = self.training, 0.2
        for index, layer in enumerate(self.recurrent):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])
            if index == 0 and training:
                x = keep(DROPOUT.substream(0).substream(0), x, p)
        valid = torch.arange(x.shape[1])[None] < lengths[:, None]
        x = self.norm(x) * valid[..., None]
        batch, time, width = x.shape
        q, k, v = F.linear(x, self.attention.in_proj_weight, self.attention.in_proj_bias).chunk(3, -1)
        split = lambda t: t.reshape(batch, time, self.attention.num_heads, -1).transpose(1, 2)
        q, k, v = split(q), split(k), split(v)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~valid[:, None, None], -math.inf)
        weights = torch.softmax(scores, -1)
        if not training:
            # What is written out here is what the module computes.
            own, _ = self.attention(x, x, x, key_padding_mask=~valid, need_weights=False)
        else:
            weights = weights * probabilities(DROPOUT.substream(1).substream(0), *weights.shape, p)
        attended = self.attention.out_proj((weights @ v).transpose(1, 2).reshape(batch, time, width))
        if not training:
            assert torch.allclose(attended[valid], own[valid], atol=1e-12)
        if training:
            rows = torch.zeros_like(attended)
            rows[:] = attended * valid[..., None]
            attended = keep(DROPOUT.substream(1).substream(1), rows.reshape(batch * time, width), p).reshape(x.shape)
        x = self.attention_norm(x + attended) * valid[..., None]
        mean = x.sum(1) / lengths[:, None]
        top = x.masked_fill(~valid[..., None], -1e30).amax(1)
        pooled = {"mean": mean, "max": top, "mean-max": torch.cat([mean, top], 1)}[self.pooling]
        hidden = torch.relu(self.hidden(pooled))
        return self.output(keep(DROPOUT.substream(2), hidden, p) if training else hidden)

    def rename(self, name):
        parts = name.split(".")
        cell = "lstm" if isinstance(self.recurrent[0], nn.LSTM) else "gru"
        if parts[0] == "recurrent":
            return f"encoder.{cell}." + parts[2].replace("_l0", f"_l{parts[1]}")
        return {"norm": "encoder.norm.", "hidden": "head.hidden.", "output": "head.output."}.get(
            parts[0], parts[0] + "."
        ) + ".".join(parts[1:])


class Patches(nn.Module):
    """The masked patch Transformer, dropout and attention's draws given by `Draws`."""

    def __init__(self, channels, patch, width, heads, layers, feedforward, p):
        super().__init__()
        self.patch, self.mask_token = patch, nn.Parameter(torch.randn(channels) * 0.5)
        self.input = nn.Linear(patch * channels, width)
        layer = nn.TransformerEncoderLayer(width, heads, feedforward, p, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.decoder = nn.LayerNorm(width), nn.Linear(width, patch * channels)

    def latent(self, x, lengths):
        batch, time, channels = x.shape
        valid = torch.arange(time)[None] < lengths[:, None]
        count = -(-time // self.patch)
        x = F.pad(x * valid[..., None], (0, 0, 0, count * self.patch - time))
        x = self.input(x.reshape(batch, count, self.patch * channels))
        place = torch.arange(count).double()[:, None]
        rate = 10000 ** (torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
        position = torch.stack([torch.sin(place / rate), torch.cos(place / rate)], -1).flatten(1)
        lengths = -(-lengths // self.patch)
        padding = torch.arange(count)[None] >= lengths[:, None]
        x = self.encoder(x + position, src_key_padding_mask=padding)
        return self.norm(x) * ~padding[..., None], lengths, padding

    def forward(self, x, mask, lengths):
        shown = torch.where(mask[..., None], self.mask_token.expand_as(x), x)
        latent, _, _ = self.latent(shown, lengths)
        return self.decoder(latent).reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]

    def rename(self, name):
        return name


class Dilated(nn.Module):
    """TS2Vec's encoder, and its loss as its authors' program computes it."""

    def __init__(self, channels, hidden, output, blocks):
        super().__init__()
        self.input, self.blocks = nn.Linear(channels, hidden), nn.ModuleList()
        for index in range(blocks):
            out, step = output if index == blocks - 1 else hidden, 2**index
            conv = lambda a: nn.Conv1d(a, out, 3, padding=step, dilation=step)
            block = {"conv1": conv(hidden), "conv2": conv(out)}
            if index == blocks - 1:
                block["project"] = nn.Linear(hidden, out)
            self.blocks.append(nn.ModuleDict(block))

    def forward(self, x, lengths):
        valid = (torch.arange(x.shape[1])[None] < lengths[:, None])[..., None]
        x = self.input(x) * valid
        for block in self.blocks:
            y = x
            for conv in (block["conv1"], block["conv2"]):
                y = conv(F.gelu(y).transpose(1, 2)).transpose(1, 2) * valid
            x = (block["project"](x) if "project" in block else x) * valid + y
        return x

    def rename(self, name):
        return name


def contrast(z, n):
    products = z @ z.transpose(1, 2)
    logits = torch.tril(products, -1)[:, :, :-1] + torch.triu(products, 1)[:, :, 1:]
    logs, at = -F.log_softmax(logits, -1), torch.arange(n)
    return (logs[:, at, n + at - 1].mean() + logs[:, n + at, at].mean()) / 2


def hierarchical(a, b):
    loss, depth = torch.zeros(()).double(), 0
    pool = lambda z: F.max_pool1d(z.transpose(1, 2), 2).transpose(1, 2)
    between = lambda: contrast(torch.cat([a, b], 0).transpose(0, 1), a.shape[0])
    while a.shape[1] > 1:
        loss = loss + 0.5 * between() + 0.5 * contrast(torch.cat([a, b], 1), a.shape[1])
        a, b, depth = pool(a), pool(b), depth + 1
    return (loss + 0.5 * between()) / (depth + 1)


def exact(model):
    with torch.no_grad():
        for parameter in model.parameters():
            # Values that float32 holds exactly, and norms that are not the identity.
            noise = 0.1 * torch.randn_like(parameter) if parameter.dim() == 1 else 0
            parameter.copy_((parameter + noise).float().double())
    return model


def f32(tensor):
    return tensor.detach().numpy().astype(np.float32)


def inputs(batch, time, channels, lengths):
    x = (torch.randn(batch, time, channels) * 1.5).float().double()
    return x * (torch.arange(time)[None] < lengths[:, None])[..., None]


def save(name, model, tensors):
    for key, parameter in model.named_parameters():
        tensors["param." + model.rename(key)] = f32(parameter)
        tensors["grad." + model.rename(key)] = f32(parameter.grad)
    write_safetensors(FOLDER / f"{name}.safetensors", tensors)


def classifier(name, cell, pooling):
    torch.manual_seed(4)
    model, lengths = exact(Classifier(cell, 3, 6, 2, 7, 4, pooling).double()), torch.tensor([9, 4, 1, 9, 6])
    x, labels = inputs(5, 9, 3, lengths), torch.tensor([0, 3, 1, 2, 2])
    weights = torch.tensor([1.0, 0.5, 2.0, 1.5]).double()
    logits = model.train()(x, lengths)
    # Focal loss (γ = 2), weighted by the class, over the sum of the weights.
    logs = F.log_softmax(logits, 1)[torch.arange(5), labels]
    loss = -(weights[labels] * (1 - logs.exp()) ** 2 * logs).sum() / weights[labels].sum()
    loss.backward()
    tensors = {"inputs": f32(x), "lengths": lengths.numpy(), "labels": labels.numpy(), "weights": f32(weights)}
    tensors |= {"logits": f32(logits), "loss": f32(loss)[None], "evaluated": f32(model.eval()(x, lengths))}
    save(name, model, tensors)


def patches():
    torch.manual_seed(5)
    model, lengths = exact(Patches(3, 4, 8, 2, 2, 12, 0.2).double()), torch.tensor([18, 9, 1, 18, 12])
    x, mask = inputs(5, 18, 3, lengths), torch.rand(5, 18) < 0.4
    mask &= torch.arange(18)[None] < lengths[:, None]
    mask[2, 0] = True
    with Draws(DROPOUT, 0.2):
        loss = ((model.train()(x, mask, lengths) - x)[mask] ** 2).mean()
        loss.backward()
    with Draws(None, 0.2):
        output = model.eval()(x, mask, lengths)
        latent, counts, padding = model.latent(x, lengths)
    mean = latent.sum(1) / counts[:, None]
    embedding = torch.cat([mean, latent.masked_fill(padding[..., None], -1e30).amax(1)], 1)
    tensors = {"inputs": f32(x), "lengths": lengths.numpy(), "mask": mask.numpy().astype(np.uint8)}
    valid = torch.arange(18)[None] < lengths[:, None]
    tensors |= {"loss": f32(loss)[None], "evaluated": f32(output * valid[..., None]), "embedding": f32(embedding)}
    save("patch-transformer", model, tensors)


def dilated():
    torch.manual_seed(6)
    model, lengths = exact(Dilated(3, 6, 8, 3).double()), torch.tensor([13, 9, 1, 13, 12])
    x, other = inputs(5, 13, 3, lengths), inputs(5, 13, 3, lengths)
    encoded = model(x, lengths)
    loss = hierarchical(encoded, model(other, lengths))
    loss.backward()
    tensors = {"inputs": f32(x), "other": f32(other), "lengths": lengths.numpy()}
    save("dilated", model, tensors | {"encoded": f32(encoded), "loss": f32(loss)[None]})


if __name__ == "__main__":
    classifier("classifier-lstm", nn.LSTM, "mean")
    classifier("classifier-gru", nn.GRU, "mean-max")
    patches()
    dilated()
