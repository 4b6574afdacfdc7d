//! The message of TensorBoard's plugin for custom scalars (`tensorboard/plugins/custom_scalar`:
//! `layout.proto`): which curves belong into one graph.

use super::protobuf::Message;

/// Graphs and the curves in each, by regular expressions of their names.
const GRAPHS: [(&str, &[&str]); 3] = [
    ("losses by step", &["train/loss", "epoch/train_loss", "epoch/validation_loss"]),
    ("losses by epoch", &["epoch/train_loss", "epoch/validation_loss"]),
    ("time of a step, milliseconds", &["time/step_milliseconds", "time/data_milliseconds"]),
];
/// `DT_STRING` of `tensorflow/core/framework/types.proto`.
const STRING: u64 = 7;

/// The graphs of losses, and of time.
pub(super) fn graphs() -> Message {
    let mut category = Message::new().text(1, "firebox");
    for (title, tags) in GRAPHS {
        let lines = tags.iter().fold(Message::new(), |lines, tag| {
            // The whole name, and nothing that it is a part of.
            lines.text(1, &format!("^{tag}$"))
        });
        category = category.message(2, Message::new().text(1, title).message(2, lines));
    }
    let layout = Message::new().int(1, 0).message(2, category);
    let plugin = Message::new().text(1, "custom_scalars");
    let tensor = Message::new().int(1, STRING).message(2, Message::new()).blob(8, &layout.bytes());
    Message::new()
        .text(1, "custom_scalars__config__")
        .message(8, tensor)
        .message(9, Message::new().message(1, plugin))
}
