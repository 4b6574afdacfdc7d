"""The models of Firebox in PyTorch, under the same names of parameters.

    python firebox_models.py FOLDER          # load the model of a folder, and embed windows of noise

    import firebox_models
    model, card = firebox_models.load("FOLDER")            # model.safetensors and model.json
    windows = [firebox_models.normalise(window, card) for window in raw]       # each [time, channel]
    x, lengths = firebox_models.batch(windows)             # [batch, time, channel], [batch]
    vectors = model.embed(x, lengths)                      # [batch, embedding]

`load` is no more than `Class(...).load_state_dict(safetensors.torch.load_file("model.safetensors"))` with the sizes
that `model.json` states. Steps after the length of a window may hold anything. Needs numpy, torch and safetensors.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def valid_steps(lengths, time):
    """[batch, time, 1], true where a step is no padding."""
    return (torch.arange(time, device=lengths.device)[None] < lengths[:, None])[..., None]


def known_tokens(tokens, lengths):
    """[batch, time], token 0 where there is none, whatever stands there."""
    return tokens.masked_fill(~valid_steps(lengths, tokens.shape[1])[..., 0], 0)


def unpadded(x, lengths):
    """The same with zeros for padding, whatever it holds."""
    return x.masked_fill(~valid_steps(lengths, x.shape[1]), 0.0)


def mean(x, lengths):
    """The mean over the valid steps of x [batch, time, width], which is zero elsewhere."""
    return x.sum(1) / lengths.clamp(min=1)[:, None]


def maximum(x, lengths):
    """The maximum over the valid steps; zero for a sample without one."""
    pushed = x.masked_fill(~valid_steps(lengths, x.shape[1]), torch.finfo(x.dtype).min)
    return pushed.amax(1) * (lengths > 0)[:, None]


def run_lstm(lstm, x, lengths):
    """Outputs of a batch-first LSTM, zero after each length. A sample without a step gives zeros."""
    packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    out, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])
    return out * valid_steps(lengths, x.shape[1])


def head(hidden, output):
    return nn.ModuleDict({"hidden": hidden, "output": output})


class BiLstmMae(nn.Module):
    """The masked autoencoder of reference system R1."""

    def __init__(self, channels, hidden=128, layers=2, dropout=0.2, decoder_hidden=128, **_):
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(channels))
        self.lstm = nn.LSTM(
            channels, hidden, layers, batch_first=True, bidirectional=True, dropout=dropout if layers > 1 else 0.0
        )
        self.norm = nn.LayerNorm(2 * hidden)
        self.decoder = head(nn.Linear(2 * hidden, decoder_hidden), nn.Linear(decoder_hidden, channels))
        self.dropout = nn.Dropout(dropout)

    def encode(self, x, lengths):
        """[batch, time, 2 * hidden], zeros after each length"""
        valid = valid_steps(lengths, x.shape[1])
        return self.norm(run_lstm(self.lstm, unpadded(x, lengths), lengths)) * valid

    def embed(self, x, lengths):
        """[batch, 4 * hidden]"""
        encoding = self.encode(x, lengths)
        return torch.cat([mean(encoding, lengths), maximum(encoding, lengths)], 1)

    def forward(self, x, lengths, mask):
        """Every step restored, where those that mask [batch, time] names are hidden."""
        latent = self.encode(torch.where(mask[..., None], self.mask_token, x), lengths)
        return self.decoder["output"](self.dropout(F.relu(self.decoder["hidden"](latent))))


def hidden_layers(sizes):
    """Linear layers with batch normalisation; `run_hidden` runs them."""
    layer = lambda a, b: nn.ModuleDict({"linear": nn.Linear(a, b), "norm": nn.BatchNorm1d(b)})
    return nn.ModuleList([layer(a, b) for a, b in zip(sizes, sizes[1:])])


def run_hidden(layers, x, dropout):
    for layer in layers:
        x = dropout(F.relu(layer["norm"](layer["linear"](x))))
    return x


class CnnBiLstm(nn.Module):
    """The classifier of reference system R4. Layers whose setting is absent from a card are not there."""

    def __init__(
        self, channels, classes, convolutions=(64, 128, 256), kernel=3, convolution_dropout=0.2, hidden=256, layers=2,
        head=512, dropout=0.3, head_norm=False, head_dropout=0.0, embedding=0, classifier=(), classifier_dropout=0.4,
        **_
    ):
        super().__init__()
        blocks = [
            nn.ModuleDict({"conv": nn.Conv1d(a, b, kernel, padding=kernel // 2), "norm": nn.BatchNorm1d(b)})
            for a, b in zip([channels, *convolutions], convolutions)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.lstm = nn.LSTM(
            convolutions[-1], hidden, layers, batch_first=True, bidirectional=True,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.head = nn.Linear(2 * hidden, head)
        self.head_norm = nn.BatchNorm1d(head) if head_norm else None
        self.embedding = nn.Linear(2 * head, embedding) if embedding else None
        sizes = [embedding or 2 * head, *classifier]
        self.classifier, self.output = hidden_layers(sizes), nn.Linear(sizes[-1], classes)
        self.after_convolution, self.after_head = nn.Dropout(convolution_dropout), nn.Dropout(head_dropout)
        self.after_hidden = nn.Dropout(classifier_dropout)

    def encode_with_lengths(self, x, lengths):
        x = unpadded(x, lengths)
        for block in self.blocks:
            x = F.max_pool1d(F.relu(block["norm"](block["conv"](x.transpose(1, 2)))), 2)
            x, lengths = self.after_convolution(x).transpose(1, 2), lengths // 2
            # The next convolution finds zeros behind a sample's end, however far it is padded.
            x = unpadded(x, lengths)
        x = self.head(run_lstm(self.lstm, x, lengths))
        if self.head_norm is not None:
            x = self.head_norm(x.transpose(1, 2)).transpose(1, 2)
        x = self.after_head(F.relu(x))
        return x * valid_steps(lengths, x.shape[1]), lengths

    def encode(self, x, lengths):
        """[batch, time / 2 ** convolutions, head], zeros after each length"""
        return self.encode_with_lengths(x, lengths)[0]

    def embed(self, x, lengths):
        """[batch, embedding]: of the maximum and the mean"""
        encoding, lengths = self.encode_with_lengths(x, lengths)
        pooled = torch.cat([maximum(encoding, lengths), mean(encoding, lengths)], 1)
        return pooled if self.embedding is None else self.embedding(pooled)

    def forward(self, x, lengths):
        """[batch, class]"""
        return self.output(run_hidden(self.classifier, self.embed(x, lengths), self.after_hidden))


class Layers(nn.Module):
    """The layers of a Transformer's encoder. What they give for padding means nothing."""

    def __init__(self, width, heads, layers, feedforward, dropout, activation, norm_first):
        super().__init__()
        layer = lambda: nn.TransformerEncoderLayer(
            width, heads, feedforward, dropout, activation, batch_first=True, norm_first=norm_first
        )
        self.layers = nn.ModuleList([layer() for _ in range(layers)])

    def forward(self, x, lengths):
        # A sample without a step attends to its first one, so that nothing is NaN.
        padding = ~valid_steps(lengths.clamp(min=1), x.shape[1])[..., 0]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        return x


