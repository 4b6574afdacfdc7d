"""Runs exported models in onnxruntime and PyTorch on batches whose results Firebox has written beside them:

    python peers.py FOLDER

FOLDER has a folder for each model with `model.safetensors`, `model.json`, `encoder.onnx` and `head.onnx`, and batches
`case-N.safetensors`: what is given, and every output that is expected. `peers.rs` writes it. A difference above 1e-4
of the largest value (or of one) ends with an error. Needs onnx, onnxruntime, torch and safetensors.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))
import firebox_models  # noqa: E402

LIMIT = 1e-4


def compare(what, found, expected):
    found = np.asarray(found)
    assert found.shape == expected.shape, f"{what}: {found.shape} where Firebox has {expected.shape}"
    assert np.isfinite(found).all(), f"{what}: not finite"
    error = np.abs(found - expected).max(initial=0) / max(1, np.abs(expected).max(initial=0))
    assert error <= LIMIT, f"{what}: differs by {error:.1e}"
    return error


def given(case, tensor):
    """The inputs of a batch by name, as this library has them."""
    kinds = {"input": np.float32, "tokens": np.int64, "lengths": np.int64, "mask": np.bool_, "statics": np.float32}
    return {name: tensor(case[name].astype(kind)) for name, kind in kinds.items() if name in case}


def probabilities(case):
    """Those of the expected logits in float64: of each label of a text by itself, of classes together."""
    logits = case["logits"].astype(np.float64)
    if "tokens" in case:
        return 1 / (1 + np.exp(-logits))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def check_onnx(path, cases):
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}
    outputs = [one.name for one in session.get_outputs()]
    worst = 0
    for case in cases:
        feed = {name: value for name, value in given(case, np.asarray).items() if name in wanted}
        found = dict(zip(outputs, session.run(outputs, feed)))
        for name, value in found.items():
            what = f"{path.parent.name}/{path.name} {name} of {next(iter(feed.values())).shape}"
            of_tokens = name == "encoding" and "tokens" in feed
            if of_tokens or name in ("reconstruction", "first", "last"):
                # What stands after a length means nothing.
                valid = np.arange(value.shape[1])[None] < feed["lengths"][:, None]
                valid = valid.reshape(valid.shape + (1,) * (value.ndim - 2))
                worst = max(worst, compare(what, value * valid, case[name] * valid))
            elif name == "probabilities":
                assert ((value >= 0) & (value <= 1)).all(), what
                worst = max(worst, compare(what, value, probabilities(case)))
            else:
                assert name in case, f"{what}: there is nothing of Firebox to compare it with"
                worst = max(worst, compare(what, value, case[name]))
    return worst


def check_torch(folder, cases):
    model, _ = firebox_models.load(folder)
    worst = 0
    for case in cases:
        feed = given(case, torch.from_numpy)
        x, lengths = feed.get("input", feed.get("tokens")), feed["lengths"]
        with torch.no_grad():
            for name in ["encoding", "embedding", "logits"]:
                # What `Bert` calls `embed` is its table of tokens.
                if name not in case or (name == "embedding" and isinstance(model, firebox_models.Bert)):
                    continue
                call = {"encoding": "encode", "embedding": "embed", "logits": "forward"}[name]
                what = f"{folder.name} {name} of {tuple(x.shape)} in PyTorch"
                found, expected = getattr(model, call)(x, lengths).numpy(), case[name]
                if "tokens" in feed:
                    # PyTorch has no attention to nothing.
                    some = feed["lengths"].numpy() > 0
                    found, expected = found[some], expected[some]
                    if name == "encoding":
                        valid = firebox_models.valid_steps(lengths, x.shape[1]).numpy()[some]
                        found, expected = found * valid, expected * valid
                worst = max(worst, compare(what, found, expected))
            if "first" in case:
                valid = firebox_models.valid_steps(lengths, x.shape[1]).numpy()[..., 0]
                for name, found in zip(["first", "last"], model.evidence(x, lengths)):
                    worst = max(worst, compare(f"{folder.name} {name}", found.numpy() * valid, case[name] * valid))
            if "forecast" in case:
                found = model(x, lengths, feed.get("statics")).numpy()
                worst = max(worst, compare(f"{folder.name} forecast in PyTorch", found, case["forecast"]))
            if "reconstruction" in case:
                valid = firebox_models.valid_steps(lengths, x.shape[1]).numpy()
                found = model(x, lengths, feed["mask"]).numpy() * valid
                expected = case["reconstruction"] * valid
                worst = max(worst, compare(f"{folder.name} reconstruction in PyTorch", found, expected))
    return worst


def write_from_torch(folder, case):
    """A model with PyTorch's own weights as its state dict, and what it makes of a batch, for Firebox to read."""
    _, card = firebox_models.load(folder)
    torch.manual_seed(1)
    model = firebox_models.build(card["architecture"]).eval()
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    save_file(model.state_dict(), folder / "from-torch.safetensors")
    feed = given(case, torch.from_numpy)
    x, lengths = feed.get("input", feed.get("tokens")), feed["lengths"]
    with torch.no_grad():
        out = {}
        if "embedding" in case and not isinstance(model, firebox_models.Bert):
            out["embedding"] = model.embed(x, lengths).contiguous()
        if "logits" in case:
            out["logits"] = model(x, lengths)
    save_file(out, folder / "from-torch-case.safetensors")


def main():
    folders = sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir())
    for folder in folders:
        cases = [load_file(path) for path in sorted(folder.glob("case-*.safetensors"))]
        assert cases, f"{folder}: no batches"
        errors = [check_onnx(path, cases) for path in sorted(folder.glob("*.onnx"))]
        write_from_torch(folder, cases[0])
        print(f"{folder.name}: onnxruntime {max(errors):.1e}, PyTorch {check_torch(folder, cases):.1e}")
    print(f"{len(folders)} models agree")


if __name__ == "__main__":
    main()
