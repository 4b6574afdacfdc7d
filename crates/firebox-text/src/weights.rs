//! Weights in safetensors, in one file or in shards, as parameters of Firebox's text encoder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use firebox_models::{Mismatch, Parameter, TextAttention, TextEncoder, layouts, write_parameters};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::error::{content, json, read};
use crate::{Family, TextError};

/// What weights of a folder went into an encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchReport {
    /// Tensors that went into the encoder.
    pub matched: usize,
    /// Tensors that belong to heads of pre-training and were left out.
    pub left_out: Vec<String>,
}

/// The float tensors of a folder by name.
pub(crate) fn read_tensors(folder: &Path) -> Result<BTreeMap<String, Parameter>, TextError> {
    let (single, index) =
        (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
    let (mut tensors, mut skipped) = (BTreeMap::new(), BTreeSet::new());
    if single.is_file() {
        read_file(&single, &mut tensors, &mut skipped)?;
        return Ok(tensors);
    }
    if index.is_file() {
        let map = json(&index)?;
        let map = map.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| content(&index, "has no table `weight_map`"))?;
        let mut shards: Vec<&str> = map.values().filter_map(Value::as_str).collect();
        shards.sort_unstable();
        shards.dedup();
        for shard in shards {
            // A name, not a path that leads elsewhere.
            if Path::new(shard).file_name().and_then(|name| name.to_str()) != Some(shard) {
                return Err(content(
                    &index,
                    format!("names the file `{shard}` outside its folder"),
                ));
            }
            read_file(&folder.join(shard), &mut tensors, &mut skipped)?;
        }
        // Under another name, or of whole numbers, it was taken or left as it is in one file.
        let is_there =
            |name: &String| tensors.contains_key(&renamed(name)) || skipped.contains(name);
        if let Some(missing) = map.keys().find(|name| !is_there(name)) {
            let found = format!("names a tensor `{missing}` that no shard holds as floats");
            return Err(content(&index, found));
        }
        return Ok(tensors);
    }
    let pickled = ["pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5"];
    match pickled.iter().find(|name| folder.join(name).is_file()) {
        Some(found) => {
            Err(TextError::Pickled { path: folder.to_owned(), found: (*found).to_owned() })
        }
        None => Err(content(
            folder,
            "holds neither `model.safetensors` nor `model.safetensors.index.json`; a folder of a \
             Hugging Face model has config.json, model.safetensors and tokenizer.json",
        )),
    }
}

/// Old checkpoints name the parameters of LayerNorm otherwise.
fn renamed(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((rest, "gamma")) => format!("{rest}.weight"),
        Some((rest, "beta")) => format!("{rest}.bias"),
        _ => name.to_owned(),
    }
}

/// Adds the tensors of floats of a file, and the names of others.
fn read_file(
    path: &Path,
    tensors: &mut BTreeMap<String, Parameter>,
    skipped: &mut BTreeSet<String>,
) -> Result<(), TextError> {
    let bytes = read(path)?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| content(path, format!("is no whole safetensors file: {error}")))?;
    for (name, view) in file.tensors() {
        let data = view.data();
        let values: Vec<f32> = match view.dtype() {
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::F64 => {
                data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect()
            }
            Dtype::F16 => {
                let half = |b: &[u8; 2]| half::f16::from_le_bytes(*b).to_f32();
                data.as_chunks::<2>().0.iter().map(half).collect()
            }
            Dtype::BF16 => {
                let half = |b: &[u8; 2]| half::bf16::from_le_bytes(*b).to_f32();
                data.as_chunks::<2>().0.iter().map(half).collect()
            }
            // Numbers of positions and the like: they are computed here.
            _ => {
                skipped.insert(name);
                continue;
            }
        };
        if let Some(place) = values.iter().position(|value| !value.is_finite()) {
            let found = format!("holds `{name}`, whose number {place} is {}", values[place]);
            return Err(content(path, found));
        }
        let name = renamed(&name);
        let shape = view.shape().to_vec();
        if tensors.insert(name.clone(), Parameter { name: name.clone(), shape, values }).is_some() {
            return Err(content(path, format!("holds a second tensor `{name}`")));
        }
    }
    Ok(())
}