class Transformer(nn.Module):
    """The Transformer of reference system R3."""

    def __init__(
        self, channels, time, classes, width=128, heads=8, layers=3, feedforward=512, dropout=0.2, activation="gelu",
        norm_first=True, head_hidden=64, **_
    ):
        super().__init__()
        self.input, self.input_norm = nn.Linear(channels, width), nn.LayerNorm(width)
        self.position = nn.Parameter(torch.zeros(1, time, width))
        self.encoder = Layers(width, heads, layers, feedforward, dropout, activation, norm_first)
        self.head = head(nn.Linear(width, head_hidden), nn.Linear(head_hidden, classes))

    def encode(self, x, lengths):
        """[batch, time, width], zeros after each length"""
        valid = valid_steps(lengths, x.shape[1])
        x = self.input_norm(self.input(unpadded(x, lengths))) + self.position[:, : x.shape[1]]
        return self.encoder(x, lengths) * valid

    def embed(self, x, lengths):
        """[batch, 2 * width]"""
        encoding = self.encode(x, lengths)
        return torch.cat([mean(encoding, lengths), maximum(encoding, lengths)], 1)

    def forward(self, x, lengths):
        """[batch, class]"""
        return self.head["output"](F.relu(self.head["hidden"](mean(self.encode(x, lengths), lengths))))


