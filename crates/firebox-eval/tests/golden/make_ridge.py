"""Writes the golden values of ridge classifiers that `tests/scikit_learn.rs` compares with.

    python make_ridge.py     (needs scikit-learn and NumPy; takes seconds)

Inputs are rounded to f32 and saved with the results, so that no random generator has to agree.
"""

import json
import pathlib

import numpy as np
import sklearn
from sklearn.linear_model import RidgeClassifierCV
from sklearn.preprocessing import StandardScaler

PENALTIES = np.logspace(-3, 3, 10)
rng = np.random.default_rng(20260103)


def case(count, width, classes, shift):
    labels = np.arange(count) % classes
    make = lambda n: np.round(30 * np.cumsum(rng.normal(size=(n, width)), axis=1) + 5, 1)
    x, test = make(count), make(15)
    x[np.arange(count), labels % width] += shift
    x, test = x.astype(np.float32), test.astype(np.float32)
    scaler = StandardScaler().fit(x.astype(np.float64))
    model = RidgeClassifierCV(alphas=PENALTIES).fit(scaler.transform(x.astype(np.float64)), labels)
    scaled = scaler.transform(test.astype(np.float64))
    scores = model.decision_function(scaled)
    if classes == 2:
        # One number for the second class.
        scores = np.stack([-scores, scores], 1)
    floats = lambda values: [float(str(np.float32(value))) for value in np.asarray(values).ravel()]
    return {
        "classes": classes, "width": width, "rows": floats(x), "labels": labels.tolist(), "test": floats(test),
        "penalty": float(f"{model.alpha_:.9g}"), "scores": [float(f"{v:.9g}") for v in scores.ravel()],
        "predicted": model.predict(scaled).tolist(),
    }


cases = [case(40, 5, 2, 60), case(60, 8, 3, 20), case(24, 90, 4, 200), case(30, 60, 3, 0), case(9, 3, 3, 60)]
golden = {"scikit_learn": sklearn.__version__, "penalties": PENALTIES.tolist(), "ridge": cases}
path = pathlib.Path(__file__).with_name("ridge.json")
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path.stat().st_size, "bytes", [case["penalty"] for case in cases])
