//! Patterns, layers, and what is refused with the way out.

use super::*;

fn layout(name: &str, rank: usize) -> Layout {
    Layout { name: name.to_owned(), shape: vec![2; rank], transposed: false }
}

fn read(text: &str) -> TrainConfig {
    serde_json::from_str(text).unwrap()
}

fn encoder() -> Vec<Layout> {
    let mut layouts = vec![layout("embedding.weight", 2)];
    for layer in [0, 1, 2, 10] {
        layouts.push(layout(&format!("encoder.layers.{layer}.linear.weight"), 2));
        layouts.push(layout(&format!("encoder.layers.{layer}.norm.bias"), 1));
    }
    layouts.push(layout("head.weight", 2));
    layouts
}

#[test]
fn stars_stand_for_any_text() {
    for (pattern, name, expected) in [
        ("a.b", "a.b", true),
        ("a.b", "a.bc", false),
        ("a.*", "a.b.c", true),
        ("*", "", true),
        ("*.bias", "x.y.bias", true),
        ("*.bias", "bias", false),
        ("a*b*c", "a--b-b-c", true),
        ("a*b*c", "a--c", false),
        ("*ö*", "größe", true),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
}

#[test]
fn layers_nearer_to_the_input_learn_more_slowly() {
    let config = read(
        r#"{"layer_decay": {"factor": 0.5,
            "layers": ["embedding.*", "encoder.layers.{}.*", "head.*"]}}"#,
    );
    let rates: Vec<f64> =
        resolve(&config, &encoder()).unwrap().iter().map(|s| s.rate * 32.0).collect();
    // Numbers are in their order, 10 after 2.
    assert_eq!(rates, [1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0, 32.0]);
}

#[test]
fn a_number_of_a_layer_is_a_whole_one() {
    let layouts: Vec<Layout> =
        (0..12).map(|layer| layout(&format!("lstm.weight_ih_l{layer}"), 2)).collect();
    let config = read(r#"{"layer_decay": {"factor": 0.5, "layers": ["lstm.*_l{}*"]}}"#);
    let found = resolve(&config, &layouts).unwrap();
    for (layer, settings) in found.iter().enumerate() {
        assert_eq!(settings.rate, 0.5f64.powi(11 - layer as i32), "layer {layer}");
    }
    assert_eq!(number_in("*{}.weight", "block1.part20.weight"), Some(20));
    assert_eq!(number_in("block{}*", "block12"), Some(12));
    assert_eq!(number_in("block1{}*", "block12"), None);
}

#[test]
fn the_first_group_that_names_a_parameter_counts() {
    let config = read(
        r#"{"optimizer": {"adamw": {"learning_rate": 0.01, "weight_decay": 0.1, "decay": "matrices"}},
            "groups": [{"parameters": ["head.*"], "learning_rate": 0.1, "weight_decay": 0.5},
                       {"parameters": ["embedding.*"], "frozen": true},
                       {"parameters": ["*"], "unfreeze_at": 3}]}"#,
    );
    let found = resolve(&config, &encoder()).unwrap();
    assert_eq!(found[0], Settings { rate: 1.0, weight_decay: 0.1, from: None });
    assert_eq!(found[2], Settings { rate: 1.0, weight_decay: 0.0, from: Some(2) });
    assert_eq!(found[9], Settings { rate: 10.0, weight_decay: 0.5, from: Some(0) });
    assert!(!found[2].trains_in(1) && found[2].trains_in(2) && !found[0].trains_in(99));
}

/// A recurrent model, which has a part in common with the encoder.
fn recurrent() -> Vec<Layout> {
    let names = ["lstm.weight_ih_l0", "lstm.weight_ih_l1", "norm.bias", "head.weight"];
    names.map(|name| layout(name, 2)).to_vec()
}

