"""Makes the scores of a forecast run again from the table of its test windows:

    python scored.py RUN

RUN is the folder of a run, with `test.parquet` and `scores.json`. Needs numpy and polars.
"""

import json
import pathlib
import sys

import numpy as np
import polars as pl

run = pathlib.Path(sys.argv[1])
table = pl.read_parquet(run / "test.parquet")
figures = json.loads((run / "scores.json").read_text())["results"]
outputs = figures["outputs"]


def columns(forecaster):
    """The columns of a forecaster; of the model one for each seed."""
    name = forecaster if isinstance(forecaster, str) else next(iter(forecaster))
    name = name.replace("-", "_")
    return [column for column in table.columns if column == name or column.startswith("model_") and name == "model"]


def errors(output, column):
    own = table.filter((pl.col("target") == output["target"]) & (pl.col("horizon") == output["horizon"]))
    assert len(own) == figures["windows"], (len(own), figures["windows"])
    return own["truth"].to_numpy(), own[column].to_numpy(), own["scale"].to_numpy()


checked = 0
for score in figures["scores"]:
    if score["output"] is None:
        continue
    output, found = outputs[score["output"]], {"mae": [], "rmse": [], "mase": [], "r2": []}
    names = columns(score["forecaster"])
    assert len(names) == len(score["runs"]), (names, score["runs"])
    for name in names:
        truth, said, scale = errors(output, name)
        off = np.abs(truth - said)
        found["mae"].append(off.mean())
        found["rmse"].append(np.sqrt((off**2).mean()))
        found["mase"].append((off / scale).mean())
        found["r2"].append(1 - ((truth - said) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())
    for name, values in found.items():
        expected = score[name]["value"]
        assert abs(np.mean(values) - expected) <= 1e-9 * max(1, abs(expected)), (score, name, values)
        checked += 1
ends = table.group_by("series", maintain_order=True).agg(pl.col("end").is_sorted()).get_column("end")
assert ends.all()
print(f"{checked} scores of {len(table)} rows agree")
