//! The messages of TensorBoard's plugin for hyper-parameters (`tensorboard/plugins/hparams`:
//! `plugin_data.proto` and `api.proto`).

use serde_json::Value;

use super::Ending;
use super::protobuf::Message;

/// Curves by which the plugin compares runs.
const METRICS: [&str; 4] =
    ["epoch/validation_loss", "epoch/train_loss", "test/accuracy", "test/reconstruction_error"];
const VERSION: u64 = 0;

/// What the plugin's tables have as columns.
pub(super) fn experiment(settings: &[(String, Value)]) -> Message {
    let mut experiment = Message::new();
    for (name, value) in settings {
        // `DATA_TYPE_STRING`, `DATA_TYPE_BOOL`, `DATA_TYPE_FLOAT64`.
        let kind = match value {
            Value::Bool(_) => 2,
            Value::Number(_) => 3,
            _ => 1,
        };
        let values = Message::new().message(1, proto_value(value));
        let info = Message::new().text(1, name).int(4, kind).message(5, values);
        experiment = experiment.message(4, info);
    }
    for metric in METRICS {
        let name = Message::new().text(2, metric);
        experiment = experiment.message(5, Message::new().message(1, name));
    }
    summary("_hparams_/experiment", 2, experiment)
}

/// The settings of this run.
pub(super) fn session_start(settings: &[(String, Value)], group: &str, seconds: f64) -> Message {
    let mut session = Message::new();
    for (name, value) in settings {
        let entry = Message::new().text(1, name).message(2, proto_value(value));
        session = session.message(1, entry);
    }
    let session = session.text(4, group).double(5, seconds);
    summary("_hparams_/session_start_info", 3, session)
}

/// How this run ended.
pub(super) fn session_end(ending: Ending, seconds: f64) -> Message {
    let status = match ending {
        Ending::Interrupted => 0,
        Ending::Finished => 1,
        Ending::Failed => 2,
    };
    let session = Message::new().int(1, status).double(2, seconds);
    summary("_hparams_/session_end_info", 4, session)
}

/// `google.protobuf.Value`.
fn proto_value(value: &Value) -> Message {
    match value {
        Value::Bool(value) => Message::new().int(4, u64::from(*value)),
        Value::Number(value) => Message::new().double(2, value.as_f64().unwrap_or(f64::NAN)),
        Value::String(value) => Message::new().text(3, value),
        other => Message::new().text(3, &other.to_string()),
    }
}

/// A summary value that carries nothing but the plugin's data.
fn summary(tag: &str, field: u32, content: Message) -> Message {
    let data = Message::new().int(1, VERSION).message(field, content);
    let plugin = Message::new().text(1, "hparams").message(2, data);
    let metadata = Message::new().message(1, plugin);
    Message::new().text(1, tag).message(9, metadata)
}
