"""Writes the golden values that `tests/scikit_learn.rs` compares with.

    python make.py     (needs scikit-learn and NumPy; takes seconds)

Inputs are rounded to f32 and saved with the results, so that no random generator has to agree.
"""

import json
import pathlib
import warnings

import numpy as np
import scipy.stats
import sklearn
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

warnings.simplefilter("ignore")
rng = np.random.default_rng(20260101)


def floats(values):
    # The shortest text that reads back as the same f32.
    return [float(str(np.float32(value))) for value in np.asarray(values).ravel()]


def exact(values):
    return [float(value) for value in np.asarray(values).ravel()]


def metrics_case(classes, count, skill):
    truth = rng.integers(0, classes, count)
    # Some classes are rare, one may be missing from the truth or the predictions.
    truth[truth == classes - 1] = rng.choice(classes - 1, (truth == classes - 1).sum())
    predicted = np.where(rng.random(count) < skill, truth, rng.integers(0, classes, count))
    macro = precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)
    weighted = precision_recall_fscore_support(truth, predicted, average="weighted", zero_division=0)
    return {
        "classes": classes,
        "truth": truth.tolist(),
        "predicted": predicted.tolist(),
        "confusion": confusion_matrix(truth, predicted, labels=range(classes)).ravel().tolist(),
        "metrics": {
            "accuracy": accuracy_score(truth, predicted),
            "balanced_accuracy": balanced_accuracy_score(truth, predicted),
            "macro_precision": macro[0],
            "macro_recall": macro[1],
            "macro_f1": macro[2],
            "weighted_precision": weighted[0],
            "weighted_recall": weighted[1],
            "weighted_f1": weighted[2],
        },
    }


def rows(count, width, classes, shift):
    labels = np.arange(count) % classes
    walk = np.cumsum(rng.normal(size=(count, width)), axis=1)  # collinear, as windows are
    x = 40.0 * walk + 7.0
    x[np.arange(count), labels % width] += 40.0 * shift
    return np.round(x, 1).astype(np.float32), labels


def logistic_case(count, width, classes, l2):
    x, y = rows(count, width, classes, 1.5)
    test, _ = rows(20, width, classes, 1.5)
    scaler = StandardScaler().fit(x.astype(np.float64))
    # scikit-learn fits two classes with one weight vector: see the documentation of the crate.
    c = (2.0 if classes == 2 else 1.0) / l2
    model = LogisticRegression(C=c, tol=1e-10, max_iter=100_000)
    model.fit(scaler.transform(x.astype(np.float64)), y)
    probabilities = model.predict_proba(scaler.transform(test.astype(np.float64)))
    return {
        "classes": classes, "width": width, "l2": l2,
        "rows": floats(x), "labels": y.tolist(), "test": floats(test),
        "probabilities": exact(probabilities),
    }


def neighbours_case(count, width, classes, k, metric):
    x, y = rows(count, width, classes, 1.0)
    test, _ = rows(60, width, classes, 1.0)
    scaler = StandardScaler().fit(x.astype(np.float64))
    model = KNeighborsClassifier(k, metric=metric, algorithm="brute")
    model.fit(scaler.transform(x.astype(np.float64)), y)
    scaled = scaler.transform(test.astype(np.float64))
    votes = model.predict_proba(scaled)
    ordered = np.sort(votes, axis=1)
    return {
        "classes": classes, "width": width, "k": k, "metric": metric,
        "rows": floats(x), "labels": y.tolist(), "test": floats(test),
        "predicted": model.predict(scaled).tolist(),
        # Equal votes are decided in another way here; those rows are not compared.
        "tied": (ordered[:, -1] - ordered[:, -2] < 1e-9).tolist(),
    }


def bootstrap_case():
    right = (rng.random(300) < 0.8).astype(float)
    other = np.where(rng.random(300) < 0.8, right, (rng.random(300) < 0.6).astype(float))
    def interval(values):
        result = scipy.stats.bootstrap(
            (values,), np.mean, method="percentile", n_resamples=20_000, random_state=1
        )
        return exact(result.confidence_interval)
    return {
        "right": right.tolist(), "other": other.tolist(),
        "accuracy": interval(right), "difference": interval(right - other),
    }


def projection_case():
    x = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 11)) + 0.1 * rng.normal(size=(40, 11)) + 3.0
    x = np.round(x, 2).astype(np.float32)
    pca = PCA(2, svd_solver="full").fit(x.astype(np.float64))
    return {
        "width": 11, "rows": floats(x),
        "points": exact(pca.transform(x.astype(np.float64))),
        "explained": exact(pca.explained_variance_ratio_),
    }


golden = {
    "scikit_learn": sklearn.__version__,
    "metrics": [metrics_case(2, 37, 0.7), metrics_case(4, 90, 0.5), metrics_case(9, 120, 0.3)],
    "logistic": [
        logistic_case(30, 4, 2, 1.0),
        logistic_case(60, 7, 3, 0.1),
        logistic_case(24, 40, 4, 2.0),
        logistic_case(45, 9, 5, 100.0),
    ],
    "neighbours": [
        neighbours_case(50, 5, 3, 1, "euclidean"),
        neighbours_case(61, 8, 4, 5, "euclidean"),
        neighbours_case(61, 8, 4, 7, "cosine"),
    ],
    "bootstrap": bootstrap_case(),
    "projection": projection_case(),
}
path = pathlib.Path(__file__).with_name("scikit_learn.json")
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(path.stat().st_size, "bytes")