#[test]
fn of_several_models_each_takes_what_names_its_own_parameters() {
    let config = read(
        r#"{"groups": [{"parameters": ["lstm.*_l0", "embedding.*"], "frozen": true},
                       {"parameters": ["head.*", "norm.*"], "weight_decay": 0.5},
                       {"parameters": ["head.weight", "encoder.layers.0.*"], "frozen": true}],
            "layer_decay": {"factor": 0.5,
            "layers": ["lstm.*_l{}", "encoder.layers.{}.*", "head.*"]}}"#,
    );
    let models = [recurrent(), encoder()];
    check_groups_of_several(&models, &config).unwrap();
    let found = |layouts: &[Layout]| -> Vec<(f64, f64, bool)> {
        let settings = resolve(&own(&config, layouts), layouts).unwrap();
        settings.iter().map(|s| (s.rate * 16.0, s.weight_decay, s.from.is_none())).collect()
    };
    let usual = config.optimizer.weight_decay();
    let of_recurrent =
        [(4.0, usual, true), (8.0, usual, false), (16.0, 0.5, false), (16.0, 0.5, false)];
    assert_eq!(found(&models[0]), of_recurrent);
    let mut of_encoder = vec![(16.0, usual, true)];
    for (rate, frozen) in [(1.0, true), (2.0, false), (4.0, false), (8.0, false)] {
        of_encoder.extend([(rate, usual, frozen); 2]);
    }
    of_encoder.push((16.0, 0.5, false));
    assert_eq!(found(&models[1]), of_encoder);
    // A model that nothing names is trained as if nothing were written.
    let other = own(&config, &[layout("output.weight", 2)]);
    assert_eq!(other, TrainConfig { groups: vec![], layer_decay: None, ..config });
}

#[test]
fn layers_that_earlier_ones_hide_in_one_model_alone_stay_for_the_other() {
    let rates = |config: &TrainConfig, layouts: &[Layout]| -> Vec<f64> {
        let settings = resolve(&own(config, layouts), layouts).unwrap();
        settings.iter().map(|settings| settings.rate * 16.0).collect()
    };
    let config = read(
        r#"{"layer_decay": {"factor": 0.5, "layers": ["lstm.*", "norm.*", "head.*", "*.weight"]}}"#,
    );
    let mut projected = recurrent();
    projected.push(layout("proj.weight", 2));
    let models = [recurrent(), projected];
    check_groups_of_several(&models, &config).unwrap();
    assert_eq!(rates(&config, &models[0]), [4.0, 4.0, 8.0, 16.0]);
    assert_eq!(rates(&config, &models[1]), [2.0, 2.0, 4.0, 8.0, 16.0]);
    // The layers of a `{}` one by one.
    let config = read(
        r#"{"layer_decay": {"factor": 0.5,
            "layers": ["encoder.layers.0.linear.*", "encoder.layers.{}.*"]}}"#,
    );
    let name = |layer: u64| layout(&format!("encoder.layers.{layer}.linear.weight"), 2);
    let models = [vec![name(0), name(1)], encoder()];
    check_groups_of_several(&models, &config).unwrap();
    assert_eq!(rates(&config, &models[0]), [8.0, 16.0]);
    let of_encoder = [16.0, 1.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0, 16.0];
    assert_eq!(rates(&config, &models[1]), of_encoder);
    // In one model, or in all of them, it is refused as before.
    let config =
        read(r#"{"layer_decay": {"factor": 0.5, "layers": ["lstm.*", "lstm.weight_ih_l0"]}}"#);
    assert!(resolve(&config, &recurrent()).is_err());
    assert!(check_groups_of_several(&[recurrent(), encoder()], &config).is_err());
}

