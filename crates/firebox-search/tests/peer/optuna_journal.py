"""Optuna's side of the cross-checks of the journal (optuna 5.0.0 and later, from PyPI).

    optuna_journal.py write ADDRESS             begins studies with everything that a journal can hold
    optuna_journal.py extend ADDRESS STUDY N    continues a study by N trials
    optuna_journal.py dump ADDRESS              prints every study and trial as JSON

ADDRESS is a file, or redis://HOST:PORT/DATABASE.
"""

import json
import math
import sys
import warnings

import optuna
from optuna.storages import JournalStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.trial import TrialState

warnings.simplefilter("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)


def open_storage(address):
    redis = address.startswith("redis://")
    return JournalStorage(JournalRedisBackend(address) if redis else JournalFileBackend(address))


def everything(trial):
    x = trial.suggest_float("x", -5.0, 10.0)
    trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    trial.suggest_float("dropout", 0.0, 0.5, step=0.25)
    trial.suggest_int("layers", 1, 9, step=2)
    trial.suggest_int("hidden", 8, 512, log=True)
    kind = trial.suggest_categorical("kind", ["a", 'b "quoted" ü', None, True, 3, 2.5])
    if kind is None:
        trial.suggest_float("conditional", 0.0, 1.0)
    trial.set_user_attr("note", {"list": [1, 2.5, None], "kind": kind})
    trial.set_user_attr("not a number", math.nan)
    trial.set_constraint("memory", x - 5.0)
    for step in range(3):
        trial.report([x, math.nan, -math.inf][step] if trial.number % 4 == 0 else x / (step + 1), step)
    if trial.number % 5 == 3:
        raise optuna.TrialPruned()
    if trial.number % 5 == 4:
        raise ValueError("no luck")
    return math.inf if trial.number == 2 else x**2


def write(storage):
    removed = optuna.create_study(storage=storage, study_name="removed")
    removed.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    study = optuna.create_study(storage=storage, study_name="everything")
    study.set_metric_names(["loss"])
    study.set_user_attr("origin", "Optuna")
    study.enqueue_trial({"x": 1.5, "kind": None}, user_attrs={"memo": "first"})
    study.optimize(everything, n_trials=12, catch=ValueError)
    optuna.delete_study(storage=storage, study_name="removed")
    several = optuna.create_study(storage=storage, study_name="several", directions=["minimize", "maximize"])
    several.optimize(lambda t: (t.suggest_float("x", 0, 1), t.suggest_int("y", 0, 5)), n_trials=4)
    study.enqueue_trial({"x": 2.0})
    retry = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)
    retry(study, study.trials[4])
    study.ask()


def branin(trial):
    x, y = trial.suggest_float("x", -5.0, 10.0), trial.suggest_float("y", 0.0, 15.0)
    a = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    value = a * a + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10
    for step in range(8):
        trial.report(value + 7 - step, step)
    return value


def plain(value):
    """Numbers that JSON does not have, by their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def dump_trial(trial):
    time = lambda moment: moment and round(moment.timestamp() * 1e6)
    params = {}
    for name, distribution in trial.distributions.items():
        internal = float(distribution.to_internal_repr(trial.params[name]))
        params[name] = [json.loads(optuna.distributions.distribution_to_json(distribution)), internal]
    return {
        "number": trial.number,
        "state": int(trial.state),
        "values": plain(trial.values),
        "params": params,
        "intermediate": plain(trial.intermediate_values),
        "user": plain(trial.user_attrs),
        "system": plain(trial.system_attrs),
        "started": time(trial.datetime_start),
        "ended": time(trial.datetime_complete),
    }


def dump(storage):
    result = {}
    for summary in optuna.get_all_study_summaries(storage):
        study = optuna.load_study(storage=storage, study_name=summary.study_name)
        best = [t.number for t in study.best_trials] if any(
            t.state == TrialState.COMPLETE for t in study.trials
        ) else []
        result[summary.study_name] = {
            "directions": [int(direction) for direction in study.directions],
            "user": plain(study.user_attrs),
            "system": plain(study._storage.get_study_system_attrs(study._study_id)),
            "trials": [dump_trial(trial) for trial in study.trials],
            "best": best,
        }
    print(json.dumps(result))


def main():
    command, address, *rest = sys.argv[1:]
    storage = open_storage(address)
    if command == "write":
        write(storage)
    elif command == "extend":
        sampler = optuna.samplers.TPESampler(multivariate=True, group=True, n_startup_trials=5)
        study = optuna.load_study(storage=storage, study_name=rest[0], sampler=sampler)
        study.optimize(branin if rest[0] == "branin" else everything, n_trials=int(rest[1]), catch=ValueError)
    elif command == "dump":
        dump(storage)
    else:
        raise SystemExit(f"{command} is no command")


if __name__ == "__main__":
    main()
