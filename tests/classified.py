"""Makes the scores of a run of classifiers, of clusters, of a pre-trained encoder or of texts again from the table of its
test windows or texts:

    python classified.py RUN

RUN is the folder of a run of `finetune`, `multitimeframe`, `pseudolabel`, `pretrain` or `text`, with `test.parquet` and
`scores.json`.
Needs numpy and polars.
"""

import json
import pathlib
import sys

import numpy as np
import polars as pl

run = pathlib.Path(sys.argv[1])
table = pl.read_parquet(run / "test.parquet")
figures = json.loads((run / "scores.json").read_text())
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


def pretrain():
    global truth
    evaluation, reconstruction = figures["evaluation"], figures["reconstruction"]
    if evaluation is not None:
        told = table.filter(pl.col("majority_class").is_not_null())
        assert len(told) == evaluation["windows"][2], (len(told), evaluation["windows"])
        truth = told["truth"].to_numpy()
        subjects = {
            "pre-trained": "pre_trained_encoder",
            "random-encoder": "randomly_initialised_encoder",
            "raw-windows": "raw_windows",
            "majority": "majority_class",
        }
        heads = {"logistic": "_linear_probe", "neighbours": "_nearest_neighbours", None: ""}
        for score in evaluation["scores"]:
            start, end = subjects[score["subject"]], heads[score["head"]]
            names = [start + end] if score["runs"] == 1 else [f"{start}_{n + 1}{end}" for n in range(score["runs"])]
            said = [told[name].to_numpy() for name in names]
            for name, of in [("accuracy", accuracy), ("macro-f1", macro_f1)]:
                agrees(np.mean([of(one) for one in said]), score["metrics"][name]["value"], (names, name))
    if reconstruction is not None:
        restored = table.filter(pl.col("hidden_values").is_not_null())
        assert len(restored) == reconstruction["windows"], (len(restored), reconstruction["windows"])
        hidden = restored["hidden_values"].to_numpy()
        columns = [column for column in table.columns if column.startswith("error_")]
        for column, score in zip(columns, reconstruction["scores"], strict=True):
            mean = float(np.sum(restored[column].to_numpy() * hidden) / np.sum(hidden))
            agrees(mean, score["mean_squared_error"]["value"], column)


def labels_f1(truth, said):
    """F1 of each column; 0 where a label neither holds nor is told."""
    hits = np.sum(truth & said, axis=0)
    all = np.sum(truth, axis=0) + np.sum(said, axis=0)
    return np.where(all > 0, 2 * hits / np.maximum(all, 1), 0.0), 2 * hits.sum() / max(all.sum(), 1)


def text():
    results = figures["results"]
    # In the order of the columns, as thresholds are.
    start = "probability_"
    names = [column.removeprefix(start) for column in table.columns if column.startswith(start)]
    cells = lambda start: table.select([start + name for name in names]).to_numpy().astype(bool)
    truth = cells("true_")
    methods = {"encoder": cells(""), "every label": np.ones_like(truth)}
    if f"words_{names[0]}" in table.columns:
        methods["words (TF-IDF, logistic)"] = cells("words_")
    for method, said in methods.items():
        expected = results["labels"][method]
        f1, micro = labels_f1(truth, said)
        agrees(float(f1.mean()), expected["macro_f1"]["value"], (method, "macro"))
        agrees(float(micro), expected["micro_f1"]["value"], (method, "micro"))
        agrees(float(np.mean((said == truth).all(axis=1))), expected["exact_labels"], (method, "exact"))
    probabilities = table.select([f"probability_{name}" for name in names]).to_numpy()
    assert (methods["encoder"] == (probabilities >= np.array(results["thresholds"], dtype=np.float32))).all()
    if results["evidence"] is not None:
        of = table.filter(pl.col("true_evidence_start").is_not_null())
        assert len(of) == results["evidence"]["texts"], (len(of), results["evidence"])
        agrees(of["evidence_exact"].mean(), results["evidence"]["exact"]["value"], "exact evidence")
        agrees(of["evidence_token_f1"].mean(), results["evidence"]["token_f1"]["value"], "evidence")
        same = (of["evidence_start"] == of["true_evidence_start"]) & (of["evidence_end"] == of["true_evidence_end"])
        assert (same == (of["evidence_exact"] == 1)).all()


if figures.get("results") is None:
    pretrain()
elif "thresholds" in figures["results"]:
    text()
else:
    figures = figures["results"]
    truth = table["truth"].to_numpy()
    assert len(table) == figures["windows"], (len(table), figures["windows"])
    if "shares" in figures:
        finetune()
    elif "standings" in figures:
        multitimeframe()
    else:
        pseudolabel()
print(f"{checked} scores of {len(table)} rows agree")
