//! What a run validates is computed in the type that it trains in, and so is what comes of it.

use crate::support::{Plan, SEED, autoencoder, held_out, loader};
use firebox_core::{Precision, Stream};
use firebox_loader::{Batch, HeldOutLoader};
use firebox_models::{BiLstmMae, Encoder};
use firebox_train::{
    Data, Mean, Objective, Pretraining, Streams, TrainConfig, Trained, load_weights,
};

/// The mean loss over held-out data, by the model alone.
fn validated(model: &BiLstmMae, validation: &HeldOutLoader) -> f64 {
    let streams = Streams { samples: Stream::new(SEED, "validation masks"), dropout: None };
    let mut mean = Mean::default();
    for batch in validation.batches() {
        let loss = Pretraining.loss(model, &batch.unwrap(), streams);
        mean.add(f64::from(loss.value.into_scalar::<f32>()), loss.weight);
    }
    mean.value()
}

/// The embeddings of all samples, one after the other.
fn embedded(model: &BiLstmMae, validation: &HeldOutLoader) -> Vec<f32> {
    let embed = |batch: Batch| {
        let embedding = model.embed(batch.inputs, Some(&batch.lengths));
        embedding.into_data().try_into_vec::<f32>().unwrap()
    };
    validation.batches().flat_map(|batch| embed(batch.unwrap())).collect()
}

/// How far numbers are from others, by the norm of these.
fn distance(found: &[f32], from: &[f32]) -> f64 {
    let squares = |of: &mut dyn Iterator<Item = f64>| of.map(|value| value * value).sum::<f64>();
    let mut apart = found.iter().zip(from).map(|(a, b)| f64::from(*a) - f64::from(*b));
    let mut whole = from.iter().map(|value| f64::from(*value));
    (squares(&mut apart) / squares(&mut whole)).sqrt()
}

#[test]
fn validation_and_embeddings_are_in_the_type_of_the_training() {
    let (loader, validation) = (loader(44, 4), held_out(20));
    let data = Data { train: &loader, validation: Some(&validation) };
    let config = TrainConfig { epochs: 3, early_stopping: None, ..TrainConfig::default() };
    for precision in [Precision::F32, Precision::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        let model = autoencoder(0.1, 0.1).in_precision(precision);
        let Trained { model, summary } =
            Plan::new(folder.path()).train(model, &Pretraining, data, &config).unwrap();
        let told = summary.best.unwrap().loss;
        // The same weights in models that were never trained.
        let mut weights = autoencoder(0.1, 0.1);
        load_weights(&summary.selected_path(folder.path()), &mut weights).unwrap();
        let of = |precision| {
            let model = weights.clone().in_precision(precision);
            (validated(&model, &validation), embedded(&model, &validation))
        };
        let [f32, bf16, f16] = [Precision::F32, Precision::Bf16, Precision::F16].map(of);
        let (own, other) = match precision {
            Precision::F32 => (&f32, &bf16),
            _ => (&bf16, &f32),
        };
        assert_eq!(told, own.0, "{precision}");
        assert_eq!(&embedded(&model, &validation), &own.1, "{precision}");
        // The other type is told apart by its rounding, and by nothing larger.
        let apart = (told - other.0).abs() / told;
        assert!(apart > 0.0 && apart < 0.02, "{precision}: {told} and {}", other.0);
        // Operands of 8 bits are rounded by up to 2⁻⁹, and of 11 bits by an eighth of that.
        let [eight, eleven] = [&bf16.1, &f16.1].map(|rounded| distance(rounded, &f32.1));
        assert!((1e-5..5e-2).contains(&eight) && eleven > 0.0, "{eight:.1e}, {eleven:.1e}");
        assert!(eleven < eight / 3.0, "{eight:.1e}, {eleven:.1e}");
    }
}
