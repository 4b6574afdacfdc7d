"""Measures the whole data path beside PyTorch, NumPy and polars on the same files and machine, one after
the other, and prints one table with the targets of the project.

Usage: python benches/data_path.py [FOLDER] [--program BINARY] [--firebox BINARY]
           [--only SUITE ...] [--bars N] [--many N] [--clips N] [--larger BYTES]

Needs Python with NumPy, polars and PyTorch. FOLDER (a temporary one by default) gets the files: 59,365
windows' worth of bars, 10 million bars, 256 clips of 2 MB, and for a while a set of `--larger` bytes.
`--larger 20000000000` is the claim of 20 GB in 2 GB of anonymous memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import compare

HERE = Path(__file__).resolve().parent
SUITES = ("data", "gather", "stream", "ingest", "larger", "start")


def measured(command, environment=None):
    """The cases that a program prints, and its peak resident memory, that of its workers included."""
    print("$", " ".join(map(str, command)), file=sys.stderr, flush=True)
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **(environment or {})})
    lines = [json.loads(line) for line in child.stdout if line.startswith("{")]
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"{command[0]} ended with {child.returncode}"
    return {line["case"]: line for line in lines}, usage.ru_maxrss / 1024


def make_clips(folder, count):
    """Arrays of reference system R4's shape: 500 frames of 1,024 features."""
    clips = folder / "clips"
    clips.mkdir(exist_ok=True)
    generator = np.random.default_rng(3)
    for index in range(count):
        path = clips / f"clip-{index:05}.npy"
        if not path.exists():
            np.save(path, generator.standard_normal((500, 1024), dtype=np.float32))


def make_many(folder, count):
    bars = folder / "making"
    if (folder / "many.csv").exists() and (folder / "many.parquet").exists():
        return
    bars.mkdir(exist_ok=True)
    compare.make_bars(bars, count)
    for name in ("csv", "parquet"):
        (bars / f"bars.{name}").rename(folder / f"many.{name}")
    bars.rmdir()


