"""Makes the scores of a run of classifiers, or of clusters, again from the table of its test windows:

    python classified.py RUN

RUN is the folder of a run of `finetune`, `multitimeframe` or `pseudolabel`, with `test.parquet` and `scores.json`.
Needs numpy and polars.
"""

import json
import pathlib
import sys

import numpy as np
import polars as pl

run = pathlib.Path(sys.argv[1])
table = pl.read_parquet(run / "test.parquet")
figures = json.loads((run / "scores.json").read_text())["results"]
truth = table["truth"].to_numpy()
assert len(table) == figures["windows"], (len(table), figures["windows"])
checked = 0


def accuracy(said):
    return float(np.mean(said == truth))


def macro_f1(said):
    """Classes that are neither true nor said of any window do not count, as in scikit-learn."""
    scores = []
    for name in sorted(set(truth) | set(said)):
        hits = np.sum((said == name) & (truth == name))
        scores.append(2 * hits / (np.sum(said == name) + np.sum(truth == name)))
    return float(np.mean(scores))


def agrees(found, expected, of):
    global checked
    assert abs(found - expected) <= 1e-12, (of, found, expected)
    checked += 1


def classifiers(columns, metrics):
    """The scores of classifiers, in the mean over those of these columns."""
    said = [table[column].to_numpy() for column in columns]
    for name, of in [("accuracy", accuracy), ("macro-f1", macro_f1)]:
        agrees(np.mean([of(one) for one in said]), metrics[name]["value"], (columns, name))


def finetune():
    for share in figures["shares"]:
        for arm in share["arms"]:
            start = f"share-{share['share']:g}/{arm['arm']}/"
            columns = [column for column in table.columns if column.startswith(start)]
            assert len(columns) == arm["seeds"], (start, table.columns)
            classifiers(columns, arm["metrics"])
    # The classifier that was kept: its classes are the most probable ones, and its card has its scores.
    probabilities = table.select([f"probability_{name}" for name in figures["classes"]]).to_numpy()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    names = np.array(figures["classes"])[probabilities.argmax(axis=1)]
    assert (names == table["class"].to_numpy()).all()
    card = json.loads((run / "model" / "model.json").read_text())
    scores = dict(card["scores"]) if isinstance(card["scores"], list) else card["scores"]
    agrees(accuracy(table["class"].to_numpy()), scores["test/accuracy"], "kept")
    agrees(macro_f1(table["class"].to_numpy()), scores["test/macro_f1"], "kept")


def multitimeframe():
    assert table["fold"].is_sorted() and table["fold"].n_unique() > 1
    for standing in figures["standings"]:
        classifiers([standing["name"].lower().replace(" ", "_")], standing["metrics"])


def purity(column):
    found = table[column].to_numpy()
    most = [np.unique(truth[found == cluster], return_counts=True)[1].max() for cluster in np.unique(found)]
    return sum(most) / len(truth)


def pseudolabel():
    agrees(purity("trained"), figures["subjects"][0]["purity"]["value"], "trained")
    agrees(purity("iteration_1"), figures["subjects"][1]["purity"]["value"], "before training")
    agrees(purity("windows"), figures["subjects"][2]["purity"]["value"], "windows")
    begun = [column for column in table.columns if column.startswith("iteration_")]
    for column, expected in zip(begun + ["trained"], figures["by_iteration"], strict=True):
        agrees(purity(column), expected["purity"], column)


if "shares" in figures:
    finetune()
elif "standings" in figures:
    multitimeframe()
else:
    pseudolabel()
print(f"{checked} scores of {len(table)} rows agree")
