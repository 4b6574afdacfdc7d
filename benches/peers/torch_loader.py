"""The loading work of `firebox-benches` with PyTorch and NumPy: one JSON line for the case, which has a
process of its own so that its memory can be told.

Usage: torch_loader.py SUITE CASE FOLDER [ROWS], with SUITE and CASE one of
- stream 0 or 2: the arrays of clips/, `np.load(mmap_mode="r")` in a Dataset, through a DataLoader as
  tuned as its documentation has it (so many persistent workers, prefetch 4, pinned where there is a
  device to pin for);
- cold 0 or 2: the same with `np.load` of whole arrays, which reads them in one go, and one epoch from its
  beginning: whoever asks has emptied the page cache;
- gather: batches of R1's shape out of one array of ROWS windows in memory, by one index per batch
  (numpy-index, torch-index), and by a Dataset of samples through a DataLoader (per-sample-0 or -2);
- overlapping: batches of windows of 105 steps at every step, out of one array of ROWS windows (numpy-index), or
  of views into one array of their steps (numpy-view), by one index per batch;
- ingest csv or parquet: polars reading many.csv or many.parquet, and nothing else.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

RUNS, SEED = int(os.environ.get("RUNS", 7)), 1337


def case(name, run):
    """Prints the median time of a case. `run` gives rows, bytes and a number to compare."""
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        rows, size, check = run()
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    print(json.dumps({"case": name, "seconds": seconds[RUNS // 2], "best": seconds[0],
                      "rows": rows, "bytes": size, "check": float(check)}), flush=True)


def stream(workers, folder, cold=False):
    import torch

    class Clips(torch.utils.data.Dataset):
        def __init__(self):
            self.paths = sorted((folder / "clips").rglob("*.npy"))

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            if cold:
                return torch.from_numpy(np.load(self.paths[index])), index
            # The map is read-only, so the tensor needs a copy.
            clip = np.array(np.load(self.paths[index], mmap_mode="r"), dtype=np.float32)
            return torch.from_numpy(clip), index

    clips = Clips()
    pinned = torch.cuda.is_available()
    workers = int(workers)
    options = dict(prefetch_factor=4, persistent_workers=True) if workers else {}
    loader = torch.utils.data.DataLoader(
        clips, batch_size=16, shuffle=True, num_workers=workers, pin_memory=pinned, **options)

    def epoch():
        rows = size = check = 0
        for batch, indices in loader:
            rows += len(batch)
            size += batch.numel() * 4
            check += int(indices.sum())
        return rows, size, check

    if not cold:
        epoch()  # starts the workers
    case(f"{'cold' if cold else 'stream'}/f32-{workers}-workers", epoch)


def gather(name, count):
    import torch

    batch = 512
    data = np.random.default_rng(SEED).standard_normal((count, 105, 4), dtype=np.float32)
    if name == "numpy-f16":
        data = data.astype(np.float16)
    generator = np.random.default_rng(SEED)
    tensor = torch.from_numpy(data)

    def numpy_index():
        order = generator.permutation(count)
        for start in range(0, count, batch):
            torch.from_numpy(data[order[start:start + batch]])
        return count, data.nbytes, count

    def numpy_f16():
        order = generator.permutation(count)
        for start in range(0, count, batch):
            torch.from_numpy(data[order[start:start + batch]].astype(np.float32))
        return count, 2 * data.nbytes, count

    def torch_index():
        order = torch.randperm(count)
        for start in range(0, count, batch):
            tensor[order[start:start + batch]]
        return count, data.nbytes, count

    class Windows(torch.utils.data.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, index):
            return torch.from_numpy(data[index])

    def per_sample(workers):
        options = dict(prefetch_factor=4, persistent_workers=True) if workers else {}
        loader = torch.utils.data.DataLoader(
            Windows(), batch_size=batch, shuffle=True, num_workers=workers, **options)

        def epoch():
            rows = sum(len(batch) for batch in loader)
            return rows, data.nbytes, rows

        epoch()  # starts the workers
        return epoch

    if name.startswith("per-sample-"):
        case(f"gather/{name}", per_sample(int(name.rsplit("-")[-1])))
    else:
        ways = {"numpy-index": numpy_index, "numpy-f16": numpy_f16, "torch-index": torch_index}
        case(f"gather/{name}", ways[name])


def overlapping(name, count):
    import torch

    batch, length = 512, 105
    steps = np.random.default_rng(SEED).standard_normal((count + length - 1, 4), dtype=np.float32)
    # [window, channel, time], as views; as an array of their own, [window, time, channel].
    views = np.lib.stride_tricks.sliding_window_view(steps, length, axis=0).transpose(0, 2, 1)
    data = views if name == "numpy-view" else np.ascontiguousarray(views)
    generator = np.random.default_rng(SEED)

    def epoch():
        order = generator.permutation(count)
        for start in range(0, count, batch):
            torch.from_numpy(data[order[start:start + batch]])
        return count, count * length * 4 * 4, count

    case(f"overlapping/{name}", epoch)


def ingest(name, folder):
    import polars as pl

    read = {"csv": lambda p: pl.read_csv(p, try_parse_dates=True), "parquet": pl.read_parquet}[name]
    path = folder / f"many.{name}"

    def once():
        frame = read(path)
        return len(frame), path.stat().st_size, frame["close"].sum()

    case(f"many/read-{name}", once)


if __name__ == "__main__":
    suite, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if suite == "gather":
        gather(name, int(sys.argv[4]))
    elif suite == "overlapping":
        overlapping(name, int(sys.argv[4]))
    elif suite == "ingest":
        ingest(name, folder)
    else:
        stream(name, folder, cold=suite == "cold")
