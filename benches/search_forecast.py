"""Runs the search of reference system R2 with Firebox and with Optuna + PyTorch, one after the other on the same
cores, and prints the time that each takes to the same best value.

Usage: python benches/search_forecast.py ETTh1.csv [--sequences N] [--epochs N] [--trials N] [--seeds N]
           [--peers [tuned] [written]] [--program BINARY] [--folder FOLDER]

Needs Python with Optuna 5, PyTorch and NumPy, and ETTh1.csv. All sides get the first rows of that file, so many that
there are about so many training sequences of 24 hours of the oil temperature, with 12 static features (the six loads,
and hour, weekday and day of the year as sine and cosine), forecast 1, 6 and 24 hours ahead; the same split by time,
scales of the training windows, model, loss, optimizer, clipping, plateau schedule and early stopping; and the same
space, sampler (TPE, 10 trials at random, multivariate) and pruner (median, 10 trials, 5 epochs, interval 1) of
`pipelines/search-forecast.toml`. Seeds are those of sampler and weights.

There are two peers of Optuna + PyTorch, which train on the processor with one code:

- tuned, as by a user who knows it: the data lies in memory as tensors, batches are index selections without a
  DataLoader, denormals are flushed, and AdamW is the fused one;
- written, as R2's guide has it: one process with the threads that PyTorch takes by itself, and DataLoaders of each
  trial over TensorDatasets, whose workers, if any, persist over its epochs. AdamW is as installed, and denormals are
  kept. What the guide does on CUDA only (compilation, pinned memory, f16) is left out.

R2 trains in mixed precision, so all sides may: before the first study each side is timed in f32 and in bf16, and takes
what trains the most sequences a second. Firebox, with R2's own model, and the tuned peer, with one of the middle of the
space, are timed as one process with all cores and as one process a core at the same time. The written peer, with the
model of the tuned one, is timed without workers and with one a core, since the guide's number is for 12 cores. What was
found and taken is printed.

There is a mark for each seed and peer: the worse of the two best values, which Firebox and that peer both reach. The
time to it is that of the trial that reaches it, since the first trial began. Starting up (imports, reading the data) is
told separately and counts for no side. Samplers that draw differently train models of other sizes; so the arithmetic of
each side's trials is counted too (products of training and validation, from the sizes that the journal has), and the
time for a unit of it compared.
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
PEERS = {"tuned": "Optuna + PyTorch, tuned", "written": "Optuna + PyTorch, as R2's guide has it"}
NAMES = {"ours": "Firebox"} | PEERS


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
    """One process of a peer on a study."""
    import optuna
    import torch
    from torch import nn

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    tuned = arguments.side == "tuned"
    if tuned:
        torch.set_num_threads(arguments.threads)
        torch.set_flush_denormal(True)
    parts = {part: [torch.from_numpy(array) for array in arrays] for part, arrays in load(arguments.csv).items()}
    features = parts["train"][1].shape[1]
    narrow = arguments.precision == "bf16"

    class Forecaster(nn.Module):
        def __init__(self, hidden_1, hidden_2, dense, dropout):
            super().__init__()
            self.lower = nn.LSTM(1, hidden_1, batch_first=True)
            self.upper = nn.LSTM(hidden_1, hidden_2, batch_first=True)
            self.head = nn.Sequential(nn.Linear(hidden_2 + features, dense), nn.ReLU(), nn.Dropout(dropout),
                                      nn.Linear(dense, len(HORIZONS)))

        def forward(self, x, statics):
            _, (last, _) = self.upper(self.lower(x)[0])
            return self.head(torch.cat([last[0], statics], 1))

    def selected(arrays, batch_size, generator):
        if generator is None:
            yield from zip(*(array.split(batch_size) for array in arrays))
        else:
            for batch in torch.randperm(len(arrays[0]), generator=generator).split(batch_size):
                yield [array[batch] for array in arrays]

    def batches(part, batch_size, generator=None):
        """A function that gives the batches of an epoch, shuffled if there is a generator."""
        if tuned:
            return lambda: selected(parts[part], batch_size, generator)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*parts[part]), batch_size=batch_size, shuffle=generator is not None,
            generator=generator, num_workers=arguments.workers, persistent_workers=arguments.workers > 0)
        return lambda: loader

    def loss_of(model, x, statics, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            out = model(x, statics)
        return nn.functional.mse_loss(out.float(), y)

    def train(trial, values, epochs, most_steps=None):
        torch.manual_seed(arguments.seed)
        model = Forecaster(values["hidden_1"], values["hidden_2"], values["dense"], values["dropout"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=values["learning_rate"],
                                      weight_decay=values["weight_decay"], fused=True if tuned else None)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
        training = batches("train", values["batch_size"], torch.Generator().manual_seed(arguments.seed))
        validation = batches("validation", values["batch_size"])
        best, waited, steps = math.inf, 0, 0
        for epoch in range(epochs):
            model.train()
            for batch in training():
                loss = loss_of(model, *batch)
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
                for batch in validation():
                    total += loss_of(model, *batch).item() * len(batch[0])
            loss = total / len(parts["validation"][0])
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


def peer_command(csv, setting):
    command = [sys.executable, __file__, csv, "--side", setting["side"], "--precision", setting["precision"]]
    # The written peer keeps the threads that PyTorch takes by itself: to set the same number may change more.
    own = "threads" if setting["side"] == "tuned" else "workers"
    return command + [f"--{own}", str(setting[own])]


def theirs(csv, folder, seed, setting, arguments, counts):
    command = peer_command(csv, setting) + [
        "--seed", str(seed), "--epochs", str(arguments.epochs), "--trials", str(arguments.trials),
        "--processes", str(setting["processes"]), "--journal", folder / "study.log"]
    wall = timed([command] * setting["processes"], os.environ, folder / "said")
    return wall, trials_of(folder / "study.log", counts)


def threads_of(setting):
    return os.environ | {"RAYON_NUM_THREADS": str(setting["threads"])}


def layouts(cores):
    """One process with all cores, and one a core, in each precision."""
    return [{"precision": precision, "processes": processes, "threads": cores // processes}
            for precision in PRECISIONS for processes in sorted({1, cores})]


def settings_of(side, cores):
    """What a peer is timed in."""
    if side == "tuned":
        return [{"side": side} | layout for layout in layouts(cores)]
    import torch

    threads = torch.get_num_threads()
    return [{"side": side, "precision": precision, "processes": 1, "threads": threads, "workers": workers}
            for precision in PRECISIONS for workers in (0, cores)]


def described(setting):
    text = "{precision}, {processes} processes of {threads} threads".format(**setting)
    return text + f", {setting['workers']} workers a loader" if "workers" in setting else text


def calibrate(name, settings, command, rate):
    """The most sequences a second that are trained in one of the settings, and that setting."""
    found = []
    for setting in settings:
        line = list(map(str, command(setting)))
        running = [subprocess.Popen(line, env=threads_of(setting), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                    text=True) for _ in range(setting["processes"])]
        said = [process.communicate()[0] for process in running]
        if any(process.returncode for process in running):
            if setting["precision"] == "f32":
                sys.exit(f"the calibration failed: {line}")
            # PyTorch has no bf16 LSTM for every processor.
            print(f"{name}: {described(setting)}: does not train", file=sys.stderr, flush=True)
            continue
        total = sum(rate(json.loads(text.splitlines()[-1])) for text in said)
        found.append((total, setting))
        print(f"{name}: {described(setting)}: {total:.0f} sequences/s", file=sys.stderr, flush=True)
    return max(found, key=lambda pair: pair[0])


def reached(curve, mark):
    return next((seconds for seconds, value in curve if value <= mark), math.nan)


def build():
    # A relative path is meant from here, and cargo runs elsewhere.
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")).absolute()
    command = ["cargo", "build", "--quiet", "--release", "--workspace", "--bin", "firebox"]
    subprocess.run(command, cwd=HERE.parent, env=os.environ | {"CARGO_TARGET_DIR": str(target)}, check=True)
    return target / "release" / "firebox"


def compare(arguments, folder):
    csv = folder / "ETTh1-first.csv"
    first_rows(arguments.csv, csv, rows_for(arguments.sequences))
    counts = {part: len(arrays[0]) for part, arrays in load(csv).items()}
    if counts["validation"] == 0:
        sys.exit("so few sequences leave nothing to validate on: raise --sequences to 1000 and more")
    cores = len(os.sched_getaffinity(0))
    program = (arguments.program or build()).resolve()
    bench = lambda setting: [program, "bench", "--workload", "lstm-forecast", "--precision", setting["precision"],
                             "--batch", MIDDLE["batch_size"], "--warmup", 20, "--steps", 400, "--json"]
    found = {"ours": calibrate(NAMES["ours"], layouts(cores), bench, lambda line: line["samples_per_s"])}
    for side in arguments.peers:
        command = lambda setting: peer_command(csv, setting) + ["--calibrate"]
        found[side] = calibrate(PEERS[side], settings_of(side, cores), command, lambda line: line["rate"])
    print(f"# R2's search on {cores} cores ({platform.machine()}): {counts['train']} training and "
          f"{counts['validation']} validation sequences of {LENGTH} hours, at most {arguments.epochs} epochs, "
          f"{arguments.trials} trials\n\n"
          "Each side takes the fastest of what it was timed in, Firebox with R2's own model, the peers with one of the "
          "middle of the space:\n")
    for side, (rate, setting) in found.items():
        print(f"- {NAMES[side]}: {described(setting)}, {rate:.0f} sequences/s")
    print("\n| seed | beside | mark | Firebox to the mark | the peer | ratio | all trials: Firebox | the peer "
          "| epochs trained | pruned | best values | outside the trials | GFLOP/s | ratio for the same work |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    sides = list(found)
    ratios = {side: [] for side in arguments.peers}
    for seed in range(42, 42 + arguments.seeds):
        results, walls = {}, {}
        # Turn about, so that no side always has the machine as another left it.
        first = seed % len(sides)
        for side in sides[first:] + sides[:first]:
            place = folder / f"{side}-{seed}"
            place.mkdir()
            setting = found[side][1]
            if side == "ours":
                walls[side], results[side] = ours(program, csv, place, seed, setting, arguments, counts)
            else:
                walls[side], results[side] = theirs(csv, place, seed, setting, arguments, counts)
            if results[side]["failed"]:
                print(f"{NAMES[side]}: {results[side]['failed']} trials failed", file=sys.stderr)
        for side in arguments.peers:
            a, b = results["ours"], results[side]
            best = [min(value for _, value in one["curve"]) for one in (a, b)]
            mark = max(best)
            to_mark = [reached(one["curve"], mark) for one in (a, b)]
            rates = [one["work"] / one["seconds"] / 1e9 for one in (a, b)]
            ratio, whole, same = to_mark[0] / to_mark[1], a["seconds"] / b["seconds"], rates[1] / rates[0]
            ratios[side].append((ratio, whole, same))
            print(f"| {seed} | {side} | {mark:.4f} | {to_mark[0]:.1f} s | {to_mark[1]:.1f} s | {ratio:.2f} "
                  f"| {a['seconds']:.1f} s | {b['seconds']:.1f} s | {a['epochs']}, {b['epochs']} "
                  f"| {a['pruned']}, {b['pruned']} | {best[0]:.4f}, {best[1]:.4f} "
                  f"| {walls['ours'] - a['seconds']:.1f} s, {walls[side] - b['seconds']:.1f} s "
                  f"| {rates[0]:.0f}, {rates[1]:.0f} | {same:.2f} |", flush=True)
    mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
    print("\nGeometric means over the seeds, Firebox beside\n")
    for side in arguments.peers:
        ratio, whole, same = map(mean, zip(*ratios[side]))
        print(f"- {NAMES[side]}: {ratio:.2f} of the time to the mark, {whole:.2f} of the time of all trials, "
              f"{same:.2f} of the time for the same work.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("csv", type=Path, help="ETTh1.csv")
    parser.add_argument("--sequences", type=int, default=2000, help="training sequences, about")
    parser.add_argument("--epochs", type=int, default=10, help="most epochs of a trial")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="beside which Firebox is put")
    parser.add_argument("--program", type=Path, help="firebox, if it is built already")
    parser.add_argument("--folder", type=Path, help="keeps the studies here, which must be empty")
    hidden = {"help": argparse.SUPPRESS}
    parser.add_argument("--side", choices=PEERS, **hidden)
    parser.add_argument("--calibrate", action="store_true", **hidden)
    parser.add_argument("--seed", type=int, default=42, **hidden)
    parser.add_argument("--threads", type=int, default=1, **hidden)
    parser.add_argument("--workers", type=int, default=0, **hidden)
    parser.add_argument("--processes", type=int, default=1, **hidden)
    parser.add_argument("--precision", choices=PRECISIONS, default="f32", **hidden)
    parser.add_argument("--journal", type=Path, **hidden)
    arguments = parser.parse_args()
    if arguments.side:
        peer(arguments)
    elif arguments.folder:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        compare(arguments, arguments.folder.resolve())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            compare(arguments, Path(temporary))


if __name__ == "__main__":
    main()