class Mlp(nn.Module):
    """The dense classifier of reference system R3: every window has all its steps."""

    def __init__(self, time, channels, classes, hidden=(128, 96, 64, 32), dropout=0.3, gate=False, **_):
        super().__init__()
        self.norm = nn.BatchNorm1d(time * channels)
        self.layers = hidden_layers([time * channels, *hidden])
        self.gate = nn.Linear(hidden[-1], hidden[-1]) if gate else None
        self.output, self.dropout = nn.Linear(hidden[-1], classes), nn.Dropout(dropout)

    def forward(self, x, lengths=None):
        """[batch, class]"""
        x = run_hidden(self.layers, self.norm(x.flatten(1)), self.dropout)
        return self.output(x if self.gate is None else x * torch.sigmoid(self.gate(x)))


class Bert(nn.Module):
    """The text model of reference system R5."""

    def __init__(
        self, vocabulary=30522, positions=128, width=768, heads=12, layers=12, feedforward=3072, dropout=0.1, labels=9,
        **_
    ):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, positions, width))
        self.encoder = Layers(width, heads, layers, feedforward, dropout, "gelu", False)
        self.head = nn.Linear(width, labels)

    def encode(self, tokens, lengths):
        """[batch, time, width]"""
        x = self.embed(known_tokens(tokens, lengths))
        return self.encoder(x + self.position[:, : tokens.shape[1]], lengths)

    def forward(self, tokens, lengths):
        """[batch, label]"""
        return self.head(self.encode(tokens, lengths)[:, 0])


class TextAttention(nn.Module):
    """Attention of a text encoder: plain, DeBERTa's (`disentangled`), or Longformer's (`windowed`)."""

    def __init__(self, width, heads, rule):
        super().__init__()
        self.heads, self.rule = heads, rule
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width).normal_(0, 0.02))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        if "disentangled" in rule and not rule["disentangled"]["shared_projection"]:
            self.positions = nn.Linear(width, 2 * width)
        if "windowed" in rule:
            self.add_module("global", nn.Linear(width, 3 * width))

    def by_heads(self, x, parts):
        """[batch, time, parts * width] as `parts` tensors [batch, head, time, size]"""
        return [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in x.chunk(parts, -1)]

    def weighted(self, scores, seen, values):
        return scores.masked_fill(~seen, -1e30).softmax(-1) @ values

    def forward(self, x, lengths, layer, distances):
        time = x.shape[1]
        place = torch.arange(time, device=x.device)
        keys = (place[None] < lengths[:, None])[:, None, None]
        q, k, v = self.by_heads(F.linear(x, self.in_proj_weight, self.in_proj_bias), 3)
        size = q.shape[-1]
        if "disentangled" in self.rule:
            rule, (rows, vectors) = self.rule["disentangled"], distances
            shared = rule["shared_projection"]
            own = F.linear(vectors, self.in_proj_weight, self.in_proj_bias) if shared else self.positions(vectors)
            of_queries, of_keys = self.by_heads(own[None], 3 if shared else 2)[:2]
            scale = (size * (1 + rule["content_to_position"] + rule["position_to_content"])) ** -0.5
            scores = q @ k.transpose(-1, -2)
            rows = rows.expand(*scores.shape)
            if rule["content_to_position"]:
                scores = scores + (q @ of_keys.transpose(-1, -2)).gather(-1, rows)
            if rule["position_to_content"]:
                # The row for query - key, found from the key's side.
                found = (k @ of_queries.transpose(-1, -2)).gather(-1, rows.transpose(-1, -2))
                scores = scores + found.transpose(-1, -2)
            attended = self.weighted(scores * scale, keys, v)
        elif "windowed" in self.rule:
            near = (place[:, None] - place[None]).abs() <= self.rule["windowed"]["reach"][layer]
            attended = self.weighted(q @ k.transpose(-1, -2) * size**-0.5, (near | (place == 0)) & keys, v)
            q, k, v = self.by_heads(getattr(self, "global")(x), 3)
            first = self.weighted(q[:, :, :1] @ k.transpose(-1, -2) * size**-0.5, keys, v)
            attended = torch.cat([first, attended[:, :, 1:]], 2)
        else:
            attended = self.weighted(q @ k.transpose(-1, -2) * size**-0.5, keys, v)
        return self.out_proj(attended.transpose(1, 2).flatten(2))


