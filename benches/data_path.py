"""Measures the whole data path beside PyTorch, NumPy and polars on the same files and machine, one after
the other, and prints one table with the targets of the project.

Usage: python benches/data_path.py [FOLDER] [--program BINARY] [--firebox BINARY]
           [--only SUITE ...] [--bars N] [--many N] [--clips N] [--larger BYTES] [--blocks N]

Needs Python with NumPy, polars and PyTorch. FOLDER (a temporary one by default) gets the files: 59,365
windows' worth of bars, 10 million bars, 256 clips of 2 MB, and for a while a set of `--larger` bytes.
`--larger 20000000000` is the claim of 20 GB in 2 GB of anonymous memory.

Each row has the peak of resident memory of the process that was measured, the pages of mapped files that the system
left it among it, and that of the peer's process, and says whether the first is below: of `larger`, `data`
and the conversion, whose cases share a process, that of all of them; of a process with workers, that of the largest alone.

`cold` takes the files out of the page cache before each reading, and compares with plain reads of the same files: in
order and large blocks, where the system and the disk read ahead, and in pieces of a clip's size in a random order, two
at once, which is how shuffled clips lie on the disk. What keeps them elsewhere, such as the host of a virtual machine,
helps both. Where the system does not let go of the pages it measures nothing and says so.

`wait` takes `--blocks` times four trainings, with the loader and without by turns, and tells the mean of the blocks'
ratios with its standard error; the aim is met or missed by two of these, or not decided: more blocks decide it.
"""

import argparse
import concurrent.futures
import ctypes
import importlib.util
import json
import mmap
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import compare

HERE = Path(__file__).resolve().parent
SAMPLE = 500 * 1024 * 4
SUITES = ("data", "gather", "overlapping", "stream", "cold", "ingest", "larger", "start", "wait")
# The part of the pages that may stay in the page cache of what is read from the disk.
STAYED = 0.01


def measured(command, environment=None):
    """The cases that a program prints, and its peak resident memory in MiB, that of its largest worker
    included where it has any."""
    print("$", " ".join(map(str, command)), file=sys.stderr, flush=True)
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **(environment or {})})
    lines = [json.loads(line) for line in child.stdout if line.startswith("{")]
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"{command[0]} ended with {child.returncode}"
    return {line["case"]: line for line in lines}, usage.ru_maxrss / 1024


def alone(command, runs=7, case=None):
    """The one case of a process of its own, or that of this name, with the peak of the process's resident memory."""
    lines, peak = measured(command, {"RUNS": str(runs)})
    [line] = lines.values() if case is None else [lines[case]]
    return {**line, "peak": peak}


