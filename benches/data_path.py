"""Measures the whole data path beside PyTorch, NumPy and polars on the same files and machine, one after
the other, and prints one table with the targets of the project.

Usage: python benches/data_path.py [FOLDER] [--program BINARY] [--firebox BINARY]
           [--only SUITE ...] [--bars N] [--many N] [--clips N] [--larger BYTES] [--blocks N]

Needs Python with NumPy, polars and PyTorch. FOLDER (a temporary one by default) gets the files: 59,365
windows' worth of bars, 10 million bars, 256 clips of 2 MB, and for a while a set of `--larger` bytes.
`--larger 20000000000` is the claim of 20 GB in 2 GB of anonymous memory. Each row has the peak of resident
memory of the process that was measured, the pages of mapped files that the system left it among it: of the
suites `data` and `larger`, whose cases share a process, that of all of them. `wait` takes `--blocks` times four
trainings, with the loader and without by turns, and tells the mean of the blocks' ratios with its standard error;
the aim is met or missed by two of these, or not decided: more blocks decide it.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import compare

HERE = Path(__file__).resolve().parent
SUITES = ("data", "gather", "stream", "ingest", "larger", "start", "wait")


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


def alone(command, runs=7):
    """The one case of a process of its own, with the peak of its resident memory."""
    lines, peak = measured(command, {"RUNS": str(runs)})
    [line] = lines.values()
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

    def say(what, ours, theirs, ratio, aim, met, peak, peer_peak=None):
        peaks = (f"{most:.0f} MiB" if most else "" for most in (peak, peer_peak))
        told = met if isinstance(met, str) else "yes" if met else "**no**"
        rows.append((what, ours, theirs, ratio, aim, told, *peaks))

    def rate(line):
        return line["rows"] / line["seconds"]

    def number(value, unit):
        return f"{compare.show(value)}{unit}"

    def faster(what, ours, theirs, aim, unit="/s"):
        ratio = rate(ours) / rate(theirs)
        say(what, number(rate(ours), unit), number(rate(theirs), unit), f"{ratio:.1f}",
            f"≥ {aim}", ratio >= aim, ours["peak"], theirs["peak"])

    def memory(what, ours, theirs):
        ours, theirs = ours["peak"], theirs["peak"]
        say(f"peak resident memory, {what}", f"{ours:.0f} MiB", f"{theirs:.0f} MiB",
            f"{ours / theirs:.2f}", "< 1", ours < theirs, ours, theirs)

    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        program = given.program or compare.build()
        torch = [sys.executable, HERE / "peers" / "torch_loader.py"]
        if "data" in given.only:
            apart(compare.make_bars, folder, given.bars)
            ours, peak = measured([program, "data", folder])
            copy, read = ours["memory/copy-to-batch"], ours["cache/read-f32"]
            share = rate(read) / rate(copy)
            say("cache read in order, f32, beside a copy of memory",
                number(read["bytes"] / read["seconds"], "B/s"),
                number(copy["bytes"] / copy["seconds"], "B/s"), f"{share:.2f}", "near 1", share > 0.8,
                peak)
            augment = ours["augment/all-threads"]
            windows = augment["rows"] / 4
            seconds = augment["seconds"] * 59_365 / windows
            say("augmentation of 59,365 × 105 × 4, four versions", f"{seconds:.3f} s", "", "", "< 1 s",
                seconds < 1, peak)
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
            memory("R1's shape, as `auto` has it, beside the array", ours["auto"], peer["numpy-index"])
            memory("R1's shape, as `auto` has it, beside the loader", ours["auto"], loader)
        if "stream" in given.only:
            apart(make_clips, folder, given.clips)
            made, _ = measured([program, "stream", "make", folder])
            peer = max((alone([*torch, "stream", workers, folder]) for workers in (0, 2)), key=rate)
            for name in ("f32", "f16", "bf16"):
                ours = alone([program, "stream", f"{name}-2", folder])
                faster(f"clips of 2 MB, {name}, 2 workers, beside a tuned DataLoader", ours, peer, 5)
                memory(f"clips, {name}", ours, peer)
            line = made["convert/f32"]
            print(f"conversion: {line['bytes'] / line['seconds'] / 1e6:.0f} MB/s")
        if "ingest" in given.only:
            apart(make_many, folder, given.many)
            for name in ("csv", "parquet"):
                ours = {what: how([program, "ingest", f"{what}-{name}", folder])
                        for what, how in (("hash", anew), ("read", alone), ("all", anew), ("again", alone))}
                peer = alone([*torch, "ingest", name, folder])
                read, hashed = ours["read"], ours["hash"]
                assert abs(read["check"] - peer["check"]) < 1e-6 * abs(peer["check"]), name
                most = max(read["peak"], hashed["peak"])
                for what, seconds, peak in (("checks", read["seconds"], read["peak"]),
                                            ("checks and key", read["seconds"] + hashed["seconds"], most)):
                    ratio = seconds / peer["seconds"]
                    say(f"ingestion of {read['rows']:,} bars, {name}, {what}", f"{seconds:.2f} s",
                        f"{peer['seconds']:.2f} s", f"{ratio:.2f}", "≤ 1.3", ratio <= 1.3, peak, peer["peak"])
                # A command reads its files once: what an allocator keeps for the next time is left out.
                once = alone([*torch, "ingest", name, folder], 1)
                for what, where in (("read", "memory"), ("all", "the store")):
                    memory(f"ingestion into {where}, {name}",
                           alone([program, "ingest", f"{what}-{name}", folder], 1), once)
                print(f"{name}: with the cache written {ours['all']['seconds']:.2f} s, "
                      f"from the cache, whose key is known, {ours['again']['seconds']:.2f} s")
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
    print("\n| what | Firebox | peer | ratio | aim | met | peak | peer's peak |\n|---|--:|--:|--:|--:|---|--:|--:|")
    for row in rows:
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
