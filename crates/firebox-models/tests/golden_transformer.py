"""Writes the golden files of the Transformer's and BERT's parity tests, in float64.

    python golden_transformer.py

The layers are PyTorch's own `nn.TransformerEncoderLayer`. Only its random draws are replaced: dropout
and attention draw from an independent implementation of firebox-core's generator, so that the places
of all four kinds of dropout are compared, too. Needs PyTorch and NumPy.
"""

import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from golden import Stream, philox, write_safetensors


def probabilities(stream, batch, heads, queries, keys, probability):
    """What attention's probabilities are multiplied by: `firebox_kernels::attention`."""
    threshold = round(probability * 65536)
    factors = np.zeros((batch, heads, queries, keys))
    groups = (keys + 7) // 8
    i, g = [x.reshape(-1).astype(np.uint64) for x in np.meshgrid(np.arange(queries), np.arange(groups), indexing="ij")]
    zero = np.zeros_like(i)
    for task in range(batch * heads):
        words = np.stack(philox([i, g, zero, zero], stream.substream(task).key), 1)
        halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], 2)
        bits = halves.reshape(queries, groups * 8)[:, :keys]
        factors[task // heads, task % heads] = (bits >= threshold) * (65536 / (65536 - threshold))
    return torch.tensor(factors)


class Draws:
    """Stands in for the two functions of PyTorch that draw, in the order in which a layer calls them."""

    def __init__(self, stream, probability):
        self.stream, self.probability, self.calls = stream, probability, 0

    def __enter__(self):
        self.kept = F.dropout, F.scaled_dot_product_attention
        F.dropout, F.scaled_dot_product_attention = self.dropout, self.attention
        return self

    def __exit__(self, *_):
        F.dropout, F.scaled_dot_product_attention = self.kept

    def next(self):
        stream = self.stream and self.stream.substream(self.calls // 4).substream(self.calls % 4)
        self.calls += 1
        return stream

    def dropout(self, x, p=0.5, training=True, inplace=False):
        stream = self.next()
        assert not training or p == self.probability
        return x * torch.tensor(stream.keep(x.shape, p)) / (1 - p) if training else x

    def attention(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False):
        stream = self.next()
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        p = torch.softmax(scores if attn_mask is None else scores + attn_mask, -1)
        if dropout_p:
            assert dropout_p == self.probability
            p = p * probabilities(stream, *scores.shape, dropout_p)
        return p @ v


class Classifier(nn.Module):
    def __init__(self, channels, time, classes, width, heads, layers, feedforward, activation, norm_first, dropout):
        super().__init__()
        self.input, self.input_norm = nn.Linear(channels, width), nn.LayerNorm(width)
        self.position = nn.Parameter(torch.randn(1, time, width) * 0.3)
        layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, activation, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.ModuleDict(dict(hidden=nn.Linear(width, 10), output=nn.Linear(10, classes)))

    def forward(self, x, padding):
        x = self.input_norm(self.input(x)) + self.position[:, : x.shape[1]]
        x = self.encoder(x, src_key_padding_mask=padding) * ~padding[..., None]
        pooled = x.sum(1) / (~padding).sum(1, keepdim=True)
        return x, self.head["output"](torch.relu(self.head["hidden"](pooled)))

    def loss(self, logits, labels):
        return F.cross_entropy(logits, labels, label_smoothing=0.1)


class Bert(nn.Module):
    def __init__(self, vocabulary, positions, labels, width, heads, layers, feedforward, dropout):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(1, positions, width) * 0.3)
        layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, labels)

    def forward(self, tokens, padding):
        x = self.embed(tokens) + self.position[:, : tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=padding) * ~padding[..., None]
        return x, self.head(x[:, 0])

    def loss(self, logits, labels):
        return F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, logits.shape[1]).double())


def case(name, model, inputs, lengths, labels, dropout):
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            # Values that float32 holds exactly, and norms and biases that are not what they start as.
            noise = 0.2 * torch.randn_like(parameter) if parameter.dim() == 1 else 0
            parameter.copy_((parameter + noise).float().double())
    lengths, labels = torch.tensor(lengths), torch.tensor(labels)
    padding = torch.arange(inputs.shape[1])[None] >= lengths[:, None]
    with Draws(Stream.new(7, "dropout").substream(3), dropout):
        _, logits = model.train()(inputs, padding)
        loss = model.loss(logits, labels)
        loss.backward()
    with Draws(None, dropout):
        # Gradients stay on: without them PyTorch takes another path through the layer.
        encoded, evaluated = model.eval()(inputs, padding)
    f32 = lambda tensor: tensor.detach().numpy().astype(np.float32)
    tensors = {
        "inputs": f32(inputs.double()), "lengths": lengths.numpy(), "labels": labels.numpy(), "logits": f32(logits),
        "loss": f32(loss)[None], "encoded": f32(encoded), "evaluated": f32(evaluated),
    }
    for key, parameter in model.named_parameters():
        tensors["param." + key] = f32(parameter)
        tensors["grad." + key] = f32(parameter.grad)
    write_safetensors(pathlib.Path(__file__).parent / f"golden/{name}.safetensors", tensors)


if __name__ == "__main__":
    lengths = [9, 4, 1, 9, 6]
    for name, activation, norm_first in [("transformer", "gelu", True), ("transformer-post-norm", "relu", False)]:
        torch.manual_seed(2)
        model = Classifier(3, 11, 4, 16, 2, 2, 24, activation, norm_first, 0.2)
        x = (torch.randn(5, 9, 3) * 1.5).float().double()
        case(name, model, x * (torch.arange(9)[None] < torch.tensor(lengths)[:, None])[..., None], lengths, [0, 3, 1, 2, 2], 0.2)
    torch.manual_seed(3)
    model = Bert(40, 10, 5, 24, 3, 2, 32, 0.1)
    case("bert", model, torch.randint(0, 40, (5, 9)), lengths, [0, 4, 1, 2, 2], 0.1)