class TextEncoder(nn.Module):
    """BERT, RoBERTa, ELECTRA, DistilBERT, DeBERTa or Longformer, by their common settings."""

    def __init__(
        self, vocabulary, positions, absolute_positions, position_offset, segments, width, heads, layers, feedforward,
        activation, epsilon, attention, embedding=None, **_
    ):
        super().__init__()
        norm = lambda width: nn.LayerNorm(width, eps=epsilon)
        self.rule = {attention: {}} if isinstance(attention, str) else attention
        self.offset, self.activation = position_offset, {"gelu": F.gelu, "relu": F.relu}[activation]
        size = embedding or width
        self.tokens = nn.Embedding(vocabulary, size)
        self.positions = nn.Embedding(positions + position_offset, size) if absolute_positions else None
        self.segments = nn.Embedding(segments, size) if segments else None
        self.embedding_norm = norm(size)
        self.projection = nn.Linear(size, width) if size != width else None
        rule = self.rule.get("disentangled")
        self.span = (rule["buckets"] or rule["farthest"]) if rule else 0
        self.distances = nn.Embedding(2 * self.span, width) if rule else None
        self.distance_norm = norm(width) if rule and rule["normalised"] else None
        layer = lambda: nn.ModuleDict({
            "attention": TextAttention(width, heads, self.rule), "attention_norm": norm(width),
            "linear1": nn.Linear(width, feedforward), "linear2": nn.Linear(feedforward, width),
            "output_norm": norm(width),
        })
        self.layers = nn.ModuleList([layer() for _ in range(layers)])

    def rows(self, time):
        """The row of each distance, [query, key]."""
        rule, place = self.rule["disentangled"], torch.arange(time)
        distance, middle = place[:, None] - place[None], rule["buckets"] // 2
        if rule["buckets"]:
            far = distance.abs().clamp(min=1).float() / middle
            far = far.log() / torch.tensor((rule["farthest"] - 1) / middle).log()
            far = distance.sign() * ((far * (middle - 1)).ceil() + middle).long()
            distance = torch.where(distance.abs() <= middle, distance, far)
        return (distance + self.span).clamp(0, 2 * self.span - 1)

    def forward(self, tokens, lengths):
        """[batch, time, width]"""
        time = tokens.shape[1]
        x = self.tokens(known_tokens(tokens, lengths))
        if self.positions is not None:
            x = x + self.positions.weight[self.offset : self.offset + time]
        if self.segments is not None:
            x = x + self.segments.weight[0]
        x = self.embedding_norm(x)
        if self.projection is not None:
            x = self.projection(x)
        distances = None
        if self.distances is not None:
            vectors = self.distances.weight
            vectors = vectors if self.distance_norm is None else self.distance_norm(vectors)
            distances = (self.rows(time).to(x.device), vectors)
        for index, layer in enumerate(self.layers):
            x = layer["attention_norm"](x + layer["attention"](x, lengths, index, distances))
            x = layer["output_norm"](x + layer["linear2"](self.activation(layer["linear1"](x))))
        return x


class Text(nn.Module):
    """An encoder of texts with a head for labels, and perhaps one for their evidence."""

    def __init__(self, encoder, labels, pooling="cls", span=False, **_):
        super().__init__()
        width, self.pooling = encoder["width"], pooling
        self.encoder = TextEncoder(**encoder)
        if pooling == "attention":
            self.attention = nn.Linear(width, 1)
        self.criteria = nn.Linear(width, labels)
        self.span = nn.Linear(width, 2) if span else None

    def encode(self, tokens, lengths):
        """[batch, time, width]"""
        return self.encoder(tokens, lengths)

    def embed(self, tokens, lengths):
        """[batch, width]"""
        x = self.encode(tokens, lengths)
        valid = valid_steps(lengths, x.shape[1])
        if self.pooling == "mean":
            return mean(x * valid, lengths)
        if self.pooling == "max":
            return maximum(x, lengths)
        if self.pooling == "attention":
            return (x * self.attention(x).masked_fill(~valid, -1e30).softmax(1)).sum(1)
        return x[:, 0]

    def forward(self, tokens, lengths):
        """[batch, label]"""
        return self.criteria(self.embed(tokens, lengths))

    def evidence(self, tokens, lengths):
        """Scores of each token as the first and as the last of the evidence, [batch, time] each"""
        scores = self.span(self.encode(tokens, lengths))
        return scores.masked_fill(~valid_steps(lengths, scores.shape[1]), -1e30).unbind(-1)


