#!/usr/bin/env python3
"""Embed the windows of a table in PyTorch, as a careful user would write it: polars in and out, windows as views,
one vectorised normalisation a batch, inference mode. What `firebox embed` does, for `benches/embed.py`.

    python torch_embed.py MODEL BARS.parquet OUT.parquet --stride 4

MODEL is a folder of `firebox export --format torch` whose normalisation is `window-relative` over four prices, as
for bars. Prints one line of JSON: windows, seconds and peak memory.
"""
import argparse, json, pathlib, resource, sys, time

import numpy as np
import polars as pl
import torch


def normalised(windows, close, fallback):
    """[batch, time, channel] float64 → float32, by the close of each window: its first value and the deviation of its
    changes times the root of their number."""
    level = windows[:, :, close]
    changes = np.diff(level)
    scale = changes.std(1)
    scale = np.where(scale > np.abs(changes.mean(1)) * 1e-12, scale * np.sqrt(changes.shape[1]), fallback)
    return ((windows - level[:, :1, None]) * (1 / scale)[:, None, None]).astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("bars")
    parser.add_argument("output")
    parser.add_argument("--stride", type=int, required=True)
    parser.add_argument("--batch", type=int, default=256)
    a = parser.parse_args()
    sys.path.insert(0, a.model)
    import firebox_models

    model, card = firebox_models.load(a.model)
    normaliser = card["normaliser"]
    assert normaliser["kind"] == "window-relative", normaliser["kind"]
    names = [channel["name"] for channel in normaliser["channels"]]
    close, fallback = names.index("close"), normaliser["fitted"][0]["scale"]
    length = card["window"]["length"]
    started = time.perf_counter()
    bars = pl.read_parquet(a.bars)
    raw, times = bars.select(names).to_numpy(), bars["time"]
    views = np.lib.stride_tricks.sliding_window_view(raw, length, axis=0)[:: a.stride].transpose(0, 2, 1)
    vectors = []
    with torch.inference_mode():
        for first in range(0, len(views), a.batch):
            x = torch.from_numpy(normalised(views[first : first + a.batch], close, fallback))
            out, _ = model.lstm(x)
            encoded = model.norm(out)
            vectors.append(torch.cat([encoded.mean(1), encoded.amax(1)], 1))
    vectors = torch.cat(vectors).numpy()
    starts = np.arange(len(views)) * a.stride
    lists = pl.Series("embedding", vectors, dtype=pl.Array(pl.Float32, vectors.shape[1])).cast(pl.List(pl.Float32))
    table = pl.DataFrame(
        {
            "series": pl.repeat(pathlib.Path(a.bars).stem, len(views), eager=True),
            "start": times.gather(starts),
            "end": times.gather(starts + length - 1),
            "embedding": lists,
        }
    )
    table.write_parquet(a.output, compression="uncompressed")
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"windows": len(views), "seconds": seconds, "peak_mib": peak}))


if __name__ == "__main__":
    main()
