//! Somebody's own program: a Firebox LSTM in plain Burn, a cache and a loader, each without the rest.

use std::error::Error;
use std::sync::Arc;

use burn::tensor::{Device, Distribution, Tensor};
use firebox_cache::{Store, augmented_key};
use firebox_core::{
    Augmentation, Channel, Key, Labels, Normalisation, Normaliser, Role, Series, SeriesSet, Silent,
    SplitRule, Stream, WindowRule, split,
};
use firebox_kernels::LstmConfig;
use firebox_loader::{LoaderConfig, NormalisedWindows, Position, TrainLoader};

fn kernels() -> Result<(), Box<dyn Error>> {
    let device = Device::default().autodiff();
    let config = LstmConfig { bidirectional: true, ..LstmConfig::new(3, 10) };
    let lstm = config.init(Stream::new(1, "weights"), &device);
    let x = Tensor::<3>::random([4, 9, 3], Distribution::Default, &device).require_grad();
    let (output, _) = lstm.forward(x.clone(), Some(&[9, 4, 1, 7]), None, None);
    let gradients = output.powi_scalar(2).sum().backward();
    let dx = x.grad(&gradients).ok_or("the input has no gradient")?;
    let padded = dx.slice([1..2, 4..9]).abs().sum().into_scalar::<f32>();
    assert_eq!(padded, 0.0, "padding has a gradient");
    println!("kernels: a bidirectional LSTM with lengths, forward and backward");
    Ok(())
}

fn cache_and_loader() -> Result<(), Box<dyn Error>> {
    let values = (0..600).map(|step| (f64::from(step) * 0.3).sin()).collect();
    let series = Series::regular("sine", 0, 1_000_000, values, 1);
    let channels = vec![Channel::new("value", Role::Other)];
    let set = Arc::new(SeriesSet::new(channels, vec![], vec![series])?);
    let rule = WindowRule { length: 20, stride: 3, whole: false };
    let parts = split(&set, &rule, &SplitRule::time(0.1, 0.2), &Labels::None)?;
    let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train)?;

    let folder = std::env::temp_dir().join(format!("external-{}", std::process::id()));
    let augmentation = Augmentation { versions: 1, ..Augmentation::default() };
    let key = augmented_key(Key::builder("sine", 1).finish(), &augmentation, 3);
    let made = Store::open(&folder)?
        .augmented(key, &parts.train, &normaliser, &augmentation, 3, &Silent)
        .map(|shards| (shards.len(), shards.window_shape()));
    std::fs::remove_dir_all(&folder)?;
    assert_eq!(made?, (2 * parts.train.len(), [20, 1]));
    println!("cache: {} windows and as many augmented ones", parts.train.len());

    let windows = parts.train.len();
    let source = Arc::new(NormalisedWindows::new(parts.train, normaliser));
    let config = LoaderConfig { batch_size: 16, ..LoaderConfig::default() };
    let loader = TrainLoader::new(source, config, Device::default())?;
    let mut samples = 0;
    for batch in loader.epoch(Position::START) {
        samples += batch?.lengths.len();
    }
    assert_eq!(samples, windows);
    println!("loader: an epoch of {samples} windows");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    kernels()?;
    cache_and_loader()
}
