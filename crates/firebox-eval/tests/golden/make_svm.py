"""Writes the golden values of support vector machines that `tests/scikit_learn.rs` compares with.

    python make_svm.py     (needs scikit-learn and NumPy; takes seconds)

Inputs are rounded to f32 and saved with the results, so that no random generator has to agree.
"""

import json
import pathlib

import numpy as np
import sklearn
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

rng = np.random.default_rng(20260102)


def case(count, width, classes, c):
    labels = np.arange(count) % classes
    make = lambda n: np.round(30 * np.cumsum(rng.normal(size=(n, width)), axis=1) + 5, 1)
    x, test = make(count), make(15)
    x[np.arange(count), labels % width] += 60
    x, test = x.astype(np.float32), test.astype(np.float32)
    scaler = StandardScaler().fit(x.astype(np.float64))
    model = SVC(C=c, kernel="rbf", gamma="scale", tol=1e-7, break_ties=True).fit(scaler.transform(x.astype(np.float64)), labels)
    scaled = scaler.transform(test.astype(np.float64))
    scores = model.decision_function(scaled)
    if classes == 2:
        # One number for the second class; as a vote and a confidence of both.
        part = scores / (3 * (np.abs(scores) + 1))
        scores = np.stack([(scores <= 0) - part, (scores > 0) + part], 1)
    floats = lambda values: [float(str(np.float32(value))) for value in np.asarray(values).ravel()]
    return {
        "classes": classes, "width": width, "c": c, "rows": floats(x), "labels": labels.tolist(),
        "test": floats(test), "scores": [float(f"{v:.9g}") for v in scores.ravel()],
        "predicted": model.predict(scaled).tolist(),
    }


cases = [case(40, 5, 2, 1.0), case(60, 8, 3, 0.3), case(45, 12, 5, 50.0), case(30, 60, 3, 1000.0)]
path = pathlib.Path(__file__).with_name("svm.json")
path.write_text(json.dumps({"scikit_learn": sklearn.__version__, "svm": cases}, separators=(",", ":")) + "\n")
print(path.stat().st_size, "bytes")