class StackedLstm(nn.Module):
    """The forecaster of reference system R2: a number for each target and horizon, scaled."""

    def __init__(self, channels, statics, outputs, hidden_1=128, hidden_2=64, dense=32, dropout=0.2, **_):
        super().__init__()
        sizes = [channels, *(hidden for hidden in (hidden_1, hidden_2) if hidden)]
        self.layers = nn.ModuleList([nn.LSTM(a, b, batch_first=True) for a, b in zip(sizes, sizes[1:])])
        self.dense, self.output = nn.Linear(sizes[-1] + statics, dense), nn.Linear(dense, outputs)
        self.dropout = nn.Dropout(dropout)

    def encode(self, x, lengths):
        """[batch, time, hidden], zeros after each length"""
        x = unpadded(x, lengths)
        for lstm in self.layers:
            x = run_lstm(lstm, x, lengths)
        return x

    def embed(self, x, lengths):
        """[batch, hidden]: the last valid step"""
        encoding = self.encode(x, lengths)
        last = encoding[torch.arange(len(lengths)), lengths.clamp(min=1) - 1]
        return last * (lengths > 0)[:, None]

    def forward(self, x, lengths, statics=None):
        """[batch, output]"""
        features = self.embed(x, lengths)
        features = features if statics is None else torch.cat([features, statics], 1)
        return self.output(self.dropout(F.relu(self.dense(features))))


class Recurrent(nn.Module):
    """An LSTM or a GRU with LayerNorm: the encoder of `BiLstmMae`, for one."""

    def __init__(self, channels, cell="lstm", hidden=128, layers=2, bidirectional=True, dropout=0.2, **_):
        super().__init__()
        self.cell, self.width = cell, hidden * (1 + bidirectional)
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        dropout = dropout if layers > 1 else 0.0
        module = kind(channels, hidden, layers, batch_first=True, bidirectional=bidirectional, dropout=dropout)
        self.add_module(cell, module)
        self.norm = nn.LayerNorm(self.width)

    def encode_with_lengths(self, x, lengths):
        valid = valid_steps(lengths, x.shape[1])
        return self.norm(run_lstm(getattr(self, self.cell), unpadded(x, lengths), lengths)) * valid, lengths

    def encode(self, x, lengths):
        """[batch, time, width], zeros after each length"""
        return self.encode_with_lengths(x, lengths)[0]

    def embed(self, x, lengths):
        """[batch, 2 * width]"""
        encoding, lengths = self.encode_with_lengths(x, lengths)
        return torch.cat([mean(encoding, lengths), maximum(encoding, lengths)], 1)


class BiLstmAttention(nn.Module):
    """The recurrent classifier of reference system R3, with additive attention over the steps."""

    def __init__(self, channels, classes, hidden=128, layers=2, attention=128, head_hidden=128, dropout=0.4, **_):
        super().__init__()
        self.input_norm, self.norm = nn.LayerNorm(channels), nn.LayerNorm(2 * hidden)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(channels, hidden, layers, batch_first=True, bidirectional=True, dropout=between)
        score = nn.Linear(attention, 1, bias=False)
        self.attention = nn.ModuleDict({"hidden": nn.Linear(2 * hidden, attention), "score": score})
        self.head = head(nn.Linear(2 * hidden, head_hidden), nn.Linear(head_hidden, classes))
        self.dropout = nn.Dropout(dropout)

    def encode(self, x, lengths):
        """[batch, time, 2 * hidden], zeros after each length"""
        valid, x = valid_steps(lengths, x.shape[1]), unpadded(x, lengths)
        # Channels of one level, such as prices, lie far from zero.
        x = self.input_norm(x - x.mean(-1, keepdim=True))
        return self.norm(run_lstm(self.lstm, x, lengths)) * valid

    def embed(self, x, lengths):
        """[batch, 2 * hidden]: the mean of the steps by their attention"""
        steps = self.encode(x, lengths)
        scores = self.attention["score"](torch.tanh(self.attention["hidden"](steps)))
        scores = scores.masked_fill(~valid_steps(lengths, x.shape[1]), -1e30)
        return (steps * scores.softmax(1)).sum(1)

    def forward(self, x, lengths):
        """[batch, class]"""
        hidden = F.relu(self.head["hidden"](self.embed(x, lengths)))
        return self.head["output"](self.dropout(hidden))


