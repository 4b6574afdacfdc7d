"""The main job in several precisions and seeds: does each end where f32 does?

    python benches/precision_seeds.py [--pipeline pipelines/pretrain.toml] [--seeds 5]
        [--precisions f32 bf16 f16] [--set KEY=VALUE ...] [--json FILE]

Runs `firebox run` once for each precision and seed (a finished run is not repeated), reads the
validation loss and the probe's test accuracy of each, and prints means, spreads and differences to
f32: within 0.5 % is what issue and reference system ask for. The program is FIREBOX_PROGRAM, or
target/release/firebox. On two cores the main job takes a minute or two a run, less in bf16 where the processor
has instructions for it, and a little more in f16, which is rounding on top of f32 there. `--set
train.epochs=6` shortens all. Needs Python alone.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time


def run(program, pipeline, precision, seed, settings, directory):
    """The validation loss, the probe's accuracy and the seconds of one run."""
    folder = pathlib.Path(directory) / f"{precision}-{seed}"
    command = [program, "run", pipeline, "--set", f"run.precision={precision}"]
    command += ["--set", f"run.seed={seed}", "--set", f"run.directory={folder}"]
    for setting in settings:
        command += ["--set", setting]
    begun = time.time()
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    seconds = time.time() - begun
    # The folder may have runs of other settings, too: the program says which one is this.
    reports = [line.removeprefix("report ") for line in said.splitlines() if line.startswith("report ")]
    if not reports:
        raise SystemExit(f"the program named no report:\n{said}")
    found = pathlib.Path(reports[-1]).parent
    loss = json.loads((found / "training.json").read_text())["best"]["loss"]
    return dict(loss=loss, accuracy=accuracy(found), seconds=seconds, run=str(found))


def accuracy(folder):
    """The accuracy of the probe on the trained encoder, as the run's log has it; None without one."""
    for line in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("event") == "scored" and event["name"] in ("test/accuracy", "test/probe_accuracy"):
            return event["value"]
    return None


def summary(rows, base, key):
    values = [row[key] for row in rows if row[key] is not None]
    if not values:
        return "-"
    mean = statistics.mean(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    reference = statistics.mean(row[key] for row in base)
    apart = 100 * (mean / reference - 1)
    return f"{mean:.5f} ± {spread:.5f} ({apart:+.2f} %{'' if abs(apart) <= 0.5 else ' !'})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipeline", default="pipelines/pretrain.toml")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", default=["f32", "bf16", "f16"])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--directory", default="runs/precision-seeds")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    program = os.environ.get("FIREBOX_PROGRAM", "target/release/firebox")
    results = {}
    for precision in arguments.precisions:
        results[precision] = []
        for seed in range(1337, 1337 + arguments.seeds):
            row = run(program, arguments.pipeline, precision, seed, arguments.settings, arguments.directory)
            results[precision].append(row)
            print(f"{precision} seed {seed}: loss {row['loss']:.5f}, accuracy {row['accuracy']}, {row['seconds']:.0f} s", flush=True)
    base = results[arguments.precisions[0]]
    print("\nprecision  validation loss                   probe accuracy                    s a run")
    for precision, rows in results.items():
        seconds = statistics.mean(row["seconds"] for row in rows)
        print(f"{precision:<9}  {summary(rows, base, 'loss'):<32}  {summary(rows, base, 'accuracy'):<32}  {seconds:.0f}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
