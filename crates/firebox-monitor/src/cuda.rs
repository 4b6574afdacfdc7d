//! Which of the cards that NVIDIA's driver counts CUDA means by a number. The driver counts all cards in the order of
//! their places on the PCI bus. CUDA counts those that `CUDA_VISIBLE_DEVICES` names, in that order; its own order, by
//! which numbers there count, too, is by the speed of cards, unless `CUDA_DEVICE_ORDER` is `PCI_BUS_ID` (CUDA C++
//! Programming Guide, "CUDA Environment Variables"). What cannot be told for sure is not told.

/// What the driver tells of a card by which it can be known again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its model.
    pub(crate) name: Option<String>,
    /// `GPU-` and 32 hexadecimal digits in groups.
    pub(crate) uuid: Option<String>,
}

/// The environment variables by which CUDA counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counting {
    /// `CUDA_VISIBLE_DEVICES`.
    visible: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    order: Option<String>,
}

impl Counting {
    /// Those of this process.
    pub(crate) fn now() -> Self {
        // What is no text names no card.
        let variable =
            |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self { visible: variable("CUDA_VISIBLE_DEVICES"), order: variable("CUDA_DEVICE_ORDER") }
    }
}

/// The driver's number of the card that CUDA calls `index`, of all that the driver counts; `None` where it is not
/// known.
pub(crate) fn driver_number(index: u32, cards: &[Identity], counting: &Counting) -> Option<u32> {
    if let [_] = cards {
        // A part of a card has memory of its own.
        let is_part =
            counting.visible.as_deref().is_some_and(|named| named.trim_start().starts_with("MIG-"));
        return (index == 0 && !is_part).then_some(0);
    }
    let same_order = counting.order.as_deref() == Some("PCI_BUS_ID") || are_alike(cards);
    let by_number = |number: u32| (same_order && (number as usize) < cards.len()).then_some(number);
    let Some(visible) = &counting.visible else { return by_number(index) };
    // Behind an entry that names no card, CUDA reads no other.
    let mut named = visible.split(',').map_while(|entry| {
        let entry = entry.trim();
        match entry.parse::<u32>() {
            Ok(number) => by_number(number),
            Err(_) => by_uuid(entry, cards),
        }
    });
    named.nth(index as usize)
}

/// Whether all cards are of one model, which are as fast as one another: they stay in the order of their places (an
/// assumption: NVIDIA documents no order of equal cards).
fn are_alike(cards: &[Identity]) -> bool {
    let first = cards.first().and_then(|card| card.name.as_deref());
    first.is_some() && cards.iter().all(|card| card.name.as_deref() == first)
}

/// The number of the one card whose UUID is this one, or begins so.
fn by_uuid(entry: &str, cards: &[Identity]) -> Option<u32> {
    if !entry.starts_with("GPU-") {
        return None;
    }
    let is_meant =
        |card: &Identity| card.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(entry));
    let mut found = (0..).zip(cards).filter(|(_, card)| is_meant(card));
    let (number, _) = found.next()?;
    found.next().is_none().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver's numbers of CUDA's 0, 1 and 2.
    fn numbers(cards: &[Identity], visible: Option<&str>, order: Option<&str>) -> [Option<u32>; 3] {
        let counting =
            Counting { visible: visible.map(str::to_owned), order: order.map(str::to_owned) };
        [0, 1, 2].map(|index| driver_number(index, cards, &counting))
    }

    fn card(name: &str, uuid: &str) -> Identity {
        Identity { name: Some(name.to_owned()), uuid: Some(uuid.to_owned()) }
    }

    /// The order of cards by their places on the bus.
    const BY_PLACE: Option<&str> = Some("PCI_BUS_ID");

    #[test]
    fn one_card_is_meant_whatever_it_is_called_unless_a_part_of_it_is() {
        let one = [Identity::default()];
        for visible in [None, Some("0"), Some("GPU-12")] {
            assert_eq!(numbers(&one, visible, None), [Some(0), None, None]);
        }
        for visible in ["MIG-12", " MIG-12,MIG-34"] {
            assert_eq!(numbers(&one, Some(visible), BY_PLACE), [None; 3]);
        }
        assert_eq!(numbers(&[], None, BY_PLACE), [None; 3]);
    }

    #[test]
    fn cards_that_differ_are_known_in_the_order_of_their_places_alone() {
        let two = [card("T4", "GPU-aa11"), card("H200", "GPU-ab22")];
        for order in [None, Some("FASTEST_FIRST")] {
            assert_eq!(numbers(&two, None, order), [None; 3]);
            assert_eq!(numbers(&two, Some("1"), order), [None; 3]);
        }
        assert_eq!(numbers(&two, None, BY_PLACE), [Some(0), Some(1), None]);
        assert_eq!(numbers(&two, Some("1"), BY_PLACE), [Some(1), None, None]);
        assert_eq!(numbers(&two, Some("1, 0"), BY_PLACE), [Some(1), Some(0), None]);
        // One that does not tell its name may be another one.
        let unnamed = [card("H200", "GPU-aa11"), Identity::default()];
        assert_eq!(numbers(&unnamed, None, None), [None; 3]);
    }

    #[test]
    fn cards_of_one_model_have_one_order() {
        let three = ["GPU-aa11", "GPU-ab22", "GPU-cc33"].map(|uuid| card("H200", uuid));
        assert_eq!(numbers(&three, None, None), [Some(0), Some(1), Some(2)]);
        assert_eq!(numbers(&three, Some("2,0"), None), [Some(2), Some(0), None]);
        // What names no card ends the list.
        for (visible, expected) in [
            ("1,-1,0", [Some(1), None, None]),
            ("1,3,0", [Some(1), None, None]),
            ("", [None; 3]),
            ("NoDevFiles", [None; 3]),
        ] {
            assert_eq!(numbers(&three, Some(visible), None), expected, "{visible}");
        }
    }

    #[test]
    fn cards_are_known_by_their_uuids_in_any_order() {
        let two = [card("T4", "GPU-aa11"), card("H200", "GPU-ab22")];
        assert_eq!(numbers(&two, Some("GPU-ab22,GPU-aa11"), None), [Some(1), Some(0), None]);
        // As much of one as tells them apart.
        assert_eq!(numbers(&two, Some("GPU-ab"), None), [Some(1), None, None]);
        assert_eq!(numbers(&two, Some("GPU-a"), None), [None; 3]);
        // A part of a card has memory of its own.
        assert_eq!(numbers(&two, Some("MIG-ab22"), None), [None; 3]);
        assert_eq!(numbers(&two, Some("ab22"), BY_PLACE), [None; 3]);
    }
}
