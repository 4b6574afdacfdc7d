"""Records what Optuna, SciPy and NumPy do, for the tests of this crate.

    python -m pip install optuna==5.0.0 scipy scikit-learn
    python crates/firebox-search/tests/golden/make.py

Writes the JSON files beside itself. They hold no random numbers of Python: where Optuna draws, a small
congruential generator that the tests repeat takes the place of NumPy's.
"""

import json
import math
import pathlib
import warnings

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from scipy.stats import qmc

warnings.simplefilter("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)
HERE = pathlib.Path(__file__).parent

SPACE = {
    "dropout": FloatDistribution(0.0, 0.5, step=0.25),
    "kind": CategoricalDistribution(["gru", "lstm", "transformer"]),
    "layers": IntDistribution(1, 7, step=2),
    "mix": FloatDistribution(-1.0, 2.0),
    "rate": FloatDistribution(1e-5, 1e-1, log=True),
    "width": IntDistribution(8, 512, log=True),
}


def plain(value):
    """A value that JSON has: NaN is null, infinities are texts."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, (bool, np.bool_)) or value is None:
        return None if value is None else bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        value = float(value)
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    return value


def write(name, cases):
    lines = ",\n".join(
        f"{json.dumps(key)}: " + (
            "[\n" + ",\n".join(json.dumps(plain(v), separators=(",", ":")) for v in value) + "\n]"
            if isinstance(value, list) and value
            else json.dumps(plain(value), separators=(",", ":"))
        )
        for key, value in cases.items()
    )
    (HERE / f"{name}.json").write_text("{\n" + lines + "\n}\n")


def internal(space, params):
    return {name: space[name].to_internal_repr(value) for name, value in params.items()}


def quasi():
    """Points of the sequences, and the trials of the samplers that use them."""
    cases = {}
    for name, engine, dimensions in (("sobol", qmc.Sobol, 64), ("halton", qmc.Halton, 20)):
        points = engine(dimensions, scramble=False).random(2048)
        cases[name] = [{"index": i, "point": points[i]} for i in (0, 1, 2, 3, 7, 100, 1023, 2047)]
    for kind in ("sobol", "halton"):
        sampler = optuna.samplers.QMCSampler(qmc_type=kind, seed=0)
        study = optuna.create_study(sampler=sampler)
        # The sampler learns the space from the first trial.
        study.enqueue_trial({n: SPACE[n].to_external_repr(d) for n, d in
                             {"dropout": 0.0, "kind": 0, "layers": 1, "mix": 0.0, "rate": 1e-3, "width": 8}.items()})
        trials = []
        for number in range(33):
            trial = study.ask(SPACE)
            if number > 0:
                trials.append(internal(SPACE, trial.params))
            study.tell(trial, 0.0)
        cases[f"optuna_{kind}"] = trials
    grid = {"dropout": [0.0, 0.25, 0.5], "kind": ["gru", "lstm"], "layers": [1, 2, 3]}
    space = {"dropout": FloatDistribution(0.0, 0.5, step=0.25), "kind": CategoricalDistribution(["gru", "lstm"]),
             "layers": IntDistribution(1, 3)}
    study = optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed=9))
    cases["optuna_grid"] = []
    for _ in range(18):
        # Without an end of the trials: the sampler stops the study at the last one, outside of a loop.
        trial = study.ask(space)
        cases["optuna_grid"].append(
            {"params": internal(space, trial.params), "system_attrs": study.trials[-1].system_attrs})
    write("quasi", cases)


if __name__ == "__main__":
    quasi()
