//! The watch of launches: what ran, and when.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Gradients, Tensor};
use firebox_core::Stream;
use firebox_kernels::{
    Clip, CpuKernels, DeviceStep, GpuKernels, LaunchWatch, LaunchedWork, Lstm, LstmConfig,
    NoGpuKernels, ParameterUpdate, StepState, UpdateRule, squared_error, squared_norm,
    update_on_device,
};

use super::alone;
use super::support::case::{Case, float, noise, values};
use super::support::relative_error;

#[test]
fn launches_are_watched_with_what_they_do_and_when_they_ran() {
    alone(|device| {
        let case = Case::new(LstmConfig::new(3, 9), &[5, 4, 5], 5, 21);
        let device = device.autodiff();
        if let Err(error) = GpuKernels::of_layer(&device, DType::F32, 1, 3, 9) {
            return println!("skipped: {error}");
        }
        // What is compiled now is not compiled under the watch.
        case.run(&device);
        let watch = LaunchWatch::start();
        case.run(&device);
        let launched = watch.end();
        let ran = ["recurrent layer", "recurrent layer, gradients"].map(|name| {
            let of = |work: &LaunchedWork| work.name == name;
            let found = launched.iter().find(|one| one.work.as_ref().is_some_and(of));
            let one = found.expect(name);
            let work = one.work.as_ref().expect(name);
            assert_eq!(work.shape, [1, 3, 5, 9]);
            // At each step of each sample, nine states times four columns of nine.
            assert_eq!(work.operations, 2.0 * (3 * 5 * 9 * 4 * 9) as f64);
            one.ran.expect("its times")
        });
        assert!(ran.iter().all(|ran| !ran.duration.is_zero()), "{ran:?}");
        assert!(ran[0].begin + ran[0].duration <= ran[1].begin, "{ran:?}");
        // Burn's own kernels are there too, and nothing is once the watch is over.
        assert!(launched.iter().any(|one| one.work.is_none() && !one.name.is_empty()));
        assert!(LaunchWatch::start().end().is_empty());
    });
}

/// One step of an autoencoder of two LSTMs: its loss.
fn train(
    encoder: &mut Lstm,
    decoder: &mut Lstm,
    state: &mut DeviceStep,
    moments: &mut Vec<Vec<Tensor<1>>>,
    x: &Tensor<3>,
) -> Tensor<1> {
    struct Take<'a>(&'a mut Gradients, Vec<(Tensor<1>, Tensor<1>)>);
    impl ModuleVisitor for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad_remove(self.0).expect("a gradient");
            let size = gradient.shape().num_elements();
            self.1.push((param.val().inner().reshape([size]), gradient.reshape([size])));
        }
    }
    struct Put(std::vec::IntoIter<ParameterUpdate>);
    impl ModuleMapper for Put {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let update = self.0.next().expect("an update");
            param.map(|old| {
                let new = update.parameter.clone().reshape(old.dims());
                Tensor::from_inner(new).require_grad()
            })
        }
    }
    let [batch, time, channels] = x.dims();
    let (_, last) = encoder.forward(x.clone(), None, None, None);
    let [_, _, hidden] = last.hidden.dims();
    let code = last.hidden.reshape([batch, 1, hidden]).expand([batch, time, hidden]);
    let (again, _) = decoder.forward(code, None, None, None);
    let loss = squared_error(again.narrow(2, 0, channels), x.clone(), None).expect("a loss").value;
    let mut recorded = loss.clone().backward();
    let mut take = Take(&mut recorded, vec![]);
    encoder.visit(&mut take);
    decoder.visit(&mut take);
    let pairs = take.1;
    let gradients: Vec<_> = pairs.iter().map(|(_, gradient)| gradient).collect();
    state.squared_norm = squared_norm(&gradients).on_device(&x.device().without_autodiff());
    if moments.is_empty() {
        *moments = pairs.iter().map(|(_, gradient)| vec![gradient.zeros_like(); 2]).collect();
    }
    let old = std::mem::take(moments).into_iter();
    let updates = pairs.into_iter().zip(old).map(|((parameter, gradient), moments)| {
        ParameterUpdate { parameter, gradient, moments, missed: 0, rate: 1.0, weight_decay: 0.01 }
    });
    let rule = UpdateRule::AdamW { betas: [0.9, 0.999], eps: 1e-8 };
    let (after, updates) =
        update_on_device(&rule, Clip::Norm(1.0), state.clone(), updates.collect());
    *state = after;
    *moments = updates.iter().map(|update| update.moments.clone()).collect();
    let mut put = Put(updates.into_iter());
    *encoder = encoder.clone().map(&mut put);
    *decoder = decoder.clone().map(&mut put);
    loss.inner()
}

#[test]
fn a_whole_training_step_is_seen() {
    alone(|device| {
        let state =
            StepState { learning_rate: 0.01, loss_scale: 1.0, squared_norm: 0.0, updates: 0 };
        let run = |kernels: Option<CpuKernels>| {
            let tracked = device.clone().autodiff();
            let numbers = noise(Stream::new(3, "x"), 4 * 6 * 3, 1.0);
            let x = float::<3>(&numbers, [4, 6, 3], &tracked);
            let mut encoder = LstmConfig::new(3, 9).init(Stream::new(1, "encoder"), &tracked);
            let mut decoder = LstmConfig::new(9, 9).init(Stream::new(2, "decoder"), &tracked);
            let (mut state, mut moments) = (DeviceStep::new(&state, &device), vec![]);
            let mut watched = || {
                let mut step = || train(&mut encoder, &mut decoder, &mut state, &mut moments, &x);
                // What is compiled or tuned in the first steps is not in the watch.
                let mut losses: Vec<f64> = (0..3).map(|_| values(step())[0]).collect();
                let watch = LaunchWatch::start();
                losses.extend(values(step()));
                (losses, watch.end())
            };
            match kernels {
                Some(kernels) => kernels.force(watched),
                None => watched(),
            }
        };
        let (losses, launched) = run(None);
        assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
        let count = |name: &str| {
            let works = launched.iter().filter_map(|one| one.work.as_ref());
            works.filter(|work| work.name == name).count()
        };
        // A device that binds few buffers to a kernel composes the layers.
        let layers = GpuKernels::of_layer(&device, DType::F32, 1, 4, 9);
        let few = matches!(layers, Err(NoGpuKernels::Buffers { .. }));
        assert_eq!(count("recurrent layer"), if few { 0 } else { 2 });
        assert_eq!(count("recurrent layer, gradients"), if few { 0 } else { 2 });
        // Eight parameters, in one launch or, on such a device, in a few.
        assert!((1..=8).contains(&count("optimizer step")), "{}", count("optimizer step"));
        assert!((1..=2).contains(&count("norm of the gradients")));
        assert_eq!((count("numbers of the step"), count("sum")), (1, 1));
        // All were measured, by the device, and none began before the one before it.
        let mut begins = vec![];
        for one in &launched {
            let ran = one.ran.unwrap_or_else(|| panic!("{} was not measured", one.name));
            assert!(ran.by_device, "{}", one.name);
            begins.push(ran.begin);
        }
        assert!(begins.is_sorted(), "{begins:?}");
        let (same, composed) = run(Some(CpuKernels::Composed));
        let error = relative_error(&losses, &same);
        assert!(error < 1e-5, "the composed step's losses are off by {error:.2e}");
        println!("{} launches, composed {}", launched.len(), composed.len());
        let factor = if few { 1 } else { 4 };
        assert!(factor * launched.len() < composed.len(), "{launched:?}");
    });
}
