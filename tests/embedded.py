"""Embeds the bars of a folder in PyTorch and onnxruntime, from the raw file on, and compares with what
`firebox embed` wrote:

    python embedded.py FOLDER

FOLDER has `bars.csv`, `vectors.parquet`, `wide.parquet`, `encoder.onnx`, and `model/` as `firebox export --format
torch` writes it. `tests/export.rs` makes it. Needs numpy, onnxruntime, polars, safetensors and torch.
"""

import pathlib
import sys

import numpy as np
import onnxruntime
import polars as pl
import torch

folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder / "model"))
import firebox_models  # noqa: E402

model, card = firebox_models.load(folder / "model")
bars = pl.read_csv(folder / "bars.csv", try_parse_dates=True)
raw = bars.select([channel["name"] for channel in card["channels"]]).to_numpy()
length, stride = card["window"]["length"], card["window"]["stride"]
starts = range(0, len(raw) - length + 1, stride)
windows = [firebox_models.normalise(raw[start : start + length], card) for start in starts]
x, lengths = firebox_models.batch(windows)
with torch.no_grad():
    by_torch = model.embed(x, lengths).numpy()
session = onnxruntime.InferenceSession(folder / "encoder.onnx", providers=["CPUExecutionProvider"])
by_onnx = session.run(["embedding"], {"input": x.numpy(), "lengths": lengths.numpy()})[0]

found = pl.read_parquet(folder / "vectors.parquet")
assert found.columns == ["series", "start", "end", "embedding"], found.columns
times = bars["time"].dt.replace_time_zone("UTC")
assert found["start"].to_list() == [times[start] for start in starts]
assert found["end"].to_list() == [times[start + length - 1] for start in starts]
assert set(found["series"]) == {"bars"}
vectors = np.stack(found["embedding"].to_list())
wide = pl.read_parquet(folder / "wide.parquet").select(pl.col("^embedding_.*$")).to_numpy()
assert (wide == vectors).all()
for name, other in [("PyTorch", by_torch), ("onnxruntime", by_onnx)]:
    error = np.abs(vectors - other).max()
    assert vectors.shape == other.shape and error < 1e-4, f"{name}: {vectors.shape}, {other.shape}, {error:.1e}"
    print(f"{name}: {error:.1e}")
print(f"{len(vectors)} windows agree")