#[test]
fn a_name_of_no_model_and_a_model_without_anything_to_train_are_refused() {
    let refused = |text: &str, expected: &str| {
        let models = [recurrent(), encoder()];
        let said = check_groups_of_several(&models, &read(text)).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    };
    refused(r#"{"groups": [{"parameters": ["lstn.*"]}]}"#, "`lstn.*`, and no parameter");
    refused(
        r#"{"layer_decay": {"factor": 0.5, "layers": ["block.{}.*"]}}"#,
        "`train.layer_decay.layers` names `block.{}.*`",
    );
    refused(
        r#"{"groups": [{"parameters": ["head.*"]}, {"parameters": ["head.weight"]}]}"#,
        "belongs to an earlier",
    );
    refused(
        r#"{"groups": [{"parameters": ["lstm.*", "norm.*", "head.*"], "frozen": true}]}"#,
        "freezes every parameter",
    );
}

#[test]
fn a_name_that_is_like_one_of_the_model_is_told_in_its_form() {
    for (pattern, expected) in [
        ("lstn.*", Some("lstm.*")),
        ("embeding.weight", Some("embedding.weight")),
        ("encoder.layer.{}.*", Some("encoder.layers.{}.*")),
        ("encoder.layers.3.linear.weight", Some("encoder.layers.0.linear.weight")),
        ("*.bais", Some("*.bias")),
        ("haed.*", Some("head.*")),
        ("zzz", None),
        // Neither the opposite, nor a name of another model.
        ("encodr.*", Some("encoder.*")),
        ("decoder.*", None),
        ("decodr.*", None),
        ("head.encoder.*", Some("head.*")),
    ] {
        let all = [encoder(), recurrent()].concat();
        assert_eq!(nearest(pattern, &all).as_deref(), expected, "{pattern}");
    }
    let autoencoder = ["lstm.weight", "decoder.weight", "head.decoder.bias"];
    let autoencoder = autoencoder.map(|name| layout(name, 2));
    for pattern in ["encodr.*", "encoder.*", "encoder.weight", "*.encoder.bias"] {
        assert_eq!(nearest(pattern, &autoencoder), None, "{pattern}");
    }
    assert_eq!(nearest("head.encodr.*", &autoencoder).as_deref(), Some("head.*"));
    let config = read(r#"{"groups": [{"parameters": ["haed.*"]}]}"#);
    let said = resolve(&config, &encoder()).unwrap_err().to_string();
    assert!(said.contains("is called so (did you mean `head.*`?); there are"), "{said}");
}

#[test]
fn a_group_of_running_statistics_alone_is_told_that_it_has_no_effect() {
    // As the model itself names them.
    let model = firebox_models::MlpConfig::default()
        .init(firebox_core::Stream::new(1, "weights"), [5, 2], 3, &burn::tensor::Device::default())
        .unwrap();
    let norms = layouts(&model);
    let statistics = norms.iter().filter(|layout| is_statistic(layout)).count();
    assert!(statistics > 0 && statistics % 2 == 0 && statistics < norms.len(), "{norms:?}");
    let group = |names: &str| read(&format!(r#"{{"groups": [{names}]}}"#));
    let alone = group(r#"{"parameters": ["*.running_*"], "frozen": true}"#);
    let said = resolve(&alone, &norms).unwrap_err().to_string();
    assert!(
        said.contains("`*.running_*`, and whatever is called so") && said.contains("no effect"),
        "{said}"
    );
    // With anything beside them it has one, unless that belongs to an earlier group.
    let weights: Vec<&str> = norms.iter().map(|layout| layout.name.as_str()).collect();
    let weight = weights.iter().find(|name| !names_statistic(name)).unwrap();
    let both = group(&format!(r#"{{"parameters": ["*.running_*", "{weight}"], "frozen": true}}"#));
    resolve(&both, &norms).unwrap();
    let later = group(&format!(
        r#"{{"parameters": ["{weight}"]}}, {{"parameters": ["*.running_*", "{weight}"]}}"#
    ));
    let error = resolve(&later, &norms).unwrap_err();
    assert!(matches!(error, GroupError::Statistics { .. }), "{error}");
    // Of several models, another one may have more of that name.
    let mut named = norms.clone();
    named.push(layout("head.running_rate", 2));
    check_groups_of_several(&[norms.clone(), named], &alone).unwrap();
    assert!(check_groups_of_several(&[norms.clone(), norms.clone()], &alone).is_err());
    // And statistics are nothing that is left to train.
    let names: Vec<String> = weights
        .iter()
        .filter(|name| !names_statistic(name))
        .map(|name| format!("{name:?}"))
        .collect();
    let frozen = group(&format!(r#"{{"parameters": [{}], "frozen": true}}"#, names.join(", ")));
    assert_eq!(resolve(&frozen, &norms), Err(GroupError::AllFrozen));
}

#[test]
fn groups_that_cannot_be_say_what_is_there() {
    let check = |text: &str, expected: &str| {
        let config = read(text);
        let message = match config.validate() {
            Err(error) => error.to_string(),
            Ok(()) => resolve(&config, &encoder()).unwrap_err().to_string(),
        };
        assert!(message.contains(expected), "{message}");
    };
    check(r#"{"groups": [{"parameters": ["tail.*"]}]}"#, "`tail.*`, and no parameter");
    check(r#"{"groups": [{"parameters": ["tail.*"]}]}"#, "there are `embedding.weight`");
    check(r#"{"groups": [{"parameters": []}]}"#, "at least one name");
    check(r#"{"groups": [{"parameters": ["*"], "frozen": true}]}"#, "freezes every parameter");
    check(r#"{"groups": [{"parameters": ["*"], "learning_rate": 0}]}"#, "learning_rate` is 0");
    check(r#"{"groups": [{"parameters": ["*"], "learning_rate": 1e308}]}"#, "or `frozen = true`");
    check(
        r#"{"groups": [{"parameters": ["*"], "learning_rate": 1e-50}]}"#,
        "learning_rate` is 1e-50; it must be above 0 and a normal number of f32",
    );
    check(
        r#"{"groups": [{"parameters": ["head.*"], "learning_rate": 1e-30}],
            "layer_decay": {"factor": 1e-9, "layers": ["encoder.layers.0.*", "encoder.layers.1.*"]}}"#,
        "layer_decay.factor` is 1e-9; it must be above 0 and at most 1, and no rate",
    );
    check(
        r#"{"groups": [{"parameters": ["*"], "frozen": true, "unfreeze_at": 2}]}"#,
        "frozen for the whole run",
    );
    check(
        r#"{"epochs": 4, "groups": [{"parameters": ["head.*"], "unfreeze_at": 5}]}"#,
        "unfreeze_at` is 5; it must be at least 1 and at most `train.epochs`, or `frozen",
    );
    check(
        r#"{"groups": [{"parameters": ["encoder.*", "head.*"]}, {"parameters": ["head.*"]}]}"#,
        "`train.groups` names `head.*`, and whatever is called so belongs to an earlier",
    );
    check(
        r#"{"layer_decay": {"factor": 0.5, "layers": ["encoder.*", "encoder.layers.{}.*"]}}"#,
        "`train.layer_decay.layers` names `encoder.layers.{}.*`, and whatever",
    );
    check(r#"{"layer_decay": {"factor": 0.5, "layers": []}}"#, "layers` is 0; it must be at");
    check(r#"{"layer_decay": {"factor": 1.5, "layers": []}}"#, "layer_decay.factor` is 1.5");
    check(
        r#"{"layer_decay": {"factor": 0.5, "layers": ["block.{}.*"]}}"#,
        "`train.layer_decay.layers` names `block.{}.*`",
    );
}

#[test]
fn all_names_are_told_however_many_layers_there_are() {
    let mut layouts = encoder();
    layouts.extend((0..40).map(|layer| layout(&format!("lstm.weight_ih_l{layer}_reverse"), 2)));
    let told = "`embedding.weight`, `encoder.layers.*.linear.weight`, `encoder.layers.*.norm.bias`, `head.weight`, `lstm.weight_ih_l*_reverse`, where `*` stands for the numbers";
    assert_eq!(known(&layouts), told);
    // Each may be written as it is told.
    for pattern in told.split('`').skip(1).step_by(2).filter(|text| *text != "*") {
        assert!(layouts.iter().any(|layout| matches(pattern, &layout.name)), "{pattern}");
    }
    assert_eq!(known(&[layout("bias", 1)]), "`bias`");
}

#[test]
fn of_several_names_one_that_is_misspelt_or_that_is_no_number_is_refused() {
    let said = |text: &str, layouts: &[Layout]| {
        resolve(&read(text), layouts).map(drop).map_err(|error| error.to_string())
    };
    let layers = |names: &str| {
        let text = format!(r#"{{"layer_decay": {{"factor": 0.5, "layers": [{names}]}}}}"#);
        said(&text, &recurrent())
    };
    let refused = |said: Result<(), String>, expected: &str| {
        let said = said.unwrap_err();
        assert!(said.contains(expected), "{said}");
    };
    layers(r#""lstm.*_l{}*", "norm.*|head.*""#).unwrap();
    // What another model has is passed over.
    layers(r#""lstm.*|segments.*|encoder.lstm.*", "head.*""#).unwrap();
    refused(layers(r#""lstm.*|nrom.*", "head.*""#), "names `nrom.*`, and no parameter");
    refused(layers(r#""lstm.*|nrom.*", "head.*""#), "did you mean `norm.*`?");
    for beside in ["norm.*", "nrom.*", "tokem"] {
        let several = format!(r#""lstm.*_l{{}}*|{beside}", "head.*""#);
        let expected = format!("of each number, and `{beside}` has none; name it as a layer");
        refused(layers(&several), &expected);
    }
    let frozen = |names: &str| {
        let text = format!(r#"{{"groups": [{{"parameters": ["{names}"], "frozen": true}}]}}"#);
        said(&text, &recurrent())
    };
    frozen("norm.*|lstm.*").unwrap();
    refused(frozen("norm.*|lst.*"), "`train.groups` names `lst.*`");
    refused(frozen("nrom.*|segments.*"), "`train.groups` names `nrom.*`");
    refused(frozen("tokens.*|segments.*"), "`train.groups` names `tokens.*|segments.*`");
    // One that is like a name beside it is no slip for it.
    let number = r#"{"groups": [{"parameters": ["encoder.layers.0.*|encoder.layers.5.*"]}]}"#;
    said(number, &encoder()).unwrap();
    frozen("norm.*|norms.bias").unwrap();
    refused(frozen("lstm.*|nrom*"), "did you mean `norm.*`?");
}

#[test]
fn of_several_names_each_model_takes_its_own() {
    let config = read(
        r#"{"groups": [{"parameters": ["norm.*|embedding.*"], "frozen": true}],
            "layer_decay": {"factor": 0.5,
            "layers": ["lstm.*_l{}|encoder.layers.{}.*", "norm.*|embedding.*", "head.*"]}}"#,
    );
    let models = [recurrent(), encoder()];
    check_groups_of_several(&models, &config).unwrap();
    let [of_recurrent, of_encoder] = models.map(|layouts| own(&config, &layouts));
    assert_eq!(of_recurrent.groups[0].parameters, ["norm.*"]);
    assert_eq!(of_recurrent.layer_decay.unwrap().layers, ["lstm.*_l{}", "norm.*", "head.*"]);
    assert_eq!(of_encoder.groups[0].parameters, ["embedding.*"]);
    let layers = ["encoder.layers.{}.*", "embedding.*", "head.*"];
    assert_eq!(of_encoder.layer_decay.unwrap().layers, layers);
}

#[test]
fn several_names_are_of_one_layer() {
    let pattern = "encoder.tokens.*|encoder.norm.weight";
    assert!(matches(pattern, "encoder.tokens.weight") && matches(pattern, "encoder.norm.weight"));
    assert!(!matches(pattern, "encoder.norm.bias") && !matches(pattern, "tokens.weight"));
    assert_eq!(number_in("input.*|layers.{}.weight", "layers.12.weight"), Some(12));
    assert_eq!(number_in("a.{}.x|b.{}.y", "b.3.y"), Some(3));
    assert_eq!(number_in("a.{}.x|b.{}.y", "b.3.x"), None);
}
