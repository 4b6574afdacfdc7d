//! A warning of channels that alone tell the class, or where in the data a window lies.

use firebox_core::{Event, Telling, count, quoted};

use super::Run;

/// Channels that are named. A choice.
const NAMED: usize = 5;

impl Run<'_> {
    /// Warns of such channels of the training part.
    pub(crate) fn warn_of_telling(&self, found: &[Telling]) {
        for message in [of_classes(found), of_rows(found)].into_iter().flatten() {
            self.listener.on(&Event::Warning { message });
        }
    }
}

fn of_classes(found: &[Telling]) -> Option<String> {
    let of = found.iter().filter_map(|one| match one {
        Telling::Class { channel, seen } => Some((channel.clone(), *seen)),
        Telling::Row { .. } => None,
    });
    let (names, seen): (Vec<String>, Vec<usize>) = of.unzip();
    let seen = count(*seen.first()? as u64, "labelled example");
    Some(format!(
        "{} tells the class of each of {seen} of the training part by itself: if it was made of the label or of what comes after, no score says \
         anything\n  leave it out (name the others in `data.columns.channels`), unless it is known before the class is wherever the model is to be used",
        each(&names)
    ))
}

fn of_rows(found: &[Telling]) -> Option<String> {
    let of = found.iter().filter_map(|one| match one {
        Telling::Row { channel, step } => Some((channel.clone(), *step)),
        Telling::Class { .. } => None,
    });
    let (names, steps): (Vec<String>, Vec<f64>) = of.unzip();
    let step = steps.first()?;
    let by = match &steps[..] {
        [_] => format!("by {step} a step"),
        _ => "by the same at each step".to_owned(),
    };
    Some(format!(
        "{} only counts the rows, {by}: it says where in the data a window lies, not what happens there, and has values in the test part that training \
         never saw\n  leave it out (name the others in `data.columns.channels`)",
        each(&names)
    ))
}

/// `channel `a`` or `each of the channels `a`, `b``.
fn each(names: &[String]) -> String {
    match names {
        [one] => format!("channel `{one}`"),
        several => format!("each of the channels {}", quoted(several, NAMED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_named_by_what_they_tell() {
        let class = |channel: &str| Telling::Class { channel: channel.to_owned(), seen: 1200 };
        let row = |channel: &str, step| Telling::Row { channel: channel.to_owned(), step };
        assert_eq!((of_classes(&[]), of_rows(&[])), (None, None));
        let found = [class("target"), row("id", 1.0)];
        let said = of_classes(&found).unwrap();
        let expected = "channel `target` tells the class of each of 1200 labelled examples of the training part by itself: if";
        assert!(said.starts_with(expected), "{said}");
        let said = of_rows(&found).unwrap();
        assert!(said.starts_with("channel `id` only counts the rows, by 1 a step: it"), "{said}");
        let found = [class("a"), class("b"), row("id", 1.0), row("seconds", 60.0)];
        let said = of_classes(&found).unwrap();
        assert!(said.starts_with("each of the channels `a`, `b` tells the class"), "{said}");
        let said = of_rows(&found).unwrap();
        let expected = "each of the channels `id`, `seconds` only counts the rows, by the same at each step: it";
        assert!(said.starts_with(expected), "{said}");
    }
}
