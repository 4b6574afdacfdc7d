"""The work of `firebox-benches` in polars and NumPy: one JSON line for each case.

The algorithms are those of Firebox (see crates/firebox-cache), vectorised over as many windows at
once as fit into the processor's cache, which is the fastest way that NumPy has. Polars uses all
cores; NumPy uses one.

Usage: numpy_data.py FOLDER [CASE], where FOLDER holds bars.csv and bars.parquet. CASE is one by itself, in a
process of its own so that its memory can be told: augment, or copy ROWS, which copies an array of so many windows
in memory batch by batch.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

LENGTH, STRIDE, VERSIONS, BATCH, SEED = 105, 10, 4, 512, 1337
RUNS = int(os.environ.get("RUNS", 7))
# Windows augmented at once: 512 × 105 × 4 × 4 bytes = 860 kB. Fastest of 128, 512, 2048 and all.
CHUNK = 512


def case(name, run, prepare=lambda: None):
    """Prints the median time of a case. `run` gives rows, bytes and a number to compare."""
    seconds = []
    for _ in range(RUNS):
        given = prepare()
        start = time.perf_counter()
        rows, size, check = run(given)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"case": name, "seconds": statistics.median(seconds), "best": min(seconds),
                      "rows": rows, "bytes": size, "check": float(check)}), flush=True)


def ingest(folder):
    """Reads bars, and looks for the defects that Firebox looks for."""
    def run(path, read):
        frame = read(path)
        moments = frame["time"].to_physical().to_numpy()
        values = frame.select("open", "high", "low", "close").to_numpy(order="c")
        steps = np.diff(moments)
        assert (steps > 0).all() and (steps == np.median(steps)).all(), "unsorted, duplicates, gaps"
        assert np.isfinite(values).all() and (np.ptp(values, axis=0) > 0).all()
        assert (values[:, 1] >= values.max(axis=1)).all(), "high"
        assert (values[:, 2] <= values.min(axis=1)).all(), "low"
        # Kept for later runs, as Firebox keeps it.
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            np.save(file, values)
            os.fsync(file.fileno())
        return values

    csv, parquet = folder / "bars.csv", folder / "bars.parquet"
    readers = {csv: lambda p: pl.read_csv(p, try_parse_dates=True), parquet: pl.read_parquet}
    kept = None
    for path, read in readers.items():
        def once(_):
            nonlocal kept
            kept = run(path, read)
            return len(kept), path.stat().st_size, kept[:, 3].sum()
        case(f"ingest/{path.suffix[1:]}", once)
    return kept


def normalise(values):
    """Windows relative to their first close, in units of the deviation of the whole window."""
    views = np.lib.stride_tricks.sliding_window_view(values, LENGTH, axis=0)[::STRIDE]
    windows = views.transpose(0, 2, 1)
    out = np.empty(windows.shape, np.float32)
    for start in range(0, len(windows), CHUNK):
        part = windows[start:start + CHUNK]
        close = part[:, :, 3]
        scale = np.diff(close, axis=1).std(axis=1) * np.sqrt(LENGTH - 1)
        out[start:start + CHUNK] = (part - close[:, :1, None]) / scale[:, None, None]
    return out


def restore_order(x):
    np.max(x, axis=2, out=x[:, :, 1])
    np.min(x, axis=2, out=x[:, :, 2])


def warp(x, generator):
    n, steps, _ = x.shape
    knots = 6
    speeds = np.maximum(1 + 0.12 * generator.standard_normal((n, knots)), 0.1)
    areas = np.zeros((n, knots))
    np.cumsum(0.5 * (speeds[:, 1:] + speeds[:, :-1]), axis=1, out=areas[:, 1:])
    at = np.arange(steps) * ((knots - 1) / (steps - 1))
    piece = np.minimum(at.astype(int), knots - 2)
    within = at - piece
    slopes = np.diff(speeds, axis=1)
    times = areas[:, piece] + within * (speeds[:, piece] + 0.5 * slopes[:, piece] * within)
    times *= (steps - 1) / areas[:, -1:]
    np.clip(times, 0, steps - 1, out=times)
    before = np.minimum(times.astype(np.int64), steps - 2)
    share = (times - before).astype(np.float32)[:, :, None]
    flat = x.reshape(n * steps, -1)
    rows = before + np.arange(n)[:, None] * steps
    a, b = flat[rows], flat[rows + 1]
    b -= a
    b *= share
    b += a
    return b


def augment(x, generator, out):
    """One version of each window of `x`, with a coin for each window and augmentation."""
    out[:] = x
    coins = generator.random((4, len(x)))
    if (hit := np.flatnonzero(coins[0] < 0.5)).size:
        part = out[hit]
        sigma = (0.05 * part.std(axis=1, keepdims=True)).astype(np.float32)
        noise = generator.standard_normal(part.shape, dtype=np.float32)
        noise *= sigma
        part += noise
        restore_order(part)
        out[hit] = part
    if (hit := np.flatnonzero(coins[1] < 0.3)).size:
        part = out[hit]
        part *= (1 + 0.1 * generator.standard_normal((len(hit), 1, 1))).astype(np.float32)
        restore_order(part)
        out[hit] = part
    if (hit := np.flatnonzero(coins[2] < 0.5)).size:
        part = warp(out[hit], generator)
        restore_order(part)
        out[hit] = part
    if (hit := np.flatnonzero(coins[3] < 0.3)).size:
        part = out[hit]
        middle = 0.5 * (part[:, :, 1:2] + part[:, :, 2:3])
        part -= middle
        part *= generator.uniform(0.85, 1.15, (len(hit), 1, 1)).astype(np.float32)
        part += middle
        restore_order(part)
        out[hit] = part


def augmentation(windows):
    versions = np.empty((VERSIONS, *windows.shape), np.float32)
    generator = np.random.default_rng(SEED)

    def run(_):
        for start in range(0, len(windows), CHUNK):
            part = windows[start:start + CHUNK]
            for version in versions:
                augment(part, generator, version[start:start + CHUNK])
        return len(windows) * VERSIONS, versions.nbytes, versions.size

    case("augment/one-thread", run)
    # In parts: copies of everything would be part of the peak memory.
    parts = [part for version in versions for part in np.array_split(version, max(1, len(version) // CHUNK))]
    energy = sum(np.square(part, dtype=np.float64).sum() for part in parts) / VERSIONS
    expected = sum(np.square(window, dtype=np.float64).sum() for window in windows)
    assert abs(energy / expected - 1) < 0.05, (energy, expected)
    assert all((part[..., 1] >= part.max(axis=-1)).all() for part in parts)
    return versions


def copy(count):
    """What NumPy makes of the memory's bandwidth: batches of one array, in their order, into a buffer."""
    everything = np.random.default_rng(SEED).standard_normal((count, LENGTH, 4), dtype=np.float32)
    buffer = np.empty((BATCH, LENGTH, 4), np.float32)

    def run(_):
        for start in range(0, count, BATCH):
            part = everything[start:start + BATCH]
            buffer[:len(part)] = part
        return count, everything.nbytes, count

    case("memory/copy-to-batch", run)


