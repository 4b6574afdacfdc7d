"""Writes the golden files of the parity test: R1's masked autoencoder in PyTorch, in float64.

    python golden.py            the committed files in golden/
    python golden.py --full DIR one file at full width (hidden 128, 105 steps), which is not committed

Every random draw (masks, dropout) is made here by an independent implementation of the
counter-based generator of firebox-core and saved with the results. Needs PyTorch and NumPy.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 on arrays of counters (uint64 holding 32 bits each)."""
    c, k = [np.asarray(x, np.uint64) for x in counter], list(key)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low, shift = np.uint64(M32), np.uint64(32)
        c = [
            (b >> shift) ^ c[1] ^ np.uint64(k[0]),
            b & low,
            (a >> shift) ^ c[3] ^ np.uint64(k[1]),
            a & low,
        ]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


class Stream:
    def __init__(self, key):
        self.key = key

    @staticmethod
    def new(seed, purpose):
        digest = 0xCBF29CE484222325
        for byte in purpose.encode():
            digest = (digest ^ byte) * 0x100000001B3 & M64
        return Stream([seed & M32, seed >> 32]).substream(digest)

    def substream(self, index):
        a, b, _, _ = philox([index & M32, index >> 32, 0x5EED0001, 0xF1EB0C5E], self.key)
        return Stream([int(a), int(b)])

    def words(self, count):
        blocks = np.arange((count + 3) // 4, dtype=np.uint64)
        zero = np.zeros_like(blocks)
        return np.stack(philox([blocks, zero, zero, zero], self.key), 1).reshape(-1)[:count]

    def keep(self, shape, probability):
        uniform = (self.words(int(np.prod(shape))) >> np.uint64(8)).astype(np.float64) / 2**24
        return (uniform >= probability).reshape(shape)

    def draws(self):
        return Draws(self)


class Draws:
    def __init__(self, stream):
        self.words, self.next = [int(w) for w in stream.words(4096)], 0

    def word64(self):
        high, low = self.words[self.next : self.next + 2]
        self.next += 2
        return high << 32 | low

    def chance(self, p):
        return (self.word64() >> 11) / 2**53 < p

    def below(self, bound):
        threshold = ((1 << 64) - bound) % bound
        while True:
            product = self.word64() * bound
            if product & M64 >= threshold:
                return product >> 64


def sample_mask(rule, length, draws):
    mask = np.zeros(length, bool)
    part = lambda share, of: min(max(int(share * of), 1), of)
    if rule == "random":
        for step in range(length):
            mask[step] = draws.chance(0.15)
        if not mask.any():
            mask[draws.below(length)] = True
    elif rule == "block":
        size = part(0.15, length)
        start = draws.below(length - size + 1)
        mask[start : start + size] = True
    else:
        patches = [slice(at, min(at + 7, length)) for at in range(0, length, 7)]
        for place in range(part(0.15, len(patches))):
            chosen = place + draws.below(len(patches) - place)
            patches[place], patches[chosen] = patches[chosen], patches[place]
            mask[patches[place]] = True
    return mask


class Model(torch.nn.Module):
    def __init__(self, channels, hidden, decoder):
        super().__init__()
        self.mask_token = torch.nn.Parameter(torch.randn(channels) * 0.5)
        # Layer by layer, so that dropout between them can be given.
        lstm = lambda width: torch.nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.layers = torch.nn.ModuleList([lstm(channels), lstm(2 * hidden)])
        self.norm = torch.nn.LayerNorm(2 * hidden, eps=1e-5)
        self.hidden = torch.nn.Linear(2 * hidden, decoder)
        self.output = torch.nn.Linear(decoder, channels)

    def forward(self, x, mask, lengths, keep):
        x = torch.where(mask[..., None], self.mask_token.expand_as(x), x)
        for index, layer in enumerate(self.layers):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])
            if index == 0 and keep is not None:
                x = x * keep[0] / 0.8
        valid = torch.arange(x.shape[1])[None, :] < lengths[:, None]
        latent = self.norm(x) * valid[..., None]
        hidden = torch.relu(self.hidden(latent))
        if keep is not None:
            hidden = hidden * keep[1] / 0.8
        return latent, self.output(hidden), valid

    def named(self):
        rename = {"hidden": "decoder.hidden", "output": "decoder.output"}
        for name, parameter in self.named_parameters():
            parts = name.split(".")
            if parts[0] == "layers":
                yield "lstm." + parts[2].replace("_l0", f"_l{parts[1]}"), parameter
            else:
                yield ".".join([rename.get(parts[0], parts[0]), *parts[1:]]), parameter