class Dilated(nn.Module):
    """The encoder of dilated convolutions."""

    def __init__(self, channels, hidden=64, output=320, blocks=11, **_):
        super().__init__()
        self.input, self.blocks = nn.Linear(channels, hidden), nn.ModuleList()
        for index in range(blocks):
            last, dilation = index + 1 == blocks, 2**index
            width = output if last else hidden
            conv = lambda before: nn.Conv1d(before, width, 3, padding=dilation, dilation=dilation)
            block = nn.ModuleDict({"conv1": conv(hidden), "conv2": conv(width)})
            if last:
                block["project"] = nn.Linear(hidden, width)
            self.blocks.append(block)

    def encode(self, x, lengths):
        """[batch, time, output], zeros after each length"""
        valid = valid_steps(lengths, x.shape[1])
        x = self.input(unpadded(x, lengths)) * valid
        for block in self.blocks:
            y = x
            for name in ("conv1", "conv2"):
                y = block[name](F.gelu(y).transpose(1, 2)).transpose(1, 2) * valid
            x = (block["project"](x) * valid if "project" in block else x) + y
        return x

    def embed(self, x, lengths):
        """[batch, 2 * output]"""
        encoding = self.encode(x, lengths)
        return torch.cat([mean(encoding, lengths), maximum(encoding, lengths)], 1)


class PatchTransformer(nn.Module):
    """The masked autoencoder of patches."""

    def __init__(self, channels, patch=7, width=128, heads=8, layers=3, feedforward=256, dropout=0.2, **_):
        super().__init__()
        self.channels, self.patch, self.width = channels, patch, width
        self.mask_token = nn.Parameter(torch.zeros(channels))
        self.input, self.decoder = nn.Linear(patch * channels, width), nn.Linear(width, patch * channels)
        self.encoder = Layers(width, heads, layers, feedforward, dropout, "gelu", True)
        self.norm = nn.LayerNorm(width)

    def positions(self, patches):
        place = torch.arange(self.width, dtype=torch.float64)
        angle = torch.arange(patches, dtype=torch.float64)[:, None] / 10_000 ** ((place - place % 2) / self.width)
        return torch.where(place % 2 == 0, angle.sin(), angle.cos()).float()

    def encode_with_lengths(self, x, lengths):
        x = unpadded(x, lengths)
        x = F.pad(x, (0, 0, 0, -x.shape[1] % self.patch)).reshape(len(x), -1, self.patch * self.channels)
        lengths = (lengths + self.patch - 1) // self.patch
        x = self.encoder(self.input(x) + self.positions(x.shape[1]).to(x.device), lengths)
        return self.norm(x) * valid_steps(lengths, x.shape[1]), lengths

    def encode(self, x, lengths):
        """[batch, patch, width], zeros after each length"""
        return self.encode_with_lengths(x, lengths)[0]

    def embed(self, x, lengths):
        """[batch, 2 * width]"""
        encoding, lengths = self.encode_with_lengths(x, lengths)
        return torch.cat([mean(encoding, lengths), maximum(encoding, lengths)], 1)

    def forward(self, x, lengths, mask):
        """Every step restored, where those that mask [batch, time] names are hidden."""
        latent = self.encode(torch.where(mask[..., None], self.mask_token, x), lengths)
        return self.decoder(latent).reshape(len(x), -1, self.channels)[:, : x.shape[1]]


class Classifier(nn.Module):
    """The classifier of reference system R1's fine-tuning: attention over an encoder's steps, and a small head."""

    def __init__(self, encoder, classes, heads=2, pooling="mean", hidden=128, dropout=0.2, **_):
        super().__init__()
        width, self.pooling = encoder.width, pooling
        self.encoder = encoder
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True) if heads else None
        self.attention_norm = nn.LayerNorm(width)
        pooled = 2 * width if pooling == "mean-max" else width
        self.head = nn.ModuleDict({"output": nn.Linear(hidden or pooled, classes)})
        if hidden:
            self.head["hidden"] = nn.Linear(pooled, hidden)
        self.dropout = nn.Dropout(dropout)

    def encode(self, x, lengths):
        return self.encoder.encode(x, lengths)

    def embed(self, x, lengths):
        return self.encoder.embed(x, lengths)

    def forward(self, x, lengths):
        """[batch, class]"""
        steps, lengths = self.encoder.encode_with_lengths(x, lengths)
        valid = valid_steps(lengths, steps.shape[1])
        if self.attention is not None:
            # A sample without a step attends to its first one, so that nothing is NaN.
            padding = ~valid_steps(lengths.clamp(min=1), steps.shape[1])[..., 0]
            attended, _ = self.attention(steps, steps, steps, key_padding_mask=padding, need_weights=False)
            steps = steps + self.dropout(attended)
        steps = self.attention_norm(steps) * valid
        parts = {"mean": [mean], "max": [maximum], "mean-max": [mean, maximum]}[self.pooling]
        x = torch.cat([part(steps, lengths) for part in parts], 1)
        if "hidden" in self.head:
            x = self.dropout(F.relu(self.head["hidden"](x)))
        return self.head["output"](x)


