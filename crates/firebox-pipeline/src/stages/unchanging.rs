//! A warning of channels that never change in the training part, and do elsewhere.

use firebox_core::{Event, Unchanging};

use super::Run;

/// Channels that are named. A choice.
const NAMED: usize = 5;

impl Run<'_> {
    /// Warns of such channels. `part` is where they do not change.
    pub(crate) fn warn_of_unchanging(&self, part: &str, found: &[Unchanging]) {
        if let Some(message) = said(part, found) {
            self.listener.on(&Event::Warning { message });
        }
    }
}

fn said(part: &str, found: &[Unchanging]) -> Option<String> {
    let mut names: Vec<String> = vec![];
    for Unchanging { channel, value } in found {
        let name = format!("`{channel}` is always {value}");
        // A channel may be shown and forecast.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more do not change"),
    };
    names.truncate(NAMED);
    (!names.is_empty()).then(|| {
        format!(
            "in {part} {}{more}, and elsewhere not: no scale can be fitted on what never changes, so that 1 stands in, and nothing is learnt of its changes; divide the data otherwise (`[split]`), or leave it out",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_that_do_not_change_in_training_are_named_once() {
        let of = |channel: &str, value| Unchanging { channel: channel.to_owned(), value };
        assert_eq!(said("the training part", &[]), None);
        let one = said("the training part", &[of("load", 5.0), of("load", 5.0)]).unwrap();
        let start =
            "in the training part `load` is always 5, and elsewhere not: no scale can be fitted";
        assert!(one.starts_with(start), "{one}");
        let many: Vec<Unchanging> = (0..7).map(|at| of(&format!("x{at}"), 0.5)).collect();
        let many = said("the training part of fold 1", &many).unwrap();
        let end = "`x4` is always 0.5 and 2 more do not change, and elsewhere not: ";
        assert!(many.starts_with("in the training part of fold 1 `x0` is always 0.5, `x1`"));
        assert!(many.contains(end), "{many}");
    }
}
