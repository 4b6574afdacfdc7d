"""Compares forecasts that `firebox predict` wrote with those of the exported model in PyTorch:

    python forecasts.py FOLDER

FOLDER has `model/` (`firebox export --format torch`), the raw `demand.csv`, and `forecasts.parquet` of it. Needs
numpy, polars, torch and safetensors.
"""

import pathlib
import sys

import numpy as np
import polars as pl
import torch

folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder / "model"))
import firebox_models  # noqa: E402

LIMIT = 1e-5


def main():
    model, card = firebox_models.load(folder / "model")
    names = [channel["name"] for channel in card["channels"]]
    data = pl.read_csv(folder / "demand.csv", try_parse_dates=True)
    time_column = next(name for name, kind in data.schema.items() if kind.is_temporal())
    series_column = next(name for name in data.columns if name not in names and name != time_column)
    data = data.with_columns(pl.col(time_column).dt.replace_time_zone(None).cast(pl.Datetime("us")).cast(pl.Int64))
    found = pl.read_parquet(folder / "forecasts.parquet")
    outputs = [name for name in found.columns if name not in ("series", "start", "end")]
    length, worst = card["window"]["length"], 0
    for name, own in found.group_by("series", maintain_order=True):
        part = data.filter(pl.col(series_column) == name[0]).sort(time_column)
        times, values = part[time_column].to_numpy(), part.select(names).to_numpy().astype(np.float64)
        starts = np.searchsorted(times, own["start"].dt.replace_time_zone(None).cast(pl.Int64).to_numpy())
        windows = [values[start : start + length] for start in starts]
        ends = [int(times[start + length - 1]) for start in starts]
        shown = [firebox_models.normalise(firebox_models.of_channels(window, card), card) for window in windows]
        known = np.stack([firebox_models.statics(window, end, card) for window, end in zip(windows, ends)])
        with torch.no_grad():
            made = model(*firebox_models.batch(shown), torch.from_numpy(known)).numpy()
        expected = np.stack([firebox_models.restore(row, window, card).ravel() for row, window in zip(made, windows)])
        given = own.select(outputs).to_numpy()
        assert given.dtype == np.float64 and given.shape == expected.shape
        worst = max(worst, np.abs(given - expected).max() / np.abs(expected).max())
    assert worst < LIMIT, f"differs by {worst:.1e}"
    print(f"{len(found)} windows of {', '.join(outputs)} agree")


main()
