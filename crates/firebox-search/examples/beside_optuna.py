"""Best values that Optuna finds on the problems of `beside_optuna.rs`, 30 seeds each.

    python -m pip install optuna==5.0.0 torch
    python crates/firebox-search/examples/beside_optuna.py curves   # trains, once: tests/golden/curves.json
    python crates/firebox-search/examples/beside_optuna.py          # searches: tests/golden/beside_optuna.json

The curves are validation losses of small networks, one for each combination of three settings.
"""

import json
import math
import pathlib
import random
import sys
import time
import warnings

warnings.simplefilter("ignore")
GOLDEN = pathlib.Path(__file__).parent.parent / "tests" / "golden"
SEEDS = 30
RATES, WIDTHS, DROPOUTS, EPOCHS = 8, 4, 3, 20


def train(rate, width, dropout):
    """Validation losses of a network that learns the sign of a product of sines."""
    import torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.rand(768, 4) * 4 - 2
    y = ((x[:, 0] * 2).sin() * (x[:, 1] + x[:, 2] ** 2).sin() + 0.3 * torch.randn(768) > 0).float()
    hidden = 4 * 2**width
    network = torch.nn.Sequential(
        torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Dropout(0.2 * dropout),
        torch.nn.Linear(hidden, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=10 ** (-4 + rate / 2))
    measure = torch.nn.BCEWithLogitsLoss()
    losses = []
    for _ in range(EPOCHS):
        network.train()
        for batch in torch.randperm(512).split(32):
            optimizer.zero_grad()
            measure(network(x[batch])[:, 0], y[batch]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            losses.append(round(measure(network(x[512:])[:, 0], y[512:]).item(), 4))
    return losses


def curves():
    table = [[[train(r, w, d) for d in range(DROPOUTS)] for w in range(WIDTHS)] for r in range(RATES)]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in table)
    (GOLDEN / "curves.json").write_text("[\n" + lines + "\n]\n")


def branin(trial):
    x, y = trial.suggest_float("x", -5.0, 10.0), trial.suggest_float("y", 0.0, 15.0)
    bent = y - 5.1 * x * x / (4 * math.pi**2) + 5 * x / math.pi - 6
    return bent**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


HARTMANN_A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
HARTMANN_P = [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
              [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381]]


def hartmann(trial):
    x = [trial.suggest_float(f"x{i}", 0.0, 1.0) for i in range(6)]
    return -sum(
        weight * math.exp(-sum(a * (v - p / 10000) ** 2 for a, p, v in zip(row, place, x)))
        for weight, row, place in zip([1, 1.2, 3, 3.2], HARTMANN_A, HARTMANN_P))


def rosenbrock(trial):
    x = [trial.suggest_float(f"x{i}", -2.0, 2.0) for i in range(3)]
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in zip(x, x[1:]))


def search():
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table = json.loads((GOLDEN / "curves.json").read_text())
    steps = 0

    def training(trial):
        nonlocal steps
        rate, width = trial.suggest_int("rate", 0, RATES - 1), trial.suggest_int("width", 0, WIDTHS - 1)
        dropout = trial.suggest_int("dropout", 0, DROPOUTS - 1)
        for step, loss in enumerate(table[rate][width][dropout]):
            steps += 1
            trial.report(loss, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    results, seconds = {}, {}
    for objective, trials in ((branin, 60), (hartmann, 100), (rosenbrock, 100), (training, 40)):
        start, best, spent = time.perf_counter(), [], []
        for seed in range(SEEDS):
            steps = 0
            study = optuna.create_study(
                sampler=optuna.samplers.TPESampler(seed=seed), pruner=optuna.pruners.MedianPruner())
            study.optimize(objective, n_trials=trials)
            best.append(study.best_value)
            spent.append(steps)
        results[objective.__name__] = best
        if any(spent):
            results["steps"] = spent
        seconds[objective.__name__] = (time.perf_counter() - start) / SEEDS / trials
        print(f"{objective.__name__}: {1e3 * seconds[objective.__name__]:.3f} ms a trial")
    for count, repeats in ((100, 50), (1000, 20), (10000, 3)):
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        uniform = optuna.distributions.FloatDistribution(0.0, 1.0)
        space = {f"x{i}": uniform for i in range(6)}
        draws = random.Random(0)
        study.add_trials([
            optuna.trial.create_trial(
                params={n: draws.random() for n in space}, distributions=space, value=draws.random())
            for _ in range(count)])
        study.ask(space)
        start = time.perf_counter()
        for _ in range(repeats):
            study.ask(space)
        print(f"a proposal after {count} trials: {(time.perf_counter() - start) / repeats * 1e3:.2f} ms")
    lines = ",\n".join(f'"{name}": {json.dumps(values)}' for name, values in results.items())
    (GOLDEN / "beside_optuna.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    curves() if sys.argv[1:] == ["curves"] else search()
