//! A model of texts on tables of new ones.

use firebox_export::TextInput;
use firebox_models::{Pooling, TextEncoderConfig, TextHeadsConfig};
use firebox_text::{Tokenizer, WordPieceTraining};

use super::*;

/// A model of two labels, which also looks for evidence where that is wanted.
pub(crate) fn labeller(span: bool) -> SavedModel {
    let encoder = TextEncoderConfig {
        vocabulary: 64,
        positions: 16,
        width: 8,
        heads: 2,
        layers: 1,
        feedforward: 8,
        ..TextEncoderConfig::default()
    };
    let config = TextHeadsConfig { labels: 2, pooling: Pooling::Mean, dropout: 0.0, span };
    let (device, stream) = (Device::default(), Stream::new(3, "weights"));
    let made = config.init(encoder.init(stream, &device).unwrap(), stream, &device).unwrap();
    let training = WordPieceTraining { vocabulary: 64, least: 1, ..WordPieceTraining::default() };
    let tokenizer = training.train(["one text and another one"]).unwrap();
    let of_windows = BiLstmMaeConfig { hidden: 5, decoder_hidden: 4, ..Default::default() };
    let of_windows = Architecture::BilstmMae { config: of_windows, channels: 4 };
    let mut card = model(of_windows, &["late", "lost"]).card;
    card.task = Task::Labelling;
    card.architecture = Architecture::Text { config, encoder };
    card.scores = [("test/macro_f1".to_owned(), 0.5)].into();
    card.texts = Some(TextInput {
        column: "text".to_owned(),
        longest: 12,
        thresholds: vec![0.25, 0.5],
        unknown: None,
        tokenizer: String::new(),
    });
    let tokenizer = Some(tokenizer.to_json().to_owned());
    SavedModel { card, parameters: read_parameters(&made), tokenizer }
}

#[test]
fn what_is_no_finite_number_is_refused_with_the_row_of_its_text() {
    let mut odd = labeller(true);
    let id = Tokenizer::from_text(odd.tokenizer.as_ref().unwrap()).unwrap().id("another").unwrap();
    let mut parameters = odd.parameters.iter_mut();
    let vectors = parameters.find(|parameter| parameter.shape == [64, 8]).unwrap();
    vectors.values[id as usize * 8] = f32::NAN;
    let project = Project::new(&odd);
    std::fs::write(project.at("new.csv"), "text\none text\nand another one\ntext\n").unwrap();
    for wanted in [Wanted::Prediction, Wanted::Embedding { wide: false }] {
        let said = refused(&project.request(&["new.csv"], wanted));
        let place = format!("the text in row 2 of {} is no", project.at("new.csv").display());
        assert!(said.contains(&place) && said.contains("--precision f32 may help"), "{said}");
    }
    std::fs::write(project.at("new.csv"), "text\none text\ntext\n").unwrap();
    assert_eq!(run(&project.request(&["new.csv"], Wanted::Prediction)).unwrap().windows, 2);
}

#[test]
fn texts_of_which_no_word_is_known_are_told_beside_many_that_are() {
    let project = Project::new(&labeller(false));
    let rows = |strange: usize| "one text and another one\n".repeat(97) + &"Ω Ω\n".repeat(strange);
    let said = |strange: usize| {
        std::fs::write(project.at("new.csv"), format!("text\n{}", rows(strange))).unwrap();
        let mut request = project.request(&["new.csv"], Wanted::Prediction);
        request.force = true;
        let (applied, warnings) = heard(&request);
        assert_eq!(applied.windows as usize, 97 + strange);
        let warnings = warnings.into_iter();
        warnings.filter(|message| message.contains("vocabulary")).collect::<Vec<String>>()
    };
    assert_eq!(said(0), [""; 0]);
    // Six tokens of 491 are unknown, all of those of three texts.
    let [found] = &said(3)[..] else { panic!("one warning") };
    let file = project.at("new.csv").display().to_string();
    let places = format!("row 98 of {file}, row 99 of {file}, row 100 of {file}");
    let start = "of 3 of 100 texts, half of the tokens or more are unknown to the model's";
    assert!(found.starts_with(start) && found.contains(&places), "{found}");
}

#[test]
fn files_of_a_folder_that_are_no_tables_of_texts_are_left_aside() {
    let project = Project::new(&labeller(false));
    std::fs::create_dir(project.at("new")).unwrap();
    std::fs::write(project.at("new/a.csv"), "text\none text\n").unwrap();
    std::fs::write(project.at("new/b.json"), "{\"text\": \"and another one\"}").unwrap();
    let done = run(&project.request(&["new"], Wanted::Prediction)).unwrap();
    assert_eq!((done.files, done.windows), (1, 1));
}
