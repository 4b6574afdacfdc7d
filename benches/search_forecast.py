"""Runs the search of reference system R2 with Firebox and with Optuna + PyTorch, one after the other on the same
cores, and prints the time that each takes to the same best value.

Usage: python benches/search_forecast.py ETTh1.csv [--sequences N] [--epochs N] [--trials N] [--seeds N]
           [--program BINARY] [--folder FOLDER]

Needs Python with Optuna 5, PyTorch and NumPy, and ETTh1.csv. Both sides get the first rows of that file, so many that
there are about so many training sequences of 24 hours of the oil temperature, with 12 static features (the six loads,
and hour, weekday and day of the year as sine and cosine), forecast 1, 6 and 24 hours ahead; the same split by time,
scales of the training windows, model, loss, optimizer, clipping, plateau schedule and early stopping; and the same
space, sampler (TPE, 10 trials at random, multivariate) and pruner (median, 10 trials, 5 epochs, interval 1) of
`pipelines/search-forecast.toml`. Seeds are those of sampler and weights.

PyTorch is tuned as a user would who knows it: the data lies in memory as tensors, batches are index selections without
a DataLoader, denormals are flushed, and AdamW is the fused one.

R2 trains in mixed precision, so both sides may: before the first study each side is timed with a model of the middle of the
space in f32 and in bf16, as one process with all cores and as one process a core at the same time, and takes what trains
the most sequences a second. What was found and taken is printed.

For each seed the mark is the worse of the two best values, which both sides reach: the time to it is that of the trial
that reaches it, since the first trial began. Starting up (imports, reading the data) is told separately and counts for
neither. Samplers that draw differently train models of other sizes; so the arithmetic of each side's trials is counted
too (products of training and validation, from the sizes that the journal has), and the time for a unit of it compared.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
LENGTH, HORIZONS = 24, (1, 6, 24)
LOADS = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL"]
VALIDATION, TEST = 0.2, 0.1
STUDY = "search-forecast"
# The middle of the space, with which layouts and precisions are compared.
MIDDLE = {"hidden_1": 160, "hidden_2": 80, "dense": 48, "dropout": 0.3, "batch_size": 128}
PRECISIONS = ["f32", "bf16"]


def rows_for(sequences):
    """Rows of which the training part has so many windows with their targets."""
    return math.ceil((sequences + LENGTH + HORIZONS[-1] - 1) / (1 - VALIDATION - TEST))


def first_rows(source, target, rows):
    lines = source.read_text().splitlines()
    if rows > len(lines) - 1:
        sys.exit(f"{source} has {len(lines) - 1} rows; {rows} are needed for so many sequences: lower --sequences")
    target.write_text("\n".join(lines[: rows + 1]) + "\n")


def load(path):
    """Training and validation sequences, static features and targets, as Firebox makes them."""
    lines = path.read_text().splitlines()
    names = lines[0].split(",")[1:]
    stamps = np.array([line.split(",", 1)[0] for line in lines[1:]], dtype="datetime64[s]")
    values = np.array([line.split(",")[1:] for line in lines[1:]], dtype=np.float64)
    count, reach = len(values), HORIZONS[-1]
    validation, test = round((1 - VALIDATION - TEST) * count), round((1 - TEST) * count)
    gap = LENGTH + reach
    starts = {"train": np.arange(0, validation - LENGTH - reach + 1),
              "validation": np.arange(validation + gap, test - LENGTH - reach + 1)}
    temperature = values[:, names.index("OT")]
    loads = values[:, [names.index(name) for name in LOADS]]
    last = {part: start + LENGTH - 1 for part, start in starts.items()}
    # Each step that a training window covers counts once.
    covered = temperature[: starts["train"][-1] + LENGTH]
    hours = stamps.astype("int64") // 3600
    days = hours // 24
    phases = np.stack([hours % 24 / 24, days % 7 / 7, days / 365.2425 % 1], 1)
    calendar = np.stack([np.sin(2 * np.pi * phases), np.cos(2 * np.pi * phases)], 2).reshape(count, -1)
    targets = {part: np.stack([temperature[at + horizon] for horizon in HORIZONS], 1) for part, at in last.items()}
    fitted = lambda rows: (rows.mean(0), rows.std(0))
    scaled = lambda rows, scale: (rows - scale[0]) / scale[1]
    of_input, of_loads = fitted(covered), fitted(loads[last["train"]])
    of_targets = fitted(targets["train"])
    parts = {}
    for part, start in starts.items():
        windows = scaled(temperature, of_input)[start[:, None] + np.arange(LENGTH)]
        statics = np.concatenate([scaled(loads[last[part]], of_loads), calendar[last[part]]], 1)
        arrays = (windows[:, :, None], statics, scaled(targets[part], of_targets))
        parts[part] = [array.astype(np.float32) for array in arrays]
    return parts


def peer(arguments):
    """One process of Optuna + PyTorch on a study."""
    import optuna
    import torch
    from torch import nn

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    parts = {part: [torch.from_numpy(array) for array in arrays] for part, arrays in load(arguments.csv).items()}
    x, statics, y = parts["train"]
    held_x, held_statics, held_y = parts["validation"]
    narrow = arguments.precision == "bf16"

    class Forecaster(nn.Module):
        def __init__(self, hidden_1, hidden_2, dense, dropout):
            super().__init__()
            self.lower = nn.LSTM(1, hidden_1, batch_first=True)
            self.upper = nn.LSTM(hidden_1, hidden_2, batch_first=True)
            self.head = nn.Sequential(nn.Linear(hidden_2 + statics.shape[1], dense), nn.ReLU(), nn.Dropout(dropout),
                                      nn.Linear(dense, len(HORIZONS)))

        def forward(self, x, statics):
            _, (last, _) = self.upper(self.lower(x)[0])
            return self.head(torch.cat([last[0], statics], 1))

    def train(trial, values, epochs, most_steps=None):
        torch.manual_seed(arguments.seed)
        model = Forecaster(values["hidden_1"], values["hidden_2"], values["dense"], values["dropout"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=values["learning_rate"],
                                      weight_decay=values["weight_decay"], fused=True)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
        generator = torch.Generator().manual_seed(arguments.seed)
        best, waited, steps, batch_size = math.inf, 0, 0, values["batch_size"]
        for epoch in range(epochs):
            model.train()
            for batch in torch.randperm(len(x), generator=generator).split(batch_size):
                with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                    out = model(x[batch], statics[batch])
                loss = nn.functional.mse_loss(out.float(), y[batch])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                steps += 1
                if steps == most_steps:
                    return best
            model.eval()
            total = 0.0
            with torch.inference_mode():
                for first in range(0, len(held_x), batch_size):
                    some = slice(first, first + batch_size)
                    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                        out = model(held_x[some], held_statics[some])
                    loss = nn.functional.mse_loss(out.float(), held_y[some])
                    total += loss.item() * len(held_x[some])
            loss = total / len(held_x)
            schedule.step(loss)
            waited = 0 if loss < best else waited + 1
            best = min(best, loss)
            if trial is not None:
                trial.report(loss, epoch)
                if trial.should_prune():
                    raise optuna.TrialPruned
            if waited >= 10:
                break
        return best

    if arguments.calibrate:
        values = MIDDLE | {"learning_rate": 1e-3, "weight_decay": 1e-5}
        train(None, values, 1, most_steps=5)
        begun = time.perf_counter()
        train(None, values, 100, most_steps=200)
        print(json.dumps({"rate": 200 * MIDDLE["batch_size"] / (time.perf_counter() - begun)}))
        return

    def objective(trial):
        return train(trial, {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-3, log=True),
            "hidden_1": trial.suggest_int("hidden_1", 64, 256, step=16),
            "hidden_2": trial.suggest_int("hidden_2", 32, 128, step=16),
            "dense": trial.suggest_categorical("dense", [32, 48, 64]),
            "dropout": trial.suggest_float("dropout", 0.15, 0.45),
            "batch_size": trial.suggest_categorical("batch_size", [64, 128, 256]),
        }, arguments.epochs)

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(arguments.journal)))
    study = optuna.create_study(
        study_name=STUDY, storage=storage, direction="minimize", load_if_exists=True,
        sampler=optuna.samplers.TPESampler(n_startup_trials=10, multivariate=True, seed=arguments.seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=10, n_warmup_steps=5, interval_steps=1))
    done = optuna.study.MaxTrialsCallback(arguments.trials, states=None)
    if arguments.processes == 1:
        study.optimize(objective, n_trials=arguments.trials)
    else:
        study.optimize(objective, callbacks=[done])


def products(parameters, counts):
    """Operations of the products of an epoch: training costs three forward passes, validation one."""
    named = lambda name: next(value for key, value in parameters.items() if key.split(".")[-1] == name)
    lower, upper, dense = named("hidden_1"), named("hidden_2"), named("dense")
    step = 4 * lower * (1 + lower) + 4 * upper * (lower + upper)
    head = dense * (upper + len(LOADS) + 6 + len(HORIZONS))
    return 2 * (LENGTH * step + head) * (3 * counts["train"] + counts["validation"])


def trials_of(journal, counts):
    import optuna

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    trials = optuna.load_study(study_name=STUDY, storage=storage).trials
    ended = [trial for trial in trials if trial.datetime_complete is not None]
    began = min(trial.datetime_start for trial in ended)
    state = lambda name: sum(trial.state.name == name for trial in ended)
    complete = sorted((trial for trial in ended if trial.state.name == "COMPLETE"),
                      key=lambda trial: trial.datetime_complete)
    epochs = sum(len(trial.intermediate_values) for trial in ended)
    work = sum(len(trial.intermediate_values) * products(trial.params, counts) for trial in ended)
    return {
        "work": work,
        "curve": [((trial.datetime_complete - began).total_seconds(), trial.value) for trial in complete],
        "seconds": (max(trial.datetime_complete for trial in ended) - began).total_seconds(),
        "complete": state("COMPLETE"), "pruned": state("PRUNED"), "failed": state("FAIL"), "epochs": epochs,
    }


def timed(commands, environment, said):
    print("$", " ".join(map(str, commands[0])), file=sys.stderr, flush=True)
    with open(said, "w") as file:
        begun = time.perf_counter()
        running = [subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL, stderr=file)
                   for command in commands]
        failed = [process.wait() != 0 for process in running]
    if any(failed):
        sys.exit("it failed:\n" + "".join(said.read_text().splitlines(keepends=True)[-20:]))
    return time.perf_counter() - begun


def ours(program, csv, folder, seed, setting, arguments, counts):
    settings = {
        "data.path": csv, "forecast.targets": '["OT"]', "forecast.inputs": '["OT"]',
        "forecast.statics": json.dumps(LOADS), "forecast.horizons": json.dumps(HORIZONS),
        "window.length": LENGTH, "split.time.validation": VALIDATION, "split.time.test": TEST,
        "run.seed": seed, "run.directory": folder / "runs", "run.cache": folder / "cache",
        "run.precision": setting["precision"], "train.epochs": arguments.epochs, "search.trials": arguments.trials,
        "search.study": STUDY, "search.storage": folder / "study.log",
    }
    command = [program, "search", HERE.parent / "pipelines" / "search-forecast.toml"]
    command += ["--workers", str(setting["processes"])]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    # The conclusion (the best trial's report) is no part of the search; it comes after the last trial.
    wall = timed([command], threads_of(setting), folder / "said")
    return wall, trials_of(folder / "study.log", counts)


def theirs(csv, folder, seed, setting, arguments, counts):
    command = [sys.executable, __file__, csv, "--peer", "--seed", str(seed), "--threads", str(setting["threads"]),
               "--precision", setting["precision"], "--epochs", str(arguments.epochs), "--trials",
               str(arguments.trials), "--processes", str(setting["processes"]), "--journal", folder / "study.log"]
    wall = timed([command] * setting["processes"], os.environ, folder / "said")
    return wall, trials_of(folder / "study.log", counts)


def threads_of(setting):
    return os.environ | {"RAYON_NUM_THREADS": str(setting["threads"])}


def calibrate(name, cores, command, rate):
    """The precision, processes and threads a process that train the most sequences a second."""
    found = []
    for precision in PRECISIONS:
        for processes in sorted({1, cores}):
            setting = {"precision": precision, "processes": processes, "threads": cores // processes}
            line = list(map(str, command(setting)))
            running = [subprocess.Popen(line, env=threads_of(setting), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True) for _ in range(processes)]
            said = [process.communicate()[0] for process in running]
            if any(process.returncode for process in running):
                if precision == "f32":
                    sys.exit(f"the calibration failed: {line}")
                # PyTorch has no bf16 LSTM for every processor.
                print(f"{name}, {precision}, {processes} processes: does not train", file=sys.stderr, flush=True)
                continue
            total = sum(rate(json.loads(text.splitlines()[-1])) for text in said)
            found.append((total, setting))
            print(f"{name}, {precision}, {processes} processes of {cores // processes} threads: {total:.0f} sequences/s",
                  file=sys.stderr, flush=True)
    return max(found, key=lambda pair: pair[0])


def reached(curve, mark):
    return next((seconds for seconds, value in curve if value <= mark), math.nan)


def build():
    command = ["cargo", "build", "--quiet", "--release", "--workspace", "--bin", "firebox"]
    subprocess.run(command, cwd=HERE.parent, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")) / "release" / "firebox"


def compare(arguments, folder):
    csv = folder / "ETTh1-first.csv"
    first_rows(arguments.csv, csv, rows_for(arguments.sequences))
    counts = {part: len(arrays[0]) for part, arrays in load(csv).items()}
    if counts["validation"] == 0:
        sys.exit("so few sequences leave nothing to validate on: raise --sequences to 500 and more")
    cores = len(os.sched_getaffinity(0))
    program = (arguments.program or build()).resolve()
    bench = lambda setting: [program, "bench", "--workload", "lstm-forecast", "--precision", setting["precision"],
                             "--batch", MIDDLE["batch_size"], "--warmup", 20, "--steps", 400, "--json"]
    peer = lambda setting: [sys.executable, __file__, csv, "--peer", "--calibrate", "--threads", setting["threads"],
                            "--precision", setting["precision"]]
    own_rate, own = calibrate("Firebox", cores, bench, lambda line: line["samples_per_s"])
    their_rate, other = calibrate("PyTorch", cores, peer, lambda line: line["rate"])
    taken = lambda setting: "{precision}, {processes} processes of {threads} threads".format(**setting)
    print(f"# R2's search on {cores} cores ({platform.machine()}): {counts['train']} training and {counts['validation']} "
          f"validation sequences of {LENGTH} hours, at most {arguments.epochs} epochs, {arguments.trials} trials\n\n"
          f"Firebox: {taken(own)}, {own_rate:.0f} sequences/s with R2's own model; PyTorch: {taken(other)}, {their_rate:.0f} "
          "with one of the middle of the space, fastest of f32 and bf16 and of one process and one a core.\n")
    print("| seed | mark | Firebox to the mark | Optuna + PyTorch | ratio | all trials: Firebox | Optuna + PyTorch "
          "| epochs trained | pruned | best values | outside the trials | GFLOP/s | ratio for the same work |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    ratios, whole, same = [], [], []
    for seed in range(42, 42 + arguments.seeds):
        results, walls = {}, {}
        # Turn about, so that neither side always has the machine as the other left it.
        for side in ("ours", "theirs") if seed % 2 == 0 else ("theirs", "ours"):
            place = folder / f"{side}-{seed}"
            place.mkdir()
            if side == "ours":
                walls[side], results[side] = ours(program, csv, place, seed, own, arguments, counts)
            else:
                walls[side], results[side] = theirs(csv, place, seed, other, arguments, counts)
        a, b = results["ours"], results["theirs"]
        best = [min(value for _, value in one["curve"]) for one in (a, b)]
        mark = max(best)
        to_mark = [reached(one["curve"], mark) for one in (a, b)]
        ratios.append(to_mark[0] / to_mark[1])
        whole.append(a["seconds"] / b["seconds"])
        rates = [one["work"] / one["seconds"] / 1e9 for one in (a, b)]
        same.append(rates[1] / rates[0])
        print(f"| {seed} | {mark:.4f} | {to_mark[0]:.1f} s | {to_mark[1]:.1f} s | {ratios[-1]:.2f} "
              f"| {a['seconds']:.1f} s | {b['seconds']:.1f} s | {a['epochs']}, {b['epochs']} "
              f"| {a['pruned']}, {b['pruned']} | {best[0]:.4f}, {best[1]:.4f} "
              f"| {walls['ours'] - a['seconds']:.1f} s, {walls['theirs'] - b['seconds']:.1f} s "
              f"| {rates[0]:.0f}, {rates[1]:.0f} | {same[-1]:.2f} |", flush=True)
        for name, one in (("Firebox", a), ("Optuna + PyTorch", b)):
            if one["failed"]:
                print(f"{name}: {one['failed']} trials failed", file=sys.stderr)
    mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
    print(f"\nGeometric means over the seeds: {mean(ratios):.2f} of the time to the mark, {mean(whole):.2f} of the time "
          f"of all trials, {mean(same):.2f} of the time for the same work.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("csv", type=Path, help="ETTh1.csv")
    parser.add_argument("--sequences", type=int, default=2000, help="training sequences, about")
    parser.add_argument("--epochs", type=int, default=10, help="most epochs of a trial")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--program", type=Path, help="firebox, if it is built already")
    parser.add_argument("--folder", type=Path, help="keeps the studies here, which must be empty")
    hidden = {"help": argparse.SUPPRESS}
    parser.add_argument("--peer", action="store_true", **hidden)
    parser.add_argument("--calibrate", action="store_true", **hidden)
    parser.add_argument("--seed", type=int, default=42, **hidden)
    parser.add_argument("--threads", type=int, default=1, **hidden)
    parser.add_argument("--processes", type=int, default=1, **hidden)
    parser.add_argument("--precision", choices=PRECISIONS, default="f32", **hidden)
    parser.add_argument("--journal", type=Path, **hidden)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments)
    elif arguments.folder:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        compare(arguments, arguments.folder.resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            compare(arguments, Path(temporary))


if __name__ == "__main__":
    main()
