//! The GPU of Apple silicon, through `macmon`, which reads the system's counters without an
//! administrator's rights: utilisation, clock, power and temperature. Its memory is the machine's, which
//! is told of elsewhere. On other systems there is none.

#[cfg(all(target_os = "macos", target_arch = "aarch64"))]
pub(crate) use self::silicon::Apple;

#[cfg(all(target_os = "macos", target_arch = "aarch64"))]
mod silicon {
    use std::cell::RefCell;

    use firebox_core::GpuSample;
    use macmon::Sampler;

    /// Milliseconds since the reading before, at least; it tells the mean of that time.
    const OVER: u32 = 100;

    /// The GPU of this machine.
    pub(crate) struct Apple(RefCell<Sampler>);

    impl Apple {
        pub(crate) fn find() -> Option<Self> {
            Some(Self(RefCell::new(Sampler::new().ok()?)))
        }

        /// What it does now; `None` while its counters cannot be read.
        pub(crate) fn sample(&self, index: u32) -> Option<GpuSample> {
            let mut sampler = self.0.borrow_mut();
            let read = sampler.get_metrics(OVER).ok()?;
            Some(GpuSample {
                index,
                name: sampler.get_soc_info().chip_name.clone(),
                utilisation: Some(f64::from(read.gpu_active_ratio)),
                memory_used_bytes: None,
                memory_bytes: None,
                clock_mhz: Some(read.gpu_freq_mhz),
                power_watts: Some(f64::from(read.gpu_power)),
                temperature_celsius: read.temp.gpu_temp_avg.map(|degrees| degrees.round() as u32),
            })
        }
    }
}

/// No GPU of Apple's.
#[cfg(not(all(target_os = "macos", target_arch = "aarch64")))]
pub(crate) enum Apple {}

#[cfg(not(all(target_os = "macos", target_arch = "aarch64")))]
impl Apple {
    pub(crate) fn find() -> Option<Self> {
        None
    }

    pub(crate) fn sample(&self, _: u32) -> Option<firebox_core::GpuSample> {
        match *self {}
    }
}
