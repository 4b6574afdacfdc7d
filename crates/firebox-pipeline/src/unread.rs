//! What a kind of pipeline does not read is refused, so that nobody waits for an effect of it.
//!
//! Each kind says what it reads; tables that are wholly another kind's are in `config`.

use firebox_eval::EvalConfig;

use crate::PipelineConfig;
use crate::error::PipelineError;

/// Refuses keys of `[evaluate]` other than these, which are all that this kind of pipeline reads.
pub(crate) fn only_evaluates_by(
    config: &PipelineConfig,
    read: &[&str],
) -> Result<(), PipelineError> {
    let table = |evaluate: &EvalConfig| serde_json::to_value(evaluate).unwrap_or_default();
    let (found, usual) = (table(&config.evaluate), table(&EvalConfig::default()));
    let keys = found.as_object().into_iter().flat_map(|keys| keys.keys());
    let mut unread = keys.filter(|key| !read.contains(&key.as_str()) && found[*key] != usual[*key]);
    let Some(key) = unread.next() else { return Ok(()) };
    let last = read.last().copied().unwrap_or_default();
    Err(PipelineError::Setting(format!(
        "`evaluate.{key}` is set, and `{}` does not read it: of [evaluate] it reads {} and {last}\n  \
         take it out",
        config.pipeline.name(),
        read[..read.len().saturating_sub(1)].join(", "),
    )))
}

/// The keys of `[evaluate]` other than these, with the name of the table.
pub(crate) fn not_evaluated_by(read: &[&str]) -> Vec<String> {
    let usual = serde_json::to_value(EvalConfig::default()).unwrap_or_default();
    let keys = usual.as_object().into_iter().flat_map(|keys| keys.keys());
    let unread = keys.filter(|key| !read.contains(&key.as_str()));
    unread.map(|key| format!("evaluate.{key}")).collect()
}

#[cfg(test)]
mod tests {
    use crate::PipelineConfig;
    use crate::prepared::check;

    const FORECAST: &str =
        "pipeline = 'forecast'\n[forecast]\ntargets = ['close']\n[model.stacked-lstm]\n";
    const FOLDS: &str =
        "pipeline = 'multitimeframe'\n[labels.return]\nhorizon = 1\nthreshold = 0.0\n";
    const TEXT: &str = "pipeline = 'text'\n[text]\npath = 'a.csv'\n";

