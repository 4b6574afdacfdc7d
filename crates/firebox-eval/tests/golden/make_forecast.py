"""Writes `forecast.json`, what `tests/forecast.rs` compares with:

    python make_forecast.py

Errors and R² by scikit-learn, MASE by its definition in NumPy, and ridge regression by scikit-learn, of which ours
takes the penalty of each output in units of the samples and of the mean variance of the features. Needs scikit-learn and NumPy.
"""

import json
import pathlib

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

PENALTIES = [1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]


def scores(random):
    windows, outputs = 41, 3
    truth = 100 + 5 * random.standard_normal((windows, outputs)) * [1, 3, 0.2]
    model = [truth + random.standard_normal(truth.shape) for _ in range(2)]
    naive = truth + 2 * random.standard_normal(truth.shape)
    scales = np.abs(random.standard_normal((windows, outputs))) + 0.5

    def of(found):
        columns = range(outputs)
        return {
            "mae": [mean_absolute_error(truth[:, c], found[:, c]) for c in columns],
            "rmse": [mean_squared_error(truth[:, c], found[:, c]) ** 0.5 for c in columns],
            "r2": [r2_score(truth[:, c], found[:, c]) for c in columns],
            "mase": list((np.abs(truth - found) / scales).mean(0)),
        }

    both = [of(run) for run in model]
    return {
        "truth": truth.ravel().tolist(), "scales": scales.ravel().tolist(), "naive": naive.ravel().tolist(),
        "model": [run.ravel().tolist() for run in model], "naive_scores": of(naive),
        "model_scores": {key: np.mean([run[key] for run in both], 0).tolist() for key in both[0]},
    }


def ridge(random):
    train, validation, test, width, outputs = 60, 25, 12, 9, 2
    rows = random.standard_normal((train + validation + test, width)) * np.linspace(0.3, 3, width) + 4
    rows[:, 3] = rows[:, 2] + 1e-3 * random.standard_normal(len(rows))
    rows[:, 8] = 7
    targets = rows @ random.standard_normal((width, outputs)) + [3, 0.02] * random.standard_normal((len(rows), outputs))
    rows, targets = rows.astype(np.float32).astype(float), targets.astype(np.float32).astype(float)
    x, y = rows[:train], targets[:train]
    variance = x.var(0).mean()
    held_out = slice(train, train + validation)
    best = [None] * outputs
    for output in range(outputs):
        for penalty in PENALTIES:
            fit = Ridge(alpha=penalty * variance * train).fit(x, y[:, output])
            error = ((fit.predict(rows[held_out]) - targets[held_out, output]) ** 2).sum()
            if best[output] is None or error < best[output][0]:
                best[output] = (error, penalty, fit.predict(rows[train + validation:]))
    return {
        "sizes": [train, validation, test], "width": width, "rows": rows.ravel().tolist(),
        "targets": targets.ravel().tolist(), "penalties": [penalty for _, penalty, _ in best],
        "predicted": np.stack([predicted for *_, predicted in best], 1).ravel().tolist(),
    }


def main():
    random = np.random.default_rng(5)
    golden = {"scores": scores(random), "ridge": ridge(random)}
    path = pathlib.Path(__file__).parent / "forecast.json"
    path.write_text(json.dumps(golden) + "\n")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
