"""Writes the golden values of clusters that `tests/scikit_learn.rs` compares with.

    python make_clustering.py     (needs scikit-learn and NumPy; takes seconds)

Inputs are rounded to f32 and saved with the results, so that no random generator has to agree. Lloyd's iterations are
compared from the same centers; k-means++ by the inertia that it leads to.
"""

import json
import pathlib

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

rng = np.random.default_rng(20260102)


def lloyd(rows, width, clusters, spread):
    centers = rng.normal(0, spread, (clusters, width))
    x = (centers[rng.integers(0, clusters, rows)] + rng.normal(0, 1, (rows, width))).astype(np.float32)
    start = x[rng.choice(rows, clusters, replace=False)].astype(np.float64)
    fitted = KMeans(clusters, init=start, n_init=1, algorithm="lloyd").fit(x.astype(np.float64))
    best = KMeans(clusters, n_init=50, random_state=0).fit(x.astype(np.float64))
    return {
        "width": width,
        "rows": [float(str(value)) for value in x.ravel()],
        "start": [float(str(value)) for value in start.astype(np.float32).ravel()],
        "labels": fitted.labels_.tolist(),
        "centers": fitted.cluster_centers_.ravel().tolist(),
        "inertia": fitted.inertia_,
        "best": best.inertia_,
    }


def agreement(rows, classes, clusters, skill):
    truth = rng.integers(0, classes, rows)
    found = np.where(rng.random(rows) < skill, truth % clusters, rng.integers(0, clusters, rows))
    return {
        "truth": truth.tolist(),
        "clusters": found.tolist(),
        "purity": contingency_matrix(truth, found).max(0).sum() / rows,
        "normalised_information": normalized_mutual_info_score(truth, found),
        "adjusted_rand": adjusted_rand_score(truth, found),
    }


golden = {
    "lloyd": [lloyd(90, 3, 4, 3.0), lloyd(60, 5, 7, 1.0), lloyd(40, 1, 2, 0.5)],
    "agreement": [agreement(120, 5, 5, 0.7), agreement(90, 9, 4, 0.5), agreement(50, 3, 8, 0.0), agreement(7, 1, 3, 0.0)],
}
path = pathlib.Path(__file__).parent / "clustering.json"
path.write_text(json.dumps(golden) + "\n")
print(path, path.stat().st_size)