    fn said(text: &str) -> String {
        let config: PipelineConfig = toml::from_str(text).unwrap();
        check(&config).err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn what_a_kind_does_not_read_is_refused_by_name() {
        let refused = |begin: &str, rest: &str, expected: &str| {
            assert_eq!(said(begin), "", "{begin}");
            let said = said(&format!("{begin}{rest}"));
            assert!(said.contains(expected), "{rest}: {said}");
        };
        let limit = "`evaluate.test_limit` is set, and `forecast` does not read it";
        refused(FORECAST, "[evaluate]\ntest_limit = 5", limit);
        let finetune = "pipeline = 'finetune'\nlabels = 'last'\n";
        refused(finetune, "[evaluate]\nseeds = 2", "`evaluate.seeds` is set");
        refused(finetune, "[evaluate.knn]\nneighbours = 3", "`evaluate.knn` is set");
        refused(FOLDS, "[evaluate]\nbatch_size = 2", "`evaluate.batch_size` is set");
        let rate = "[train.optimizer.adamw]\nlearning_rate = 0.5";
        refused(FOLDS, rate, "multitimeframe.lstm.learning_rate");
        for size in ["batch_size = 4", "batch_size = 'auto'", "tokens = 100"] {
            refused(FOLDS, &format!("[loader]\n{size}"), "multitimeframe.lstm.batch_size");
        }
        let clips = "pipeline = 'pseudolabel'\n";
        refused(clips, "[evaluate]\nseeds = 2", "`evaluate.seeds` is set");
        refused(TEXT, "test = 'a.csv'", "`text.test` is the file of `text.path`");
        refused(TEXT, "[text.loss]\ncriteria = 0.0", "nothing would be learnt");
        refused(TEXT, "[text.loss]\nspan = 2.0", "there is no evidence to weigh");
        refused(TEXT, "[text.tokenizer]\nleast = 0", "`text.tokenizer.least` is 0");
    }

    #[test]
    fn numbers_of_steps_that_no_series_has_are_refused() {
        // TOML's own whole numbers end below 2^63; `--set` and the environment have more.
        let most = "it must be at most 4294967295";
        for (begin, key) in [
            ("[labels.return]\nthreshold = 0.0\nhorizon = ", "labels.return.horizon"),
            ("[labels.forward]\nthreshold = 0.0\nhorizon = ", "labels.forward.horizon"),
            ("[split.time]\ngap = ", "split.time.gap"),
        ] {
            let said = said(&format!("{begin}4294967296"));
            assert!(said.contains(&format!("`{key}` has 4294967296 steps; {most}")), "{said}");
        }
        let folds = said(&format!("{FOLDS}[multitimeframe.folds]\nembargo = 9223372036854775807"));
        assert!(
            folds.starts_with("`multitimeframe.folds.embargo` has 9223372036854775807"),
            "{folds}"
        );
    }

    #[test]
    fn what_could_never_run_is_said_before_any_data_is_read() {
        assert!(said("[window]\nstride = 0").contains("`window.stride` is 0"));
        let timeframes = said("[data.timeframes]\nbase = '7min'");
        assert!(timeframes.contains("it must divide a day"), "{timeframes}");
        let higher = said("[data.timeframes]\nhigher = ['15min']");
        assert!(higher.contains("it must be longer than 15min"), "{higher}");
        assert_eq!(said("[loader]\nbatch_size = 'auto'"), "");
        let few = "[loader]\ntokens = 5\n";
        assert!(said(few).contains("`loader.tokens` is 5, and a window has"), "{}", said(few));
        assert!(!said(&format!("{few}[window]\nwhole = true")).contains("tokens"));
        assert_eq!(said(&format!("{TEXT}{few}")), "");
        let equal = "[loader]\nbuckets = 8\n";
        let refused = said(equal);
        assert!(
            refused.contains("`loader.buckets` is 8, and all windows have the same"),
            "{refused}"
        );
        assert!(refused.contains("leave it out"), "{refused}");
        assert_eq!(said(&format!("{equal}[window]\nwhole = true")), "");
        assert_eq!(said(&format!("{TEXT}{equal}")), "");
        let masks = "masking = { time_masks = 1000000, longest = 0.1 }\n";
        for (begin, table) in [
            (FORECAST.replace("[forecast]\n", &format!("[forecast]\n{masks}")), "forecast"),
            (format!("{FOLDS}[multitimeframe]\n{masks}"), "multitimeframe"),
            (format!("pipeline = 'pseudolabel'\n[pseudolabel]\n{masks}"), "pseudolabel"),
            (format!("pipeline = 'finetune'\nlabels = 'last'\n[finetune]\n{masks}"), "finetune"),
        ] {
            let said = said(&begin);
            let wanted = format!("`{table}.masking.time_masks` is 1000000; it must be at most ");
            assert!(said.starts_with(&wanted), "{said}");
        }
        let short = "[window]\nlength = 16\n[forecast.masking]\ntime_masks = 2\nlongest = 0.05\n";
        let short = said(&format!("{FORECAST}{short}"));
        assert!(short.starts_with("`forecast.masking.longest` is 0.05, which is less"), "{short}");
        let ftp = said("[data]\npath = 'ftp://server/bars.csv'");
        assert!(ftp.contains("use s3://, gs://, az:// or https://"), "{ftp}");
        let memory = "[loader]\nresident = 'memory'\n";
        assert_eq!(said(memory), "");
        let online = said(&format!("{memory}[augment]\nmode = 'online'"));
        let wanted = "`loader.resident` is \"memory\", and `augment.mode` is \"online\"";
        assert!(online.contains(wanted) && online.contains("\"cached\""), "{online}");
        let finetune = format!("pipeline = 'finetune'\nlabels = 'last'\n{memory}");
        assert!(said(&finetune).contains("`finetune.versions` is 1"), "{}", said(&finetune));
        assert_eq!(said(&format!("{finetune}[finetune]\nversions = 0")), "");
    }
}
