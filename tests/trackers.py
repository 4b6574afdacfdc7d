"""What the real TensorBoard and the real MLflow read of what a run wrote, as one JSON object.

    python trackers.py tensorboard FOLDER
    python trackers.py mlflow ADDRESS-OR-FOLDER EXPERIMENT
    python trackers.py available

Needs the packages `tensorboard` and `mlflow` from PyPI.
"""

import json
import math
import os
import sys


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    # Every point: without this, only a sample of them is kept.
    board = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    board.Reload()
    tags = board.Tags()
    scalars = {tag: [[e.step, e.value] for e in board.Scalars(tag)] for tag in tags["scalars"]}
    histograms = {}
    for tag in tags["histograms"]:
        values = [(e.step, e.histogram_value) for e in board.Histograms(tag)]
        histograms[tag] = [[step, h.num, sum(h.bucket), h.min, h.max] for step, h in values]
    hparams, metrics, status = {}, [], None
    for tag, content in board.summary_metadata.items():
        if not tag.startswith("_hparams_/"):
            continue
        data = plugin_data_pb2.HParamsPluginData.FromString(content.plugin_data.content)
        if data.HasField("session_start_info"):
            for name, value in data.session_start_info.hparams.items():
                hparams[name] = getattr(value, value.WhichOneof("kind"))
        if data.HasField("experiment"):
            metrics = [info.name.tag for info in data.experiment.metric_infos]
        if data.HasField("session_end_info"):
            status = data.session_end_info.status
    return {
        "scalars": scalars,
        "histograms": histograms,
        "hparams": hparams,
        "metrics": metrics,
        "status": status,
    }


def mlflow(where, experiment):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=where)
    found = client.get_experiment_by_name(experiment)
    runs = []
    for run in client.search_runs([found.experiment_id]):
        history = {
            name: [[m.step, None if math.isnan(m.value) else m.value]
                   for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        runs.append({
            "name": run.info.run_name,
            "status": run.info.status,
            "params": dict(run.data.params),
            "metrics": history,
        })
    return {"runs": runs}


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "available":
        import mlflow as _, tensorboard as _  # noqa: F401
    else:
        answer = {"tensorboard": tensorboard, "mlflow": mlflow}[command](*rest)
        # TensorBoard and MLflow may print what they please.
        print("\n" + json.dumps(answer))
