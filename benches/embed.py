#!/usr/bin/env python3
"""Time `firebox embed` beside PyTorch, from a Parquet file to a Parquet file, in turn, and print windows per second.

    python benches/embed.py target/release/firebox
    python benches/embed.py target/release/firebox --bars 60000 --stride 4 --rounds 3

Makes a folder with bars and the pipeline of reference system R1 (windows of 105 steps, a BiLSTM of 2 layers × 2
directions × 128), trains it for one step, exports it, and embeds all windows with both; `peers/torch_embed.py` is
the other side. Both times are of the work alone, without the start of the program. The vectors are compared first.
Run it with a Python that has numpy, polars, safetensors and torch, on a quiet machine.
"""
import argparse, json, pathlib, re, statistics, subprocess, sys, tempfile

import numpy as np
import polars as pl

PIPELINE = """
data = { path = "train.parquet" }
window = { length = 105, stride = 20 }
augment = { versions = 0 }
train = { max_steps = 1 }
evaluate = { seeds = 1, resamples = 100 }
"""


def bars(path, count, seed):
    draws = np.random.default_rng(seed)
    close = 1000 + draws.normal(size=count).cumsum() * 0.5
    opens = np.concatenate([[1000.0], close[:-1]])
    spread = np.abs(draws.normal(size=(2, count))) * 0.2
    start = np.datetime64("2024-01-01", "us")
    table = {
        "time": start + np.arange(count) * np.timedelta64(60_000_000, "us"),
        "open": opens,
        "high": np.maximum(opens, close) + spread[0],
        "low": np.minimum(opens, close) - spread[1],
        "close": close,
    }
    pl.DataFrame(table).write_parquet(path)


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("firebox", type=pathlib.Path)
    parser.add_argument("--bars", type=int, default=40_000)
    parser.add_argument("--stride", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    firebox, peer = a.firebox.resolve(), pathlib.Path(__file__).resolve().parent / "peers/torch_embed.py"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        bars(folder / "train.parquet", 6000, 1)
        bars(folder / "bars.parquet", a.bars, 2)
        (folder / "p.toml").write_text(PIPELINE)
        run([firebox, "run", "p.toml"], folder)
        [name] = [path.name for path in (folder / "runs").iterdir()]
        run([firebox, "export", name, "--format", "torch", "--output", "model"], folder)
        sizes = ["--stride", str(a.stride), "--batch", str(a.batch)]
        ours = [firebox, "embed", "model", "bars.parquet", "--output", "ours.parquet", "--force", *sizes]
        theirs = [sys.executable, peer, "model", "bars.parquet", "theirs.parquet", *sizes]
        rates = {"firebox": [], "PyTorch": []}
        for _ in range(a.rounds):
            said = run(ours, folder)
            windows, seconds, rate = re.search(r"(\d+) windows of .* in ([\d.]+) s \((\d+) windows/s\)", said).groups()
            rates["firebox"].append(float(rate))
            print(said.splitlines()[0], flush=True)
            said = run(theirs, folder)
            result = json.loads(said)
            assert result["windows"] == int(windows), (result, windows)
            rates["PyTorch"].append(result["windows"] / result["seconds"])
            print(said.strip(), flush=True)
        tables = [pl.read_parquet(folder / f"{name}.parquet") for name in ("ours", "theirs")]
        assert tables[0]["start"].dt.replace_time_zone(None).equals(tables[1]["start"])
        vectors = [np.stack(table["embedding"].to_list()) for table in tables]
        error = np.abs(vectors[0] - vectors[1]).max()
        assert error < 1e-4, f"the vectors differ by {error:.1e}"
        middle = {name: statistics.median(values) for name, values in rates.items()}
        print(f"\nthe vectors agree to {error:.1e}")
        print("| | windows/s, median | all rounds |\n|---|---|---|")
        for name, values in rates.items():
            print(f"| {name} | {middle[name]:.0f} | {', '.join(f'{value:.0f}' for value in values)} |")
        print(f"Firebox over PyTorch: {middle['firebox'] / middle['PyTorch']:.2f}")


if __name__ == "__main__":
    main()