/// Gives an encoder the weights of a folder, all of them or none.
pub(crate) fn load(
    encoder: &mut TextEncoder,
    family: Family,
    folder: &Path,
) -> Result<MatchReport, TextError> {
    let tensors = read_tensors(folder)?;
    let prefix = family.prefix();
    let bare = !tensors.keys().any(|name| name.starts_with(prefix));
    let prefix = if bare { "" } else { prefix };
    let mut left = tensors;
    let (mut mismatch, mut parameters) = (Mismatch::default(), vec![]);
    for layout in layouts(encoder) {
        let shape = layout.torch_shape();
        let sources = sources(family, encoder, &layout.name);
        let parts = sources.len();
        let part_shape: Vec<usize> = shape
            .iter()
            .enumerate()
            .map(|(axis, n)| if axis == 0 { n / parts } else { *n })
            .collect();
        let mut values = Vec::with_capacity(shape.iter().product());
        for source in sources {
            let Some(source) = source else {
                values.resize(values.len() + part_shape.iter().product::<usize>(), 0.0);
                continue;
            };
            let name = format!("{prefix}{source}");
            match left.remove(&name) {
                None => mismatch.missing.push(name),
                Some(found) if found.shape != part_shape => {
                    mismatch.shapes.push((name, part_shape.clone(), found.shape));
                }
                Some(found) => {
                    mismatch.matched += 1;
                    values.extend(found.values);
                }
            }
        }
        parameters.push(Parameter { name: layout.name, shape, values });
    }
    let of_heads = |name: &String| match name.strip_prefix(prefix) {
        // Microsoft's DeBERTa has a table of positions that only its pre-training reads; `transformers` leaves it out, too.
        Some(own) if own.starts_with("embeddings.position_embeddings.") => {
            family == Family::DebertaV2
        }
        Some(own) => own.starts_with("pooler.") || own.ends_with("position_ids"),
        None => true,
    };
    let (left_out, unexpected) = left.into_keys().partition(of_heads);
    mismatch.unexpected = unexpected;
    let weights = |source| TextError::Weights { path: folder.to_owned(), source };
    if !mismatch.is_empty() {
        return Err(weights(mismatch));
    }
    write_parameters(encoder, parameters).map_err(weights)?;
    Ok(MatchReport { matched: mismatch.matched, left_out })
}

/// Where a parameter of the encoder lies in a file: the tensors that stand in it one after another.
/// None: a part that the family does not have and nothing reads.
fn sources(family: Family, encoder: &TextEncoder, name: &str) -> Vec<Option<String>> {
    let one = |name: String| vec![Some(name)];
    let Some((number, part)) = name.strip_prefix("layers.").and_then(|n| n.split_once('.')) else {
        let (module, own) = name.rsplit_once('.').unwrap_or((name, ""));
        return one(match module {
            "tokens" => format!("embeddings.word_embeddings.{own}"),
            "positions" => format!("embeddings.position_embeddings.{own}"),
            "segments" => format!("embeddings.token_type_embeddings.{own}"),
            "embedding_norm" => format!("embeddings.LayerNorm.{own}"),
            "projection" => format!("embeddings_project.{own}"),
            "distances" => format!("encoder.rel_embeddings.{own}"),
            "distance_norm" => format!("encoder.LayerNorm.{own}"),
            other => format!("{other}.{own}"),
        });
    };
    let distil = family == Family::DistilBert;
    let stack = if distil { "transformer" } else { "encoder" };
    let within = |module: &str, own: &str| Some(format!("{stack}.layer.{number}.{module}.{own}"));
    let (module, own) = match part.strip_prefix("attention.in_proj_") {
        Some(own) => ("attention.in_proj", own),
        None => part.rsplit_once('.').unwrap_or((part, "")),
    };
    let modules: &[&str] = match (module, family) {
        ("attention.in_proj", Family::DistilBert) => {
            &["attention.q_lin", "attention.k_lin", "attention.v_lin"]
        }
        ("attention.in_proj", Family::DebertaV2) => {
            &["attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"]
        }
        ("attention.in_proj", _) => {
            &["attention.self.query", "attention.self.key", "attention.self.value"]
        }
        ("attention.global", _) => &[
            "attention.self.query_global",
            "attention.self.key_global",
            "attention.self.value_global",
        ],
        ("attention.positions", _) => {
            let TextAttention::Disentangled(rule) = &encoder.config().attention else {
                return vec![];
            };
            let part = |used: bool, module| used.then(|| within(module, own)).flatten();
            return vec![
                part(rule.position_to_content, "attention.self.pos_query_proj"),
                part(rule.content_to_position, "attention.self.pos_key_proj"),
            ];
        }
        ("attention.out_proj", Family::DistilBert) => &["attention.out_lin"],
        ("attention.out_proj", _) => &["attention.output.dense"],
        ("attention_norm", Family::DistilBert) => &["sa_layer_norm"],
        ("attention_norm", _) => &["attention.output.LayerNorm"],
        ("linear1", Family::DistilBert) => &["ffn.lin1"],
        ("linear1", _) => &["intermediate.dense"],
        ("linear2", Family::DistilBert) => &["ffn.lin2"],
        ("linear2", _) => &["output.dense"],
        ("output_norm", Family::DistilBert) => &["output_layer_norm"],
        ("output_norm", _) => &["output.LayerNorm"],
        (other, _) => return one(format!("{stack}.layer.{number}.{other}.{own}")),
    };
    modules.iter().map(|module| within(module, own)).collect()
}