def loss_of(model, x, mask, lengths, keep):
    latent, output, valid = model(x, mask, lengths, keep)
    hit = mask & valid
    reconstruction = ((output - x)[hit] ** 2).mean()
    spread = torch.sqrt(torch.var(latent[valid], dim=0) + 1e-8).mean()
    return latent, output, reconstruction, spread, reconstruction + 0.1 * torch.relu(1 - spread)


def write_safetensors(path, tensors):
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8", np.dtype(np.int64): "I64"}
    header, chunks, offset = {}, [], 0
    for name, array in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        data = np.ascontiguousarray(array).tobytes()
        end = offset + len(data)
        kind = kinds[array.dtype]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [offset, end]}
        chunks.append(data)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))
    print(f"{path}: {path.stat().st_size} bytes")


def case(path, rule, channels, hidden, decoder, time, lengths):
    torch.manual_seed(1)
    model = Model(channels, hidden, decoder).double()
    lengths = torch.tensor(lengths)
    batch = len(lengths)
    with torch.no_grad():
        for _, parameter in model.named():
            # Values that float32 holds exactly, and norms that are not the identity.
            noise = 0.1 * torch.randn_like(parameter) if parameter.dim() == 1 else 0
            parameter.copy_((parameter + noise).float().double())
    x = torch.randn(batch, time, channels).double() * 1.5
    x *= (torch.arange(time)[None, :] < lengths[:, None])[..., None]
    indices = [11 * i + 3 for i in range(batch)]
    masks = Stream.new(7, "masks").substream(3)
    mask = np.zeros((batch, time), bool)
    for row, (index, length) in enumerate(zip(indices, lengths.tolist())):
        mask[row, :length] = sample_mask(rule, length, masks.substream(index).draws())
    dropout = Stream.new(7, "dropout").substream(3)
    keep = [
        dropout.substream(0).substream(0).keep((batch, time, 2 * hidden), 0.2),
        dropout.substream(1).keep((batch, time, decoder), 0.2),
    ]
    torch_keep, torch_mask = [torch.tensor(k) for k in keep], torch.tensor(mask)
    latent, output, reconstruction, spread, loss = loss_of(model, x, torch_mask, lengths, torch_keep)
    loss.backward()
    with torch.no_grad():
        none = torch.zeros_like(torch_mask)
        _, shown, _, _, plain_loss = loss_of(model, x, torch_mask, lengths, None)
        encoded, _, valid = model(x, none, lengths, None)
        mean = encoded.sum(1) / lengths[:, None]
        top = encoded.masked_fill(~valid[..., None], -1e30).max(1).values
    f32 = lambda tensor: tensor.detach().numpy().astype(np.float32)
    scalars = torch.stack([reconstruction, spread, loss, plain_loss])
    tensors = {
        "inputs": f32(x),
        "lengths": lengths.numpy(),
        "indices": np.array(indices, np.int64),
        "mask": mask.astype(np.uint8),
        "keep.lstm": np.packbits(keep[0]),
        "keep.decoder": np.packbits(keep[1]),
        "latent": f32(latent),
        "output": f32(output),
        "evaluated": f32(shown),
        "embedding": f32(torch.cat([mean, top], 1)),
        "scalars": f32(scalars),
    }
    for name, parameter in model.named():
        tensors["param." + name] = f32(parameter)
        tensors["grad." + name] = f32(parameter.grad)
    write_safetensors(path, tensors)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", type=pathlib.Path)
    full = parser.parse_args().full
    if full:
        case(full / "patch.safetensors", "patch", 4, 128, 128, 105, [105, 105, 64, 105, 7])
    else:
        folder = pathlib.Path(__file__).parent / "golden"
        for rule in ["patch", "block", "random"]:
            path = folder / f"{rule}.safetensors"
            case(path, rule, 3, 12, 10, 21, [21, 14, 1, 9, 20])
