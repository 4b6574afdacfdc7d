//! AMD GPUs, as the kernel's driver shows them in `/sys`
//! (<https://docs.kernel.org/gpu/amdgpu/thermal.html>, `gpu_busy_percent` and `mem_info_vram_*` of
//! <https://docs.kernel.org/gpu/amdgpu/driver-misc.html>). Files, so no library is needed; where there
//! are none, there is nothing to tell.

use std::path::{Path, PathBuf};

use firebox_core::GpuSample;

/// Where the kernel lists graphics cards.
pub(crate) const CARDS: &str = "/sys/class/drm";
/// AMD's number among the vendors of PCI devices.
const AMD: &str = "0x1002";

/// The folder of each card's device, in the order of the cards.
pub(crate) fn find(cards: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(cards) else { return vec![] };
    let number = |path: &PathBuf| {
        // `card0` is a card, and `card0-DP-1` one of its sockets.
        path.file_name()?.to_str()?.strip_prefix("card")?.parse::<u32>().ok()
    };
    let mut found: Vec<(u32, PathBuf)> =
        entries.flatten().filter_map(|e| Some((number(&e.path())?, e.path()))).collect();
    found.sort();
    let devices = found.into_iter().map(|(_, path)| path.join("device"));
    devices
        .filter(|device| text(&device.join("vendor")).as_deref() == Some(AMD))
        .filter(|device| device.join("gpu_busy_percent").exists())
        .collect()
}

/// What a card does now. What the driver does not show is left out.
pub(crate) fn sample(device: &Path, index: u32) -> GpuSample {
    let read = |name: &str| number(&device.join(name));
    let sensors = sensors(device);
    let sensor = |name: &str| number(&sensors.as_deref()?.join(name));
    let name = text(&device.join("product_name")).filter(|name| !name.is_empty());
    // Microwatts: the average where the card has one, else what it takes at this moment.
    let power = sensor("power1_average").or_else(|| sensor("power1_input"));
    GpuSample {
        index,
        name: name.unwrap_or_else(|| "AMD GPU".to_owned()),
        utilisation: read("gpu_busy_percent").map(|percent| percent as f64 / 100.0),
        memory_used_bytes: read("mem_info_vram_used"),
        memory_bytes: read("mem_info_vram_total"),
        clock_mhz: sensor("freq1_input").map(|hertz| (hertz / 1_000_000) as u32),
        power_watts: power.map(|microwatts| microwatts as f64 / 1e6),
        temperature_celsius: sensor("temp1_input").map(|thousandths| (thousandths / 1000) as u32),
    }
}

/// Bytes of a card's memory that nobody uses now, if the driver shows both. A processor's own card takes memory of the
/// machine, of which it has more than of its own: what is free for it is not known.
pub(crate) fn free(device: &Path) -> Option<u64> {
    let total = number(&device.join("mem_info_vram_total"))?;
    if number(&device.join("mem_info_gtt_total")).is_some_and(|machine| machine > 4 * total) {
        return None;
    }
    Some(total.saturating_sub(number(&device.join("mem_info_vram_used"))?))
}

/// The folder of a card's sensors, which has a number of its own.
fn sensors(device: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(device.join("hwmon")).ok()?;
    entries.flatten().map(|entry| entry.path()).min()
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    #[test]
    fn cards_of_amd_are_found_and_read_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let cards = folder.path();
        for (card, vendor) in [("card10", AMD), ("card2", AMD), ("card0", "0x10de"), ("card3", AMD)]
        {
            write(cards, &format!("{card}/device/vendor"), vendor);
        }
        for card in ["card0", "card2", "card10", "card2-DP-1"] {
            write(cards, &format!("{card}/device/gpu_busy_percent"), "87");
        }
        for (name, text) in [
            ("mem_info_vram_used", "1073741824"),
            ("mem_info_vram_total", "25753026560"),
            ("product_name", "Radeon RX 7900 XTX"),
            ("hwmon/hwmon4/power1_average", "312000000"),
            ("hwmon/hwmon4/temp1_input", "61000"),
            ("hwmon/hwmon4/freq1_input", "2482000000"),
        ] {
            write(&cards.join("card2/device"), name, text);
        }
        // A card without `gpu_busy_percent` is too old to tell, and sockets are no cards.
        let found = find(cards);
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(cards).unwrap()).collect();
        assert_eq!(names, [Path::new("card2/device"), Path::new("card10/device")]);
        let expected = GpuSample {
            index: 3,
            name: "Radeon RX 7900 XTX".to_owned(),
            utilisation: Some(0.87),
            memory_used_bytes: Some(1 << 30),
            memory_bytes: Some(25_753_026_560),
            clock_mhz: Some(2482),
            power_watts: Some(312.0),
            temperature_celsius: Some(61),
        };
        assert_eq!(sample(&found[0], 3), expected);
        // Newer cards tell the power of the moment; others tell little.
        write(&found[1], "hwmon/hwmon7/power1_input", "95500000");
        let other = sample(&found[1], 0);
        assert_eq!((other.power_watts, other.memory_bytes), (Some(95.5), None));
        assert_eq!(other.name, "AMD GPU");
        assert!(find(&cards.join("nowhere")).is_empty());
    }
}
