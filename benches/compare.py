"""Runs Firebox's benchmark of the way from files to batches, and the same work in polars and NumPy
on the same files and machine, one after the other, and prints both side by side.

Usage: python benches/compare.py [FOLDER] [--bars N] [--program BINARY]

Needs Python with NumPy and polars. FOLDER (a temporary one by default) gets `bars.csv` and
`bars.parquet`, a seeded random walk of one-minute bars, unless they are there. Where a case gives a
number that does not depend on random draws, both programs must give the same one.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).resolve().parent
# Cases whose numbers depend on the data alone.
COMPARABLE = ("ingest/", "window/", "cache/")


def make_bars(folder, count):
    """A random walk whose volatility changes, with each bar's high and low around it."""
    if (folder / "bars.csv").exists() and (folder / "bars.parquet").exists():
        return
    generator = np.random.default_rng(7)
    changes = generator.standard_normal(count) * np.repeat(
        np.exp(0.5 * generator.standard_normal(count // 500 + 1)), 500)[:count]
    close = 4000 + np.cumsum(changes) * 0.25
    opened = np.concatenate([[4000.0], close[:-1]])
    reach = np.abs(generator.standard_normal((2, count))) * 0.25
    start = datetime(2020, 1, 1)
    times = pl.datetime_range(start, start + timedelta(minutes=count - 1), "1m", eager=True)
    prices = {"open": opened, "high": np.maximum(opened, close) + reach[0],
              "low": np.minimum(opened, close) - reach[1], "close": close}
    frame = pl.DataFrame({"time": times, **{name: column.round(4) for name, column in prices.items()}})
    frame.write_csv(folder / "bars.csv", datetime_format="%Y-%m-%dT%H:%M:%S")
    frame.write_parquet(folder / "bars.parquet")


def lines_of(command):
    print("$", " ".join(map(str, command)), file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}


def build(name="firebox-benches"):
    # A relative path is meant from here, and cargo runs elsewhere.
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")).absolute()
    command = ["cargo", "build", "--quiet", "--release", "--workspace", "--bin", name]
    subprocess.run(command, cwd=HERE.parent, env=os.environ | {"CARGO_TARGET_DIR": str(target)}, check=True)
    return target / "release" / name


def show(number):
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.2f} "


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--bars", type=int, default=500_000)
    parser.add_argument("--program", type=Path, help="firebox-benches, if it is built already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        make_bars(folder, arguments.bars)
        program = arguments.program or build()
        ours = lines_of([program, folder])
        theirs = lines_of([sys.executable, HERE / "peers" / "numpy_data.py", folder])
    for name in ours.keys() & theirs.keys():
        a, b = ours[name]["check"], theirs[name]["check"]
        if name.startswith(COMPARABLE):
            assert abs(a - b) <= 1e-5 * max(1, abs(a)), f"{name}: {a} and {b}"
        assert ours[name]["rows"] == theirs[name]["rows"], name
    print(f"{platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}, "
          f"polars {pl.__version__}\n")
    print("| case | Firebox rows/s | Firebox bytes/s | peer rows/s | peer bytes/s | ratio |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, line in ours.items():
        # All threads of ours beside the one that NumPy has.
        peer = theirs.get(name.replace("all-threads", "one-thread"))
        row = [f"{show(line[unit] / line['seconds'])}{mark}"
               for unit, mark in (("rows", ""), ("bytes", "B"))]
        if peer:
            row += [f"{show(peer[unit] / peer['seconds'])}{mark}"
                    for unit, mark in (("rows", ""), ("bytes", "B"))]
            row.append(f"{line['rows'] / line['seconds'] / (peer['rows'] / peer['seconds']):.1f}")
        else:
            row += ["", "", ""]
        print("|", " | ".join([f"`{name}`", *row]), "|")


if __name__ == "__main__":
    main()