def anew(command, times=7):
    """The one case of a process of its own, the median of several: a process remembers what it has hashed."""
    return sorted((alone(command, 1) for _ in range(times)), key=lambda line: line["seconds"])[times // 2]


def apart(work, *arguments):
    """Does work in a process of its own. The system counts to the peak memory of a program what the process had
    that started it, so this one must stay small."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0, f"{work.__name__} ended with {process.exitcode}"


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


def dropped(paths):
    """Takes files out of the page cache, and returns the part of their pages that stayed there nevertheless: all,
    where the system has no call for it or tells nothing about pages."""
    if not hasattr(os, "posix_fadvise"):
        return 1.0
    stayed = pages = 0
    for path in paths:
        with open(path, "rb") as file:
            # What is not on the disk yet is not dropped.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not path.stat().st_size:
            continue
        mapped = np.memmap(path, np.uint8, "c")  # writable, as ctypes wants it, and not read
        there = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(len(mapped)),
                                           ctypes.c_void_p(there.ctypes.data))
        stayed += len(there) if failed else int((there & 1).sum())
        pages += len(there)
    return stayed / pages


def read_plainly(paths):
    """Files one after the other in large blocks, as `dd bs=4M` reads them."""
    block, size = bytearray(4 << 20), 0
    start = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while read := file.readinto(block):
                size += read
    return {"seconds": time.perf_counter() - start, "bytes": size}


def read_pieces(paths, size):
    """Pieces of files in a random order, two at once, as those read who shuffle and do nothing else."""
    files = [os.open(path, os.O_RDONLY) for path in paths]
    pieces = [(file, at) for file in files for at in range(0, os.fstat(file).st_size, size)]
    random.Random(7).shuffle(pieces)

    def read(own):
        block = bytearray(size)
        return sum(os.preadv(file, [block], at) for file, at in own)

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        read_bytes = sum(threads.map(read, (pieces[0::2], pieces[1::2])))
    seconds = time.perf_counter() - start
    for file in files:
        os.close(file)
    return {"seconds": seconds, "bytes": read_bytes}


def from_disk(cases, rounds=5):
    """The middle time of each case in several rounds, by turns, so that what else the disk does falls on all alike.
    A case has its files, which leave the page cache before, and what reads them. Nothing, where they stay there."""
    lines = {name: [] for name in cases}
    most = 0.0
    for _ in range(rounds):
        for name, (paths, read) in cases.items():
            most = max(most, dropped(paths))
            if most > STAYED:
                print(f"cold: NOT MEASURED: as far as this system tells, {100 * most:.0f} % of the pages of "
                      f"{paths[0].parent} stayed in the page cache after `posix_fadvise`\n")
                return None
            lines[name].append(read())
    print(f"cold: at most {100 * most:.2f} % of the pages stayed in the page cache, {rounds} rounds\n")
    return {name: sorted(of, key=lambda line: line["seconds"])[rounds // 2] for name, of in lines.items()}


def cold_clips(folder, program, torch):
    """Clips from the disk: the files of each folder read plainly, in order and in pieces of a clip's size, one epoch of
    each type by Firebox, shuffled as a whole and in blocks, and one of the arrays by `np.load`."""
    def files(name):
        return sorted(path for path in (folder / name).rglob("*") if path.is_file())

    cases = {("np.load", workers): (files("clips"), partial(alone, [*torch, "cold", workers, folder], 1))
             for workers in (0, 2)}
    for name in ("clips", "clips-f32", "clips-f16", "clips-bf16"):
        cases["disk", name] = files(name), partial(read_plainly, files(name))
    for name, size in (("f32", SAMPLE), ("f16", SAMPLE // 2), ("bf16", SAMPLE // 2)):
        cases["pieces", name] = files(f"clips-{name}"), partial(read_pieces, files(f"clips-{name}"), size)
        for how in ("cold", "blocks"):
            command = [program, "stream", f"{how}-{name}-2", folder]
            cases[how, name] = files(f"clips-{name}"), partial(alone, command, 1)
    return from_disk(cases)


def start_up(folder, firebox):
    """From the command to the first training step, with everything before it in the cache: seconds, and the most
    resident memory of the run, its ending included, in MiB."""
    settings = ["--set", "train.epochs=1", "--set", "window.stride=5", "--set", "evaluate.seeds=1",
                "--set", f"run.cache={folder / 'cache'}", "--set", "loader.batch_size=16"]
    pipeline = HERE.parent / "pipelines" / "pretrain.toml"
    runs_of = []
    for number in range(4):
        runs = folder / f"runs-{number}"
        command = [firebox, "run", pipeline, "--log", "json", *settings,
                   "--set", f"run.directory={runs}"]
        start = time.perf_counter()
        child = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, text=True, cwd=HERE.parent)
        for line in child.stderr:
            if line.startswith("{") and json.loads(line).get("event") == "step":
                seconds = time.perf_counter() - start
                break
        else:
            raise AssertionError("no step was trained")
        child.terminate()
        child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        runs_of.append((seconds, usage.ru_maxrss / 1024))
    # The first run fills the cache.
    return sorted(runs_of[1:])[1]


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
    parser.add_argument("--blocks", type=int, default=10, help="blocks of four trainings of the suite `wait`")
    given = parser.parse_args()
    rows = []

    def told(met):
        return met if isinstance(met, str) else "yes" if met else "**no**"

    def say(what, ours, theirs, ratio, aim, met, peak, peer_peak=None):
        peaks = (f"{most:.0f} MiB" if most else "" for most in (peak, peer_peak))
        below = peak < peer_peak if peer_peak else ""
        rows.append((what, ours, theirs, ratio, aim, told(met), *peaks, told(below)))

    def rate(line):
        return line["rows"] / line["seconds"]

    def number(value, unit):
        return f"{compare.show(value)}{unit}"

    def faster(what, ours, theirs, aim=None, unit="/s"):
        ratio = rate(ours) / rate(theirs)
        asked, met = (f"≥ {aim}", ratio >= aim) if aim else ("", "")
        say(what, number(rate(ours), unit), number(rate(theirs), unit), f"{ratio:.1f}", asked, met,
            ours["peak"], theirs["peak"])

    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        program = given.program or compare.build()
        torch = [sys.executable, HERE / "peers" / "torch_loader.py"]
        if "data" in given.only:
            apart(compare.make_bars, folder, given.bars)
            measured([program, "gather", "make", folder])
            numpy = [sys.executable, HERE / "peers" / "numpy_data.py", folder]
            read = alone([program, "data", "read", folder], case="cache/read-f32")
            copy = alone([*numpy, "copy", read["rows"]])
            share = rate(read) / rate(copy)
            say("cache read in order, f32, beside NumPy's copy of an array in memory",
                number(read["bytes"] / read["seconds"], "B/s"),
                number(copy["bytes"] / copy["seconds"], "B/s"), f"{share:.2f}", "near 1", share > 0.8,
                read["peak"], copy["peak"])
            augment = alone([program, "data", "augment", folder], case="augment/all-threads")
            peer = alone([*numpy, "augment"], 3)
            seconds, theirs = (59_365 * 4 / rate(line) for line in (augment, peer))
            say("augmentation of 59,365 × 105 × 4, four versions, beside NumPy", f"{seconds:.3f} s",
                f"{theirs:.2f} s", f"{seconds / theirs:.3f}", "< 1 s", seconds < 1, augment["peak"], peer["peak"])
        if "gather" in given.only:
            apart(compare.make_bars, folder, given.bars)
            measured([program, "gather", "make", folder])
            ours = {name: alone([program, "gather", name, folder])
                    for name in ("auto", "stream-0", "stream-1", "stream-2", "memory-0", "memory-1", "device")}
            # The same number of windows, in one array in memory.
            peer = {name: alone([*torch, "gather", name, folder, ours["auto"]["rows"]])
                    for name in ("numpy-index", "torch-index", "per-sample-0", "per-sample-2")}
            streamed = max((ours[f"stream-{workers}"] for workers in (0, 1, 2)), key=rate)
            loader = max((peer[f"per-sample-{workers}"] for workers in (0, 2)), key=rate)
            for how, line in (("as `auto` has them", ours["auto"]), ("streamed", streamed)):
                what = f"batches of R1's shape, {how} ({line['case'].partition('/')[2]})"
                faster(f"{what}, beside one NumPy index each", line, peer["numpy-index"], 3)
                faster(f"{what}, beside a loader of samples", line, loader, 20)
            for name in ("stream-0", "stream-1", "stream-2", "memory-0", "memory-1", "device"):
                faster(f"the same, {name}, beside one PyTorch index each", ours[name],
                       peer["torch-index"], 3)
            for stored in ("f16", "bf16"):
                measured([program, "gather", f"make-{stored}", folder])
                line = alone([program, "gather", f"auto-{stored}", folder])
                what = f"batches of R1's shape, stored as {stored}, as `auto` has them, beside"
                faster(f"{what} one NumPy index each of f32", line, peer["numpy-index"], 3)
                if stored == "f16":
                    halves = alone([*torch, "gather", "numpy-f16", folder, line["rows"]])
                    faster(f"{what} one NumPy index each of f16, made f32", line, halves, 3)
                faster(f"{what} a loader of samples", line, loader, 20)
        if "overlapping" in given.only:
            apart(compare.make_bars, folder, given.bars)
            ours = {name: alone([program, "overlapping", name, folder])
                    for name in ("stream-0", "stream-1", "memory-0", "memory-1", "memory-2")}
            # The same windows in one array, and as views into an array of their steps.
            peer = {name: alone([*torch, "overlapping", name, folder, ours["memory-0"]["rows"]])
                    for name in ("numpy-index", "numpy-view")}
            for name, line in ours.items():
                for other, what in (("numpy-index", "one NumPy index each of all windows"),
                                    ("numpy-view", "one NumPy index each of views into their steps")):
                    faster(f"batches of windows of 105 steps at every step, {name}, beside {what}", line,
                           peer[other], 3)
        if {"stream", "cold"} & set(given.only):
            apart(make_clips, folder, given.clips)
            made, peak = measured([program, "stream", "make", folder])
            line = made["convert/f32"]
            say("conversion of clips of 2 MB, f32", number(line["bytes"] / line["seconds"], "B/s"), "", "", "", "",
                peak)
        if "stream" in given.only:
            peer = max((alone([*torch, "stream", workers, folder]) for workers in (0, 2)), key=rate)
            for name in ("f32", "f16", "bf16"):
                ours = alone([program, "stream", f"{name}-2", folder])
                faster(f"clips of 2 MB, {name}, 2 workers, beside a tuned DataLoader", ours, peer, 5)
        if "cold" in given.only and (lines := cold_clips(folder, program, torch)):
            peer = max((lines["np.load", workers] for workers in (0, 2)), key=rate)
            for name in ("f32", "f16", "bf16"):
                reads = (("in order", lines["disk", f"clips-{name}"], None),
                         ("in pieces of their size in a random order", lines["pieces", name], 0.8))
                for how, words in (("cold", "shuffled"), ("blocks", "shuffled in blocks")):
                    ours, what = lines[how, name], f"clips from a cold disk, {name}, {words}, beside"
                    for order, disk, aim in reads:
                        share = disk["seconds"] / ours["seconds"]
                        asked, met = (f"≥ {aim}", share >= aim) if aim else ("", "")
                        say(f"{what} plain reads of the files {order}", number(disk["bytes"] / ours["seconds"], "B/s"),
                            number(disk["bytes"] / disk["seconds"], "B/s"), f"{share:.2f}", asked, met, ours["peak"])
                    faster(f"{what} `np.load` in a DataLoader", ours, peer)
            share = lines["disk", "clips"]["seconds"] / peer["seconds"]
            print(f"cold: `np.load` in a DataLoader has {share:.2f} of the speed of plain reads of its arrays\n")
        if "ingest" in given.only:
            apart(make_many, folder, given.many)
            for name in ("csv", "parquet"):
                ours = {what: how([program, "ingest", f"{what}-{name}", folder])
                        for what, how in (("hash", anew), ("read", alone), ("all", anew), ("again", alone))}
                peer = alone([*torch, "ingest", name, folder])
                read, hashed = ours["read"], ours["hash"]
                assert abs(read["check"] - peer["check"]) < 1e-6 * abs(peer["check"]), name
                # A command reads its files once: what an allocator keeps for the next time is no part of the peaks.
                once, most = (alone(command, 1)["peak"] for command in (
                    [program, "ingest", f"read-{name}", folder], [*torch, "ingest", name, folder]))
                both, stored = read["seconds"] + hashed["seconds"], ours["all"]
                for what, seconds, aim, peak in (("checks", read["seconds"], 1.3, once),
                                                 ("checks and key", both, 1.3, max(once, hashed["peak"])),
                                                 ("into the store", stored["seconds"], None, stored["peak"])):
                    ratio = seconds / peer["seconds"]
                    asked, met = (f"≤ {aim}", ratio <= aim) if aim else ("", "")
                    say(f"ingestion of {read['rows']:,} bars, {name}, {what}", f"{seconds:.2f} s",
                        f"{peer['seconds']:.2f} s", f"{ratio:.2f}", asked, met, peak, most)
                print(f"{name}: from the store, whose key is known, {ours['again']['seconds']:.2f} s\n")
        if "larger" in given.only:
            ours, peak = measured([program, "larger", given.larger, folder])
            for name, line in ours.items():
                share = line["anonymous_bytes"] / line["bytes"]
                say(f"{name}: {line['bytes'] / 1e9:.0f} GB, {line['bytes'] / line['seconds'] / 1e6:.0f} MB/s",
                    f"{line['anonymous_bytes'] / 1e6:.0f} MB anonymous", "", f"{share:.2f}", "≤ 0.1",
                    share <= 0.1, peak)
        if "wait" in given.only:
            apart(compare.make_bars, folder, given.bars)
            line = alone([program, "wait", folder], given.blocks)
            step, without = line["step_milliseconds"], line["without_loader_milliseconds"]
            share = 100 * line["waiting"]
            say("main job on the CPU: waiting for data", f"{share:.2f} % of {step:.0f} ms", "", "",
                "< 1 %", share < 1, line["peak"])
            more, error = 100 * (line["ratio"] - 1), 100 * line["ratio_error"]
            met = {"met": "yes", "missed": "**no**"}.get(line["outcome"], line["outcome"])
            say("main job on the CPU: the step beside one with the same batch each time",
                f"{step:.1f} ms", f"{without:.1f} ms", f"{more:+.2f} ± {error:.2f} %", "within 1 %", met,
                line["peak"])
        if "start" in given.only:
            firebox = given.firebox or compare.build("firebox")
            seconds, peak = start_up(folder, firebox)
            say("from the command to the first step, warm cache", f"{seconds:.2f} s", "", "", "< 1 s",
                seconds < 1, peak)
    print("\n| what | Firebox | peer | ratio | aim | met | peak | peer's peak | below |\n"
          "|---|--:|--:|--:|--:|---|--:|--:|---|")
    for row in rows:
        print("|", " | ".join(row), "|")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nA peak below {own:.0f} MiB cannot be told: a process begins with that of this one.")
    if importlib.util.find_spec("torch"):
        _, imported = measured([sys.executable, "-c", "import torch"])
        print(f"Of a peer with PyTorch {imported:.0f} MiB are those of its import alone.")


if __name__ == "__main__":
    main()
