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


class Draws:
    """Knuth's congruential generator in the place of NumPy's; the tests have the same."""

    def __init__(self, seed):
        self.state = seed
        for _ in range(4):
            self.one()

    def one(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 11) / 2**53

    def below(self, count):
        return int(self.one() * count)

    def uniform(self, low=0, high=1, size=None):
        return np.array([self.one() for _ in range(int(np.prod(size)))]).reshape(size)

    def rand(self, size):
        return self.uniform(size=(size,))

    def choice(self, count, p, size):
        # As numpy.random.RandomState.choice does it.
        cumulative = np.cumsum(p)
        return (cumulative / cumulative[-1]).searchsorted(self.rand(size), side="right")


def parzen():
    """Truncated normals, and densities of mixtures."""
    from optuna.samplers._tpe import _truncnorm
    from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator, _ParzenEstimatorParameters
    from optuna.samplers._tpe.sampler import default_weights

    ends = [(-1, 1), (-40, -30), (-1e3, -999), (3, 3.5), (-8, 0), (0, 50), (-5, 9), (1e-3, 2e-3), (-21, -19.5),
            (-0.5, 1e-9), (5.9, 6.1), (-30, 25), (0.2, 1e4), (-2e-5, 1e-5)]
    cases = {"log_mass": [], "quantile": [], "mixture": []}
    for a, b in ends:
        a, b = float(a), float(b)
        cases["log_mass"].append([a, b, _truncnorm._log_gauss_mass(np.array([a]), np.array([b]))[0]])
        for q in (0.0, 1e-9, 0.01, 0.3, 0.5, 0.77, 0.999, 1 - 1e-6):
            cases["quantile"].append([q, a, b, _truncnorm.ppf(np.array([q]), a, b)[0]])
    draws = Draws(11)
    for count, prior, clip, endpoints in ((0, 1.0, True, False), (1, 1.0, True, False), (2, 0.5, False, True),
                                          (7, 1.0, True, True), (60, 1.0, True, False), (130, 2.0, False, False)):
        parameters = _ParzenEstimatorParameters(prior, clip, endpoints, default_weights, True)
        points = [random_point(draws) for _ in range(count + 4)]
        columns = {name: np.array([p[name] for p in points], dtype=float) for name in SPACE}
        estimator = _ParzenEstimator({n: c[:count] for n, c in columns.items()}, SPACE, parameters)
        cases["mixture"].append({
            "prior_weight": prior, "magic_clip": clip, "endpoints": endpoints,
            "observations": [[float(columns[n][i]) for n in SPACE] for i in range(count)],
            "points": [[float(columns[n][i]) for n in SPACE] for i in range(count, count + 4)],
            "log_density": estimator.log_pdf({n: c[count:] for n, c in columns.items()}),
        })
    write("parzen", cases)


def random_point(draws, space=SPACE):
    """Internal values, some of them repeated."""
    from optuna._transform import _SearchSpaceTransform
    values = {}
    for name, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            values[name] = draws.below(len(distribution.choices))
        else:
            transform = _SearchSpaceTransform({name: distribution}, transform_0_1=True)
            values[name] = transform.untransform(np.array([round(draws.one(), 2)]))[name]
    return values


def volumes():
    """Ranks, hypervolumes and greedy selections of random points."""
    from optuna._hypervolume import _solve_hssp, compute_hypervolume
    from optuna.study._multi_objective import _fast_non_domination_rank, _is_pareto_front
    draws = Draws(23)
    cases = []
    for objectives, count, places in ((1, 9, 1), (2, 40, 2), (2, 25, 1), (3, 40, 2), (3, 30, 1), (4, 24, 2), (5, 12, 1)):
        rows = np.array([[round(draws.one(), places) for _ in range(objectives)] for _ in range(count)])
        reference = np.full(objectives, 1.1)
        enough = count // 3
        # Selections are made among the points of one front, of which some come twice.
        member = _is_pareto_front(rows, assume_unique_lexsorted=False)
        members = np.concatenate([rows[member], rows[member][::3]])
        cases.append({
            "rows": rows, "enough": enough,
            "front": member,
            "ranks": _fast_non_domination_rank(rows, n_below=enough),
            "reference": reference,
            "hypervolume": compute_hypervolume(rows, reference) if objectives > 1 else None,
            "members": members,
            "selected": [sorted(_solve_hssp(members, np.arange(len(members)), n, reference))
                         for n in range(1, len(members))] if objectives > 1 else [],
        })
    write("volumes", {"cases": cases})