def recurrent_classifier(channels, encoder, **config):
    return Classifier(Recurrent(channels, **encoder), **config)


def patch_classifier(channels, encoder, **config):
    return Classifier(PatchTransformer(channels, **encoder), **config)


def any_encoder(encoder, channels, time):
    """The encoder that a card names, its width, and the steps of a window that one of its steps stands for."""
    [(name, config)] = encoder.items()
    if name == "recurrent":
        module = Recurrent(channels, **config)
        return module, module.width, 1
    if name == "dilated":
        return Dilated(channels, **config), config["output"], 1
    if name == "transformer":
        return Transformer(channels, time, 1, **config), config["width"], 1
    if name == "cnn-bilstm":
        return CnnBiLstm(channels, 1, **config), config["head"], 2 ** len(config["convolutions"])
    if name == "bilstm-attention":
        return BiLstmAttention(channels, 1, **config), 2 * config["hidden"], 1
    return StackedLstm(channels, 0, 1, **config), config["hidden_2"] or config["hidden_1"], 1


class Masked(nn.Module):
    """Any encoder that restores hidden steps."""

    def __init__(self, channels, time, encoder, **_):
        super().__init__()
        self.encoder, width, self.shortened = any_encoder(encoder, channels, time)
        self.mask_token, self.channels = nn.Parameter(torch.zeros(channels)), channels
        self.decoder = nn.Linear(width, channels * self.shortened)

    def encode(self, x, lengths):
        return self.encoder.encode(x, lengths)

    def embed(self, x, lengths):
        return self.encoder.embed(x, lengths)

    def forward(self, x, lengths, mask):
        """Every step restored, where those that mask [batch, time] names are hidden.

        Of an encoder that makes one step of several, those at the end of a window that do not fill one mean nothing.
        """
        latent = self.encode(torch.where(mask[..., None], self.mask_token, x), lengths)
        steps = self.decoder(latent).reshape(len(x), -1, self.channels)
        return F.pad(steps, (0, 0, 0, x.shape[1] - steps.shape[1]))


def encoder_classifier(channels, time, encoder, **config):
    module, width, shortened = any_encoder(encoder, channels, time)
    module.width = width
    if not hasattr(module, "encode_with_lengths"):
        module.encode_with_lengths = lambda x, lengths: (module.encode(x, lengths), lengths)
    return Classifier(module, **config)


def own_scale(values):
    """The (population) standard deviation; zero for a constant, of which rounding leaves some."""
    if len(values) == 0:
        return 0.0
    scale = values.std()
    return scale if scale > abs(values.mean()) * 1e-12 else 0.0


PRICES = ("open", "high", "low", "close")


def is_rounding(level, changes):
    """Whether changes scatter by no more than how their levels were rounded, to float64 or to float32."""
    if len(changes) == 0:
        return True
    mean, deviation, largest = abs(changes.mean()), changes.std(), abs(level).max()
    single = (level.astype(np.float32) == level).all() and (level % 1 != 0).any()
    return deviation <= 2 * np.finfo(np.float64).eps * largest or (
        deviation < mean and deviation <= np.finfo(np.float32).eps * largest and single)


def normalise(window, card):
    """A window [time, channel] of raw values, with the channels of the card, as the model reads it: float32."""
    window = np.asarray(window, np.float64)
    normaliser = card["normaliser"]
    roles = [channel["role"] for channel in normaliser["channels"]]
    assert window.ndim == 2 and window.shape[1] == len(roles), f"{window.shape}: not [time, {len(roles)}]"
    out = np.empty_like(window)
    for channel, (role, fitted) in enumerate(zip(roles, normaliser["fitted"])):
        center, scale = fitted["center"], fitted["scale"]
        if normaliser["kind"] == "window-standard":
            center, scale = window[:, channel].mean(), own_scale(window[:, channel]) or scale
        elif normaliser["kind"] == "window-relative":
            # Prices share the map of the close.
            level = window[:, roles.index("close") if role in PRICES and "close" in roles else channel]
            changes = np.diff(level)
            own = 0.0 if is_rounding(level, changes) else own_scale(changes)
            center, scale = level[0], own * np.sqrt(len(changes)) or scale
        else:
            assert normaliser["kind"] in ("none", "standard", "robust"), normaliser["kind"]
        out[:, channel] = (window[:, channel] - center) * (1 / scale)
    return out.astype(np.float32)


