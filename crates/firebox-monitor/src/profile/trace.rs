//! What a profile tells: a timeline in the Trace Event Format, which Perfetto and Chromium's
//! `chrome://tracing` read, and the time of each kind of span.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{STEP, WAITING};

/// A span of time on one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What was done.
    pub name: &'static str,
    /// More about it.
    pub fields: Vec<(&'static str, String)>,
    /// Number of the thread, from 1.
    pub thread: u64,
    /// Name of the thread.
    pub thread_name: String,
    /// Microseconds from the begin of the first profiled step.
    pub start_us: f64,
    /// Microseconds.
    pub duration_us: f64,
}

impl Span {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// Whether it tells of a kernel, or of what the host does around it.
    fn category(&self) -> &'static str {
        if self.field("shape").is_some() { "kernel" } else { "host" }
    }
}

/// The spans of some training steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Steps that were profiled.
    pub steps: u64,
    /// Spans in the order in which they ended.
    pub spans: Vec<Span>,
    /// Spans for which there was no room.
    pub left_out: u64,
    /// How often memory was taken, and how many bytes, by all threads together; `None` in a program
    /// whose allocator is not [`Counted`](super::Counted).
    pub allocations: Option<(u64, u64)>,
}

/// All spans of one name and shape.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanTotal {
    /// The name.
    pub name: String,
    /// The shape that a kernel had; empty for what is no kernel.
    pub shape: String,
    /// Operations of all of them.
    pub operations: f64,
    /// Bytes that all of them read and wrote at least.
    pub bytes: f64,
    /// Whether its products are of bf16.
    pub bf16: bool,
    /// How many there were.
    pub count: u64,
    /// Milliseconds of all of them.
    pub total_ms: f64,
    /// Milliseconds of them that no span within them had.
    pub own_ms: f64,
    /// Milliseconds of the longest.
    pub longest_ms: f64,
    /// Whether they ran beside the training loop, in another thread.
    pub beside: bool,
}