def history(draws, count, directions, space_of, pruned=0.0, running=0.0, infeasible=0.0):
    """Frozen trials with random parameters."""
    from optuna.trial import TrialState, create_trial
    trials = []
    for number in range(count):
        space = space_of(draws)
        point = random_point(draws, space)
        shape = sum((float(v) + i) * (0.3 + i) % 1.0 for i, v in enumerate(point.values()))
        values = [round((shape * (k + 1) + draws.one()) % 3.0, 1) for k in range(len(directions))]
        kind = draws.one()
        arguments = {
            "params": {n: space[n].to_external_repr(v) for n, v in point.items()}, "distributions": space,
        }
        if infeasible > 0.0 and draws.one() < 0.9:
            arguments["constraints"] = {
                "0": round(draws.one() - 1 + infeasible, 1), "1": round(draws.one() - 1 + infeasible, 1)}
        if kind < pruned:
            steps = draws.below(4)
            curve = {step: round(draws.one(), 1) for step in range(steps)}
            if steps and draws.one() < 0.2:
                curve[steps - 1] = float("nan")
            trials.append(create_trial(state=TrialState.PRUNED, intermediate_values=curve, **arguments))
        elif kind < pruned + running:
            arguments.pop("constraints", None)
            trials.append(create_trial(state=TrialState.RUNNING, **arguments))
        elif kind > 0.97:
            trials.append(create_trial(state=TrialState.FAIL, **arguments))
        else:
            trials.append(create_trial(state=TrialState.COMPLETE, values=values, **arguments))
    return trials


def frozen(trial):
    return {
        "state": int(trial.state), "values": trial.values,
        "params": internal(trial.distributions, trial.params),
        "intermediate": trial.intermediate_values,
        "constraints": list(trial.constraints.values()) or None,
    }


def tpe():
    """What TPESampler proposes after recorded trials, drawing from `Draws` of the trial's number."""
    from optuna.samplers import TPESampler
    from optuna.trial import TrialState

    def whole(_):
        return SPACE

    def conditional(draws):
        names = (["kind", "mix", "rate"], ["kind", "layers", "width"], ["kind", "mix", "rate", "dropout"])[draws.below(3)]
        return {n: SPACE[n] for n in sorted(names)}

    one, more = ["minimize"], ["maximize", "minimize"]
    setups = [
        ("default", {}, one, whole, {"pruned": 0.2}),
        ("maximize", {}, ["maximize"], whole, {"pruned": 0.2, "running": 0.15, "infeasible": 0.4}),
        ("alone", {"multivariate": False}, one, whole, {"pruned": 0.2, "running": 0.1}),
        ("group", {"multivariate": True, "group": True}, one, conditional, {"pruned": 0.1, "running": 0.1}),
        ("dynamic", {}, one, conditional, {}),
        ("settings", {"prior_weight": 0.5, "consider_magic_clip": False, "consider_endpoints": True,
                      "constant_liar": False, "n_ei_candidates": 7, "n_startup_trials": 3}, one, whole, {"running": 0.2}),
        ("two", {}, more, whole, {}),
        ("three", {"multivariate": True}, more + ["minimize"], whole, {"running": 0.1, "infeasible": 0.2}),
        ("four", {}, more + more, whole, {}),
    ]
    cases = {}
    for seed, (name, settings, directions, space_of, states) in enumerate(setups):
        trials = history(Draws(seed), 70, directions, space_of, **states)
        proposals = []
        for count in (12, 20, 31, 50, 70):
            sampler = TPESampler(seed=0, **settings)
            sample, draws = sampler._sample, Draws(0)

            def seeded(study, trial, space):
                draws.__init__(trial.number)
                return sample(study, trial, space)

            sampler._sample = seeded
            sampler._rng = type("Rng", (), {"rng": draws})()
            study = optuna.create_study(directions=directions, sampler=sampler)
            study.add_trials(trials[:count])
            if sum(t.state in (TrialState.COMPLETE, TrialState.PRUNED) for t in study.trials) < 10:
                continue  # Before the first proposal of the method.
            proposals.append({"number": count, "params": internal(SPACE, study.ask(SPACE).params)})
        cases[name] = {
            "settings": {k.replace("n_ei_", "").replace("n_startup", "startup").replace("consider_", ""): v
                         for k, v in settings.items()},
            "directions": directions, "trials": [frozen(t) for t in trials], "proposals": proposals,
        }
    write("tpe", {name: [case] for name, case in cases.items()})


def curve(draws, steps):
    """A falling training curve with noise, sometimes with gaps, repeats, infinities and values that are no numbers."""
    end, speed, stride = draws.one(), 0.1 + draws.one(), 1 if draws.one() < 0.7 else 1 + draws.below(4)
    points = []
    for step in range(draws.below(3), steps, stride):
        value = round(end + math.exp(-speed * step) + 0.2 * draws.one(), 2)
        odd = draws.one()
        points.append((step, math.nan if odd < 0.02 else math.inf if odd < 0.03 else value))
    return points