def cache(windows, versions, folder):
    everything = np.concatenate([windows[None], versions]).transpose(1, 0, 2, 3)
    everything = np.ascontiguousarray(everything.reshape(-1, LENGTH, 4))
    generator = np.random.default_rng(SEED)
    for dtype, name in [(np.float32, "f32"), (np.float16, "f16")]:
        path = folder / f"augmented-{name}.npy"

        def make(_):
            # Augments, writes and waits for the disk, as `Store::augmented` does.
            out = np.empty_like(everything).reshape(len(windows), VERSIONS + 1, LENGTH, 4)
            for start in range(0, len(windows), CHUNK):
                part = windows[start:start + CHUNK]
                out[start:start + CHUNK, 0] = part
                for version in range(VERSIONS):
                    made = np.empty_like(part)
                    augment(part, generator, made)
                    out[start:start + CHUNK, version + 1] = made
            with open(path, "wb") as file:
                np.save(file, out.astype(dtype, copy=False))
                os.fsync(file.fileno())
            return len(everything), everything.size * np.dtype(dtype).itemsize, len(everything)

        case(f"cache/make-{name}", make)
        order = generator.permutation(len(everything))
        size = everything.size * np.dtype(dtype).itemsize
        stored = np.load(path, mmap_mode="r").reshape(-1, LENGTH, 4)
        buffer = np.empty((BATCH, LENGTH, 4), np.float32)

        def read(_):
            for start in range(0, len(stored), BATCH):
                part = stored[start:start + BATCH]
                buffer[:len(part)] = part
            return len(stored), size, len(stored)

        def read_shuffled(_):
            for start in range(0, len(stored), BATCH):
                rows = order[start:start + BATCH]
                buffer[:len(rows)] = stored[rows]
            return len(stored), size, len(stored)

        case(f"cache/read-{name}", read)
        case(f"cache/read-shuffled-{name}", read_shuffled)
        del stored
        path.unlink()


def main():
    folder, chosen = Path(sys.argv[1]), sys.argv[2:]
    if chosen[:1] == ["copy"]:
        return copy(int(chosen[1]))
    if chosen == ["augment"]:
        bars = pl.read_parquet(folder / "bars.parquet", columns=["open", "high", "low", "close"])
        return augmentation(normalise(bars.to_numpy(order="c")))
    values = ingest(folder)

    def split(_):
        views = np.lib.stride_tricks.sliding_window_view(values, LENGTH, axis=0)[::STRIDE]
        return len(views), len(views) * 16, len(views)

    case("window/split", split)
    windows = normalise(values)
    case("window/normalise", lambda _: (len(made := normalise(values)), made.nbytes,
                                        made.sum(dtype=np.float64)))
    versions = augmentation(windows)
    cache(windows, versions, folder)


if __name__ == "__main__":
    main()
