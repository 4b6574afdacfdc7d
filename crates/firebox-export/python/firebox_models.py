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
        return self.norm(run_lstm(self.lstm, x * valid, lengths)) * valid

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
        x = (x * valid_steps(lengths, x.shape[1])).transpose(1, 2)
        for block in self.blocks:
            x = self.after_convolution(F.max_pool1d(F.relu(block["norm"](block["conv"](x))), 2))
        x, lengths = x.transpose(1, 2), lengths // 2 ** len(self.blocks)
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
        x = self.input_norm(self.input(x * valid)) + self.position[:, : x.shape[1]]
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
        return self.encoder(self.embed(tokens) + self.position[:, : tokens.shape[1]], lengths)

    def forward(self, tokens, lengths):
        """[batch, label]"""
        return self.head(self.encode(tokens, lengths)[:, 0])


def own_scale(values):
    """The (population) standard deviation; zero for a constant, of which rounding leaves some."""
    if len(values) == 0:
        return 0.0
    scale = values.std()
    return scale if scale > abs(values.mean()) * 1e-12 else 0.0


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
            level = window[:, roles.index("close") if role != "other" and "close" in roles else channel]
            changes = np.diff(level)
            center, scale = level[0], own_scale(changes) * np.sqrt(len(changes)) or scale
        else:
            assert normaliser["kind"] in ("none", "standard", "robust"), normaliser["kind"]
        out[:, channel] = (window[:, channel] - center) * (1 / scale)
    return out.astype(np.float32)


def batch(windows):
    """Windows [time, channel] of any lengths as one tensor [batch, time, channel] with zeros, and their lengths."""
    lengths = torch.tensor([len(window) for window in windows])
    out = torch.zeros(len(windows), int(lengths.max()), windows[0].shape[1])
    for row, window in zip(out, windows):
        row[: len(window)] = torch.as_tensor(window)
    return out, lengths


MODELS = {"bilstm-mae": BiLstmMae, "cnn-bilstm": CnnBiLstm, "transformer": Transformer, "mlp": Mlp, "bert": Bert}


def build(architecture):
    """The model that the `architecture` of a card names, with fresh weights."""
    [(name, sizes)] = architecture.items()
    config = sizes.pop("config")
    return MODELS[name](**sizes, **config)


def load(folder):
    """The model of a folder in evaluation, and its card."""
    folder = pathlib.Path(folder)
    card = json.loads((folder / "model.json").read_text())
    model = build(json.loads(json.dumps(card["architecture"])))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval(), card


def main():
    model, card = load(sys.argv[1])
    print(model)
    print("channels:", ", ".join(channel["name"] for channel in card["channels"]))
    windows = torch.randn(3, card["window"]["length"], len(card["channels"]))
    lengths = torch.full([3], card["window"]["length"])
    with torch.no_grad():
        print("embedding of three windows of noise:", tuple(model.embed(windows, lengths).shape))


if __name__ == "__main__":
    main()