impl Profile {
    /// The timeline as JSON text.
    ///
    /// Source: "Trace Event Format" (Google, 2016): complete events, times in microseconds.
    pub fn trace(&self) -> String {
        let mut events: Vec<Value> = vec![];
        let mut threads = BTreeMap::new();
        for span in &self.spans {
            threads.insert(span.thread, span.thread_name.clone());
            let args: serde_json::Map<String, Value> = span
                .fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect();
            events.push(json!({
                "name": span.name, "cat": span.category(), "ph": "X", "pid": 1, "tid": span.thread,
                "ts": span.start_us, "dur": span.duration_us, "args": args,
            }));
        }
        for (thread, name) in threads {
            let args = json!({ "name": name });
            events.push(json!({
                "name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": args,
            }));
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
    }

    /// Each kind of span, by the time that it had to itself; those beside the training loop last.
    pub fn totals(&self) -> Vec<SpanTotal> {
        let main = self.spans.iter().find(|span| span.name == STEP).map(|span| span.thread);
        let own = self.own();
        let mut totals: BTreeMap<(bool, &str, &str), SpanTotal> = BTreeMap::new();
        for (span, own_us) in self.spans.iter().zip(own) {
            let beside = main.is_some_and(|main| main != span.thread);
            let shape = span.field("shape").unwrap_or_default();
            let number = |name| span.field(name).and_then(|text| text.parse::<f64>().ok());
            let total = totals.entry((beside, span.name, shape)).or_insert_with(|| SpanTotal {
                name: span.name.to_owned(),
                shape: shape.to_owned(),
                operations: 0.0,
                bytes: 0.0,
                bf16: span.field("bf16") == Some("true"),
                count: 0,
                total_ms: 0.0,
                own_ms: 0.0,
                longest_ms: 0.0,
                beside,
            });
            total.count += 1;
            total.operations += number("operations").unwrap_or(0.0);
            total.bytes += number("bytes").unwrap_or(0.0);
            total.total_ms += span.duration_us / 1e3;
            total.own_ms += own_us / 1e3;
            total.longest_ms = total.longest_ms.max(span.duration_us / 1e3);
        }
        let mut totals: Vec<SpanTotal> = totals.into_values().collect();
        totals.sort_by(|a, b| a.beside.cmp(&b.beside).then(b.own_ms.total_cmp(&a.own_ms)));
        totals
    }

    /// Kernels that the training loop launched.
    pub fn launches(&self) -> usize {
        self.spans.iter().filter(|span| span.field("shape").is_some()).count()
    }

    /// How often the host waited for the device.
    pub fn synchronisations(&self) -> usize {
        self.spans.iter().filter(|span| span.name == WAITING).count()
    }

    /// Microseconds of each span that no span directly within it had.
    fn own(&self) -> Vec<f64> {
        let mut own: Vec<f64> = self.spans.iter().map(|span| span.duration_us).collect();
        let mut order: Vec<usize> = (0..self.spans.len()).collect();
        // By thread and begin; of spans that begin together, the one that ended last holds the other.
        order.sort_by(|a, b| {
            let (x, y) = (&self.spans[*a], &self.spans[*b]);
            x.thread.cmp(&y.thread).then(x.start_us.total_cmp(&y.start_us)).then(b.cmp(a))
        });
        let mut around: Vec<usize> = vec![];
        for place in order {
            let span = &self.spans[place];
            let holds = |outer: &usize| {
                let outer = &self.spans[*outer];
                let end = outer.start_us + outer.duration_us;
                outer.thread == span.thread && span.start_us < end.max(outer.start_us + 1e-9)
            };
            while around.last().is_some_and(|outer| !holds(outer)) {
                around.pop();
            }
            if let Some(outer) = around.last() {
                own[*outer] -= span.duration_us;
            }
            around.push(place);
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &'static str, thread: u64, start_us: f64, duration_us: f64) -> Span {
        let thread_name = format!("thread {thread}");
        Span {
            name,
            fields: vec![("n", "1".to_owned())],
            thread,
            thread_name,
            start_us,
            duration_us,
        }
    }

    fn profile() -> Profile {
        let spans = vec![
            span("wait", 1, 0.0, 1000.0),
            span("inner", 1, 1500.0, 500.0),
            span("forward", 1, 1000.0, 3000.0),
            span("save", 2, 500.0, 9000.0),
            span("step", 1, 0.0, 10_000.0),
            span("validation", 1, 10_000.0, 2000.0),
        ];
        Profile { steps: 1, spans, left_out: 0, allocations: None }
    }

    #[test]
    fn own_time_is_what_the_spans_within_leave() {
        let totals = profile().totals();
        let own: Vec<(&str, f64, bool)> =
            totals.iter().map(|t| (t.name.as_str(), t.own_ms, t.beside)).collect();
        let expected = [
            ("step", 6.0, false),
            ("forward", 2.5, false),
            ("validation", 2.0, false),
            ("wait", 1.0, false),
            ("inner", 0.5, false),
            ("save", 9.0, true),
        ];
        assert_eq!(own, expected);
        // Nothing is counted twice and nothing is lost.
        let all: f64 = totals.iter().filter(|t| !t.beside).map(|t| t.own_ms).sum();
        assert!((all - 12.0).abs() < 1e-9);
    }

    #[test]
    fn kernels_are_told_apart_by_their_shapes_with_their_work() {
        let kernel = |shape: &str, start_us| {
            let fields =
                [("shape", shape), ("operations", "2e6"), ("bytes", "500.0"), ("bf16", "true")];
            let fields = fields.map(|(name, value)| (name, value.to_owned())).to_vec();
            Span { fields, ..span("linear", 1, start_us, 100.0) }
        };
        let spans = vec![
            kernel("[4, 2, 3]", 0.0),
            kernel("[8, 2, 3]", 200.0),
            kernel("[4, 2, 3]", 400.0),
            span("read back", 1, 600.0, 50.0),
            span("step", 1, 0.0, 1000.0),
        ];
        let profile = Profile { steps: 1, spans, left_out: 0, allocations: Some((3, 4096)) };
        assert_eq!((profile.launches(), profile.synchronisations()), (3, 1));
        let totals = profile.totals();
        let of = |shape: &str| totals.iter().find(|total| total.shape == shape).unwrap();
        let (small, large) = (of("[4, 2, 3]"), of("[8, 2, 3]"));
        assert_eq!((small.count, small.operations, small.bytes), (2, 4e6, 1000.0));
        assert_eq!((large.count, large.operations, large.bf16), (1, 2e6, true));
        let trace: Value = serde_json::from_str(&profile.trace()).unwrap();
        assert_eq!(trace["traceEvents"][0]["cat"], "kernel");
        assert_eq!(trace["traceEvents"][3]["cat"], "host");
    }

    #[test]
    fn the_trace_is_that_of_the_format() {
        let trace: Value = serde_json::from_str(&profile().trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 6 + 2);
        for event in events {
            assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["name"].is_string());
            match event["ph"].as_str() {
                Some("X") => {
                    assert!(event["ts"].as_f64() >= Some(0.0) && event["dur"].as_f64() > Some(0.0));
                    assert_eq!(event["args"]["n"], "1");
                }
                Some("M") => assert_eq!(event["name"], "thread_name"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(Profile::default().totals(), []);
        assert!(Profile::default().trace().contains("\"traceEvents\":[]"));
    }
}
