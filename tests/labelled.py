"""Compares what `firebox predict` and `firebox embed` said of texts with the exported model elsewhere:

    python labelled.py FOLDER

FOLDER has `model/` (`firebox export --format torch`), `model.onnx` with its tokenizer, `new.csv` with the texts in the
column `body`, and `labels.parquet` and `vectors.parquet` of it. Needs numpy, onnxruntime, polars, safetensors,
tokenizers and torch.
"""

import pathlib
import sys

import numpy as np
import onnxruntime
import polars as pl
import tokenizers
import torch

folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder / "model"))
import firebox_models  # noqa: E402

LIMIT = 1e-4


def log_softmax(scores):
    scores = scores.astype(np.float64) - scores.max()
    return scores - np.log(np.exp(scores).sum())


def main():
    model, card = firebox_models.load(folder / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model.onnx.tokenizer.json"))
    # What the file says of padding and of a length is not Firebox's, which reads each text alone.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    texts = pl.read_csv(folder / "new.csv")["body"].to_list()
    said, vectors = pl.read_parquet(folder / "labels.parquet"), pl.read_parquet(folder / "vectors.parquet")
    for row, text in enumerate(texts):
        found = said.row(row, named=True)
        assert found["row"] == row + 1
        ids = tokenizer.encode(text).ids
        longest = card["texts"]["longest"]
        ids = ids if len(ids) <= longest else ids[: longest - 1] + ids[-1:]
        tokens, lengths = torch.tensor([ids]), torch.tensor([len(ids)])
        with torch.no_grad():
            probabilities = model(tokens, lengths).sigmoid()[0].numpy()
            embedding = model.embed(tokens, lengths)[0].numpy()
        outputs = [one.name for one in session.get_outputs()]
        values = session.run(outputs, {"tokens": tokens.numpy(), "lengths": lengths.numpy()})
        elsewhere = dict(zip(outputs, values))
        assert np.abs(embedding - np.array(vectors["embedding"][row])).max() < LIMIT
        for place, (label, threshold) in enumerate(zip(card["classes"], card["texts"]["thresholds"])):
            own = found[f"probability_{label}"]
            assert abs(own - probabilities[place]) < LIMIT
            assert abs(own - elsewhere["probabilities"][0, place]) < LIMIT
            assert found[label] == int(np.float32(own) >= np.float32(threshold))
        assert text[found["evidence_start"] : found["evidence_end"]] == found["evidence"]
        first, last = elsewhere["first"][0], elsewhere["last"][0]
        best = max(((first[a] + last[b], a, b) for b in range(1, len(ids) - 1) for a in range(1, b + 1)))
        own = np.exp(log_softmax(first)[best[1]] + log_softmax(last)[best[2]])
        assert abs(found["evidence_probability"] - own) < LIMIT, (found, own)
        places = tokenizer.encode(text).offsets
        assert (found["evidence_start"], found["evidence_end"]) == (places[best[1]][0], places[best[2]][1]), text
    print(f"{len(texts)} texts agree")


main()
