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
    board = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0, "images": 0})
    board.Reload()
    tags = board.Tags()
    scalars = {tag: [[e.step, number(e.value)] for e in board.Scalars(tag)] for tag in tags["scalars"]}
    histograms = {}
    for tag in tags["histograms"]:
        values = [(e.step, e.histogram_value) for e in board.Histograms(tag)]
        histograms[tag] = [[step, h.num, sum(h.bucket), h.min, h.max] for step, h in values]
    hparams, metrics, status, graphs = {}, [], None, {}
    images = {tag: picture(board.Images(tag)[0]) for tag in tags["images"]}
    for tag, content in board.summary_metadata.items():
        if tag == "custom_scalars__config__":
            graphs = layout(board.Tensors(tag)[0].tensor_proto)
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
        "images": images,
        "graphs": graphs,
    }


def number(value):
    """As JSON has it, which knows no other numbers."""
    return value if math.isfinite(value) else None


def layout(tensor):
    """The curves of each graph of the plugin for custom scalars."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    found = layout_pb2.Layout.FromString(tensor.string_val[0])
    return {chart.title: list(chart.multiline.tag) for group in found.category for chart in group.chart}


def picture(image):
    """Width, height and colours of a PNG file, every pixel of which is read and every checksum held."""
    import struct
    import zlib

    data, at, chunks = image.encoded_image_string, 8, {}
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        (length,) = struct.unpack(">I", data[at:at + 4])
        kind, body = data[at + 4:at + 8], data[at + 8:at + 8 + length]
        (checksum,) = struct.unpack(">I", data[at + 8 + length:at + 12 + length])
        assert checksum == zlib.crc32(kind + body), kind
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    assert (image.width, image.height) == (width, height)
    rows = zlib.decompress(chunks[b"IDAT"])
    assert len(rows) == height * (width + 1)
    return [width, height, len(set(rows))]


def mlflow(where, experiment):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=where)
    found = client.get_experiment_by_name(experiment)
    runs = []
    for run in client.search_runs([found.experiment_id]):
        history = {
            name: [[m.step, number(m.value)] for m in client.get_metric_history(run.info.run_id, name)]
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