def of_channels(window, card):
    """Of a window [time, channel] with all channels of the card, those that the model sees."""
    names = [channel["name"] for channel in card["channels"]]
    seen = [names.index(channel["name"]) for channel in card["normaliser"]["channels"]]
    return np.asarray(window, np.float64)[:, seen]


def statics(window, time, card):
    """What a forecaster knows of a window [time, channel] with all channels of the card beside its values: float32.

    `time` is that of its last step, in microseconds since 1970-01-01 UTC.
    """
    rule, day = card["forecast"]["rule"], 24 * 3_600_000_000
    scales = card["forecast"]["statics"]
    last = np.asarray(window, np.float64)[-1, rule["statics"]]
    out = [(value - one["center"]) / one["scale"] for value, one in zip(last, scales)]
    days = time // day
    phases = {"hour": time % day / day, "weekday": days % 7 / 7, "year-day": days / 365.2425 % 1}
    for cycle in rule["calendar"]:
        angle = 2 * np.pi * phases[cycle]
        out += [np.sin(angle), np.cos(angle)]
    return np.array(out, np.float32)


def restore(outputs, window, card):
    """Outputs of a forecaster for a window [time, channel] with all channels of the card, in the units of the data:
    [horizon, target]."""
    forecast, window = card["forecast"], np.asarray(window, np.float64)
    rule = forecast["rule"]
    outputs = np.asarray(outputs, np.float64)
    centers, scales = (np.array([one[key] for one in forecast["outputs"]]) for key in ("center", "scale"))
    values = (centers + scales * outputs).reshape(len(rule["horizons"]), len(rule["targets"]))
    own = window[:, rule["targets"]]
    if rule["predicted"] == "value":
        return values
    if rule["predicted"] == "relative-change":
        values = values * [own_scale(one) or spread for one, spread in zip(own.T, forecast["spreads"])]
    return own[-1] + values


def batch(windows):
    """Windows [time, channel] of any lengths as one tensor [batch, time, channel] with zeros, and their lengths."""
    lengths = torch.tensor([len(window) for window in windows])
    out = torch.zeros(len(windows), int(lengths.max()), windows[0].shape[1])
    for row, window in zip(out, windows):
        row[: len(window)] = torch.as_tensor(window)
    return out, lengths


MODELS = {
    "bilstm-mae": BiLstmMae,
    "cnn-bilstm": CnnBiLstm,
    "transformer": Transformer,
    "mlp": Mlp,
    "bert": Bert,
    "stacked-lstm": StackedLstm,
    "patch-transformer": PatchTransformer,
    "bilstm-attention": BiLstmAttention,
    "dilated": Dilated,
    "recurrent": Recurrent,
    "recurrent-classifier": recurrent_classifier,
    "patch-classifier": patch_classifier,
    "masked": Masked,
    "encoder-classifier": encoder_classifier,
    "text": Text,
}


def build(architecture):
    """The model that the `architecture` of a card names, with fresh weights."""
    [(name, sizes)] = architecture.items()
    sizes = dict(sizes)
    config = sizes.pop("config")
    return MODELS[name](**sizes, **config)


def load(folder):
    """The model of a folder in evaluation, and its card."""
    folder = pathlib.Path(folder)
    card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    model = build(card["architecture"])
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval(), card


def main():
    model, card = load(sys.argv[1])
    print(model)
    if card.get("texts"):
        tokens = torch.randint(model.encoder.tokens.num_embeddings, [3, min(8, card["texts"]["longest"])])
        with torch.no_grad():
            scores = model(tokens, torch.full([3], tokens.shape[1]))
        print("scores of the labels", ", ".join(card["classes"]), "of three texts of noise:", tuple(scores.shape))
        return
    channels = card["normaliser"]["channels"]
    print("channels:", ", ".join(channel["name"] for channel in channels))
    windows = torch.randn(3, card["window"]["length"], len(channels))
    lengths = torch.full([3], card["window"]["length"])
    with torch.no_grad():
        if hasattr(model, "embed"):
            print("embedding of three windows of noise:", tuple(model.embed(windows, lengths).shape))
        else:
            print("logits of three windows of noise:", tuple(model(windows, lengths).shape))


if __name__ == "__main__":
    main()