def pruners():
    """Decisions of Optuna's pruners on trials of which four run at a time."""
    from optuna.pruners import (HyperbandPruner, MedianPruner, PatientPruner, PercentilePruner,
                                SuccessiveHalvingPruner, ThresholdPruner)
    from optuna.trial import TrialState
    setups = [
        ("median", MedianPruner(), 1), ("median_late", MedianPruner(3, 4, 3, n_min_trials=2), -1),
        ("percentile", PercentilePruner(25.0, 2, 1), 1), ("percentile_odd", PercentilePruner(61.8, 1), -1),
        ("halving", SuccessiveHalvingPruner(), 1), ("halving_fixed", SuccessiveHalvingPruner(2, 2, 1), -1),
        ("halving_bootstrap", SuccessiveHalvingPruner(1, 3, 0, 2), 1),
        ("hyperband", HyperbandPruner(), 1), ("hyperband_fixed", HyperbandPruner(1, 27, 2, 1), -1),
        ("patient", PatientPruner(None, 2, 0.01), 1), ("patient_median", PatientPruner(MedianPruner(2), 1), -1),
        ("threshold", ThresholdPruner(0.2, 1.5, 2, 2), 1),
        ("patient_halving", PatientPruner(SuccessiveHalvingPruner(1, 2), 1), 1),
        ("patient_hyperband", PatientPruner(HyperbandPruner(1, 27, 3), 0), -1),
    ]
    cases = {}
    for seed, (name, pruner, sign) in enumerate(setups):
        draws = Draws(seed + 100)
        study = optuna.create_study(
            study_name="curves", direction="minimize" if sign > 0 else "maximize", pruner=pruner)
        running, events = [], []
        for _ in range(500):
            if len(running) < 4:
                running.append((study.ask(), [(s, sign * v) for s, v in curve(draws, 30)]))
            trial, points = running[draws.below(4) % len(running)]
            if points:
                step, value = points.pop(0)
                trial.report(value, step)
                pruned = trial.should_prune()
                events.append([trial.number, step, value, pruned])
                state = TrialState.PRUNED if pruned else None
            else:
                events.append([trial.number])
                state = TrialState.COMPLETE
            if state is not None:
                study.tell(trial, 0.0 if state == TrialState.COMPLETE else None, state=state)
                running = [pair for pair in running if pair[0] is not trial]
        rungs = [t.system_attrs for t in study.trials]
        cases[name] = [{"maximize": sign < 0, "events": events, "attributes": rungs if any(rungs) else []}]
    write("pruners", cases)


def fanova():
    """Trees, their variances, and importances of whole studies."""
    from optuna._transform import _SearchSpaceTransform
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.importance._fanova._tree import _FanovaTree
    from optuna.trial import create_trial
    from sklearn.tree import DecisionTreeRegressor

    transform = _SearchSpaceTransform(SPACE, transform_log=False, transform_step=False)
    external = lambda point: {n: SPACE[n].to_external_repr(v) for n, v in point.items()}
    cases = {"trees": [], "studies": []}
    for seed, depth in ((1, 3), (2, 64)):
        draws = Draws(seed)
        rows = np.array([transform.transform(external(random_point(draws))) for _ in range(40)])
        targets = np.array([draws.one() * 3 + row[0] + 5 for row in rows])
        weights = np.array([draws.below(3) for _ in rows])
        tree = DecisionTreeRegressor(max_depth=depth, random_state=0).fit(rows, targets, sample_weight=weights)
        raw, analysed = tree.tree_, _FanovaTree(tree.tree_, transform.bounds)
        cases["trees"].append({
            "rows": rows, "targets": targets, "weights": weights, "depth": depth, "bounds": transform.bounds,
            "tree": {"feature": raw.feature, "threshold": raw.threshold, "left": raw.children_left,
                     "right": raw.children_right, "value": raw.value[:, 0, 0]},
            "variance": analysed.variance,
            "marginals": [{"columns": c, "variance": analysed.get_marginal_variance(np.array(c))}
                          for c in [*map(list, transform.column_to_encoded_columns), [0, 5], [5, 6, 1]]],
        })
    for seed, count in ((5, 40), (6, 150)):
        draws = Draws(seed)
        study, trials = optuna.create_study(), []
        for _ in range(count):
            point = random_point(draws)
            value = (math.log10(point["rate"]) + 3) ** 2 + (point["kind"] == 1) + 0.3 * abs(point["mix"]) + 0.2 * draws.one()
            study.add_trial(create_trial(params=external(point), distributions=SPACE, value=value))
            trials.append({"params": point, "value": value})
        runs = [get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=s)) for s in range(10)]
        cases["studies"].append({"trials": trials, "importances": {n: [r[n] for r in runs] for n in SPACE}})
    write("fanova", cases)


if __name__ == "__main__":
    # NumPy's default sort leaves equal numbers in an order that depends on the processor.
    argsort = np.argsort
    np.argsort = lambda a, axis=-1, kind=None: argsort(a, axis=axis, kind="stable")
    quasi()
    parzen()
    volumes()
    tpe()
    pruners()
    fanova()