def start_up(folder, firebox):
    """From the command to the first training step, with everything before it in the cache."""
    settings = ["--set", "train.epochs=1", "--set", "window.stride=5", "--set", "evaluate.seeds=1",
                "--set", f"run.cache={folder / 'cache'}", "--set", "loader.batch_size=16"]
    pipeline = HERE.parent / "pipelines" / "pretrain.toml"
    seconds = []
    for number in range(4):
        runs = folder / f"runs-{number}"
        command = [firebox, "run", pipeline, "--log", "json", *settings,
                   "--set", f"run.directory={runs}"]
        start = time.perf_counter()
        child = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, text=True, cwd=HERE.parent)
        for line in child.stderr:
            if line.startswith("{") and json.loads(line).get("event") == "step":
                seconds.append(time.perf_counter() - start)
                break
        child.terminate()
        child.stderr.read()
        child.wait()
    # The first run fills the cache.
    return sorted(seconds[1:])[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--program", type=Path, help="firebox-benches, if it is built already")
    parser.add_argument("--firebox", type=Path, help="firebox, if it is built already")
    parser.add_argument("--only", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--bars", type=int, default=593_745)
    parser.add_argument("--many", type=int, default=10_000_000)
    parser.add_argument("--clips", type=int, default=256)
    parser.add_argument("--larger", type=int, default=2_000_000_000)
    given = parser.parse_args()
    rows = []

    def say(what, ours, theirs, ratio, aim, met):
        rows.append((what, ours, theirs, ratio, aim, "yes" if met else "**no**"))

    def rate(line):
        return line["rows"] / line["seconds"]

    def number(value, unit):
        return f"{compare.show(value)}{unit}"

    def faster(what, ours, theirs, aim, unit="/s"):
        ratio = rate(ours) / rate(theirs)
        say(what, number(rate(ours), unit), number(rate(theirs), unit), f"{ratio:.1f}",
            f"≥ {aim}", ratio >= aim)

    def memory(what, ours, theirs):
        say(f"peak resident memory, {what}", f"{ours:.0f} MiB", f"{theirs:.0f} MiB",
            f"{ours / theirs:.2f}", "< 1", ours < theirs)

    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        program = given.program or compare.build()
        torch = [sys.executable, HERE / "peers" / "torch_loader.py"]
        if "data" in given.only or "gather" in given.only:
            compare.make_bars(folder, given.bars)
            ours, resident = measured([program, "data", folder])
            copy, read = ours["memory/copy-to-batch"], ours["cache/read-f32"]
            share = rate(read) / rate(copy)
            say("cache read in order, f32, beside a copy of memory",
                number(read["bytes"] / read["seconds"], "B/s"),
                number(copy["bytes"] / copy["seconds"], "B/s"), f"{share:.2f}", "near 1", share > 0.8)
            augment = ours["augment/all-threads"]
            windows = augment["rows"] / 4
            seconds = augment["seconds"] * 59_365 / windows
            say("augmentation of 59,365 × 105 × 4, four versions", f"{seconds:.3f} s", "", "", "< 1 s",
                seconds < 1)
            stream = max((ours[f"load/epoch-{workers}-workers"] for workers in (0, 1, 2)), key=rate)
            for place in ("memory", "device"):
                ratio = rate(ours[f"load/epoch-{place}"]) / rate(ours["load/epoch-0-workers"])
                print(f"epoch from {place} beside streaming without workers: {ratio:.2f}")
            if "gather" in given.only:
                theirs, peer = measured([*torch, "gather", folder])
                faster("batches of R1's shape beside one NumPy index each", stream,
                       theirs["gather/numpy-index"], 3)
                faster("batches of R1's shape beside a loader of samples", stream,
                       max((theirs[f"gather/per-sample-{w}-workers"] for w in (0, 2)), key=rate), 20)
                memory("R1", resident, peer)
        if "stream" in given.only:
            make_clips(folder, given.clips)
            ours, resident = measured([program, "stream", folder])
            theirs, peer = measured([*torch, "stream", folder])
            best = max((theirs[f"stream/f32-{workers}-workers"] for workers in (0, 2)), key=rate)
            faster("clips of 2 MB, f32, 2 workers, beside a tuned DataLoader",
                   ours["stream/f32-2-workers"], best, 5)
            for name in ("f16", "bf16"):
                faster(f"the same stored as {name}", ours[f"stream/{name}-2-workers"], best, 5)
            line = ours["convert/f32"]
            print(f"conversion: {line['bytes'] / line['seconds'] / 1e6:.0f} MB/s")
            memory("clips", resident, peer)
        if "ingest" in given.only:
            make_many(folder, given.many)
            ours, resident = measured([program, "ingest", folder])
            theirs, peer = measured([*torch, "ingest", folder])
            for name in ("csv", "parquet"):
                read, hashed = ours[f"many/read-{name}"], ours[f"many/hash-{name}"]
                alone = theirs[f"many/read-{name}"]
                assert abs(read["check"] - alone["check"]) < 1e-6 * abs(alone["check"]), name
                for what, seconds in (("checks", read["seconds"]),
                                      ("checks and key", read["seconds"] + hashed["seconds"])):
                    ratio = seconds / alone["seconds"]
                    say(f"ingestion of {read['rows']:,} bars, {name}, {what}", f"{seconds:.2f} s",
                        f"{alone['seconds']:.2f} s", f"{ratio:.2f}", "≤ 1.3", ratio <= 1.3)
                print(f"{name}: with the cache written {ours[f'many/all-{name}']['seconds']:.2f} s, "
                      f"from the cache {ours[f'many/again-{name}']['seconds']:.2f} s")
            memory("ingestion", resident, peer)
        if "larger" in given.only:
            ours, _ = measured([program, "larger", given.larger, folder])
            for name, line in ours.items():
                share = line["anonymous_bytes"] / line["bytes"]
                say(f"{name}: {line['bytes'] / 1e9:.0f} GB, {line['bytes'] / line['seconds'] / 1e6:.0f} MB/s",
                    f"{line['anonymous_bytes'] / 1e6:.0f} MB anonymous", "", f"{share:.2f}", "≤ 0.1",
                    share <= 0.1)
        if "start" in given.only:
            firebox = given.firebox or compare.build("firebox")
            seconds = start_up(folder, firebox)
            say("from the command to the first step, warm cache", f"{seconds:.2f} s", "", "", "< 1 s",
                seconds < 1)
    print("\n| what | Firebox | peer | ratio | aim | met |\n|---|--:|--:|--:|--:|---|")
    for row in rows:
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
