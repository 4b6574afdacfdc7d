//! What a profile tells: a timeline in the Trace Event Format, which Perfetto and Chromium's
//! `chrome://tracing` read, and the time of each kind of span.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{STEP, WAITING};

/// A span of time on one thread of the host, or of a kernel on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// What was done.
    pub name: Cow<'static, str>,
    /// More about it.
    pub fields: Vec<(&'static str, String)>,
    /// Number of the thread, from 1; of kernels that run at once on the device, their number.
    pub thread: u64,
    /// Name of the thread.
    pub thread_name: String,
    /// Whether it is a kernel that the device has measured.
    pub on_device: bool,
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
        if self.on_device || self.field("shape").is_some() { "kernel" } else { "host" }
    }

    /// Number of what the trace calls a process: the host, and the device.
    fn process(&self) -> u64 {
        if self.on_device { 2 } else { 1 }
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
    /// Kernels that were launched on the device while a profiled step went on, whether it measured them or not.
    pub launched: u64,
    /// Kernels that were launched on the device, but that it did not measure.
    pub unmeasured: u64,
    /// Kernels of the device that the host has timed, because the device could not.
    pub by_host: u64,
    /// How often memory was taken while a profiled step went on, and how many bytes, by all threads together; `None` in
    /// a program whose allocator is not [`Counted`](super::Counted).
    pub allocations: Option<(u64, u64)>,
}

/// When the steps among some spans went on, in microseconds, one after the other, and in which thread each.
pub(super) struct Steps(Vec<(u64, [f64; 2])>);

impl Steps {
    pub(super) fn of(spans: &[Span]) -> Self {
        let steps = spans.iter().filter(|span| span.name == STEP);
        let time = |span: &Span| [span.start_us, span.start_us + span.duration_us];
        Self(steps.map(|span| (span.thread, time(span))).collect())
    }

    /// The thread of the one that went on at a moment in microseconds.
    pub(super) fn thread_at(&self, moment_us: f64) -> Option<u64> {
        let place = self.0.partition_point(|(_, [_, end])| *end <= moment_us);
        let (thread, [start, _]) = self.0.get(place)?;
        (*start <= moment_us).then_some(*thread)
    }
}

/// Where a span was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the thread of the training loop.
    Loop,
    /// On the device.
    Device,
    /// Beside the training loop, in another thread.
    Beside,
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
    /// Where they were.
    pub place: Place,
}

impl Profile {
    /// The timeline as JSON text.
    ///
    /// Source: "Trace Event Format" (Google, 2016): complete events, times in microseconds.
    pub fn trace(&self) -> String {
        let mut events: Vec<Value> = vec![];
        let mut threads = BTreeMap::new();
        for span in &self.spans {
            threads.insert((span.process(), span.thread), span.thread_name.clone());
            let args: serde_json::Map<String, Value> = span
                .fields
                .iter()
                .map(|(name, value)| ((*name).to_owned(), json!(value)))
                .collect();
            events.push(json!({
                "name": span.name, "cat": span.category(), "ph": "X", "pid": span.process(),
                "tid": span.thread, "ts": span.start_us, "dur": span.duration_us, "args": args,
            }));
        }
        let mut name = |what: &str, process: u64, thread: u64, name: &str| {
            events.push(json!({
                "name": what, "ph": "M", "pid": process, "tid": thread, "args": { "name": name },
            }));
        };
        for (process, called) in [(1, "host"), (2, "device")] {
            if let Some((_, thread)) = threads.keys().find(|key| key.0 == process) {
                name("process_name", process, *thread, called);
            }
        }
        for ((process, thread), called) in &threads {
            name("thread_name", *process, *thread, called);
        }
        json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
    }

    /// Each kind of span, by the time that it had to itself: those of the training loop, those of the
    /// device, and those of other threads.
    pub fn totals(&self) -> Vec<SpanTotal> {
        let main = self.spans.iter().find(|span| span.name == STEP).map(|span| span.thread);
        let own = self.own();
        let mut totals: BTreeMap<(Place, &str, &str), SpanTotal> = BTreeMap::new();
        for (span, own_us) in self.spans.iter().zip(own) {
            let place = match () {
                () if span.on_device => Place::Device,
                () if main.is_some_and(|main| main != span.thread) => Place::Beside,
                () => Place::Loop,
            };
            let shape = span.field("shape").unwrap_or_default();
            let number = |name| span.field(name).and_then(|text| text.parse::<f64>().ok());
            let total = totals.entry((place, &span.name, shape)).or_insert_with(|| SpanTotal {
                name: span.name.to_string(),
                shape: shape.to_owned(),
                operations: 0.0,
                bytes: 0.0,
                bf16: span.field("bf16") == Some("true"),
                count: 0,
                total_ms: 0.0,
                own_ms: 0.0,
                longest_ms: 0.0,
                place,
            });
            total.count += 1;
            total.operations += number("operations").unwrap_or(0.0);
            total.bytes += number("bytes").unwrap_or(0.0);
            total.total_ms += span.duration_us / 1e3;
            total.own_ms += own_us / 1e3;
            total.longest_ms = total.longest_ms.max(span.duration_us / 1e3);
        }
        let mut totals: Vec<SpanTotal> = totals.into_values().collect();
        totals.sort_by(|a, b| a.place.cmp(&b.place).then(b.own_ms.total_cmp(&a.own_ms)));
        totals
    }

    /// Kernels that the training loop launched within its steps. Those of a validation between two steps are not among
    /// them.
    pub fn launches(&self) -> usize {
        let steps = Steps::of(&self.spans);
        let is_own = |span: &&Span| {
            let on_host = span.category() == "kernel" && !span.on_device;
            on_host && steps.thread_at(span.start_us) == Some(span.thread)
        };
        let on_host = self.spans.iter().filter(is_own).count();
        on_host + usize::try_from(self.launched).unwrap_or(usize::MAX)
    }

    /// Milliseconds in which the device ran at least one kernel; `None` if it measured none.
    pub fn device_busy_ms(&self) -> Option<f64> {
        let mut kernels: Vec<(f64, f64)> = self
            .spans
            .iter()
            .filter(|span| span.on_device)
            .map(|span| (span.start_us, span.start_us + span.duration_us))
            .collect();
        kernels.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy, mut until) = (0.0, f64::MIN);
        for (start, end) in &kernels {
            busy += (end - start.max(until)).max(0.0);
            until = until.max(*end);
        }
        (!kernels.is_empty()).then_some(busy / 1e3)
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
            let threads = (x.on_device, x.thread).cmp(&(y.on_device, y.thread));
            threads.then(x.start_us.total_cmp(&y.start_us)).then(b.cmp(a))
        });
        let mut around: Vec<usize> = vec![];
        for place in order {
            let span = &self.spans[place];
            let holds = |outer: &usize| {
                let outer = &self.spans[*outer];
                let end = outer.start_us + outer.duration_us;
                let same = (outer.on_device, outer.thread) == (span.on_device, span.thread);
                same && span.start_us < end.max(outer.start_us + 1e-9)
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
            name: Cow::Borrowed(name),
            fields: vec![("n", "1".to_owned())],
            thread,
            thread_name,
            on_device: false,
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
        Profile { steps: 1, spans, ..Profile::default() }
    }

    #[test]
    fn own_time_is_what_the_spans_within_leave() {
        let totals = profile().totals();
        let own: Vec<(&str, f64, Place)> =
            totals.iter().map(|t| (t.name.as_str(), t.own_ms, t.place)).collect();
        let expected = [
            ("step", 6.0, Place::Loop),
            ("forward", 2.5, Place::Loop),
            ("validation", 2.0, Place::Loop),
            ("wait", 1.0, Place::Loop),
            ("inner", 0.5, Place::Loop),
            ("save", 9.0, Place::Beside),
        ];
        assert_eq!(own, expected);
        // Nothing is counted twice and nothing is lost.
        let all: f64 = totals.iter().filter(|t| t.place == Place::Loop).map(|t| t.own_ms).sum();
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
        let profile =
            Profile { steps: 1, spans, allocations: Some((3, 4096)), ..Profile::default() };
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
    fn kernels_of_a_step_are_those_that_its_loop_launched_within_it() {
        let kernel = |thread, start_us| {
            let fields = vec![("shape", "[4]".to_owned())];
            Span { fields, ..span("linear", thread, start_us, 100.0) }
        };
        let spans = vec![
            kernel(1, 0.0),
            kernel(1, 900.0),
            // Another thread's.
            kernel(2, 500.0),
            span("step", 1, 0.0, 1000.0),
            // Of the validation.
            kernel(1, 1000.0),
            kernel(1, 1500.0),
            span("validation", 1, 1000.0, 900.0),
            // Of another training, in a thread of its own.
            kernel(3, 2100.0),
            span("step", 3, 2000.0, 1000.0),
        ];
        let profile = Profile { steps: 2, spans, launched: 5, ..Profile::default() };
        assert_eq!(profile.launches(), 3 + 5);
        assert_eq!(Profile::default().launches(), 0);
    }

    #[test]
    fn kernels_of_a_device_are_beside_the_loop_and_count_in_nothing_of_the_host() {
        let kernel = |thread, start_us, duration_us| Span {
            on_device: true,
            ..span("masked", thread, start_us, duration_us)
        };
        let mut profile = profile();
        let host = profile.totals();
        // The second overlaps the first by 100 µs.
        profile.spans.extend([kernel(1, 1000.0, 400.0), kernel(2, 1300.0, 500.0)]);
        // Of five launches, one was within no step; when the device ran them says nothing of that.
        profile.launched = 4;
        assert_eq!(profile.launches(), 4);
        assert!((profile.device_busy_ms().unwrap() - 0.8).abs() < 1e-9);
        let totals = profile.totals();
        let (device, others): (Vec<_>, Vec<_>) =
            totals.into_iter().partition(|total| total.place == Place::Device);
        assert_eq!(others, host);
        assert_eq!((device.len(), device[0].count, device[0].own_ms), (1, 2, 0.9));
        let trace: Value = serde_json::from_str(&profile.trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let on = |process: u64| events.iter().filter(|event| event["pid"] == process).count();
        assert_eq!((on(1), on(2)), (6 + 2 + 1, 2 + 2 + 1));
        let name = events.iter().find(|e| e["pid"] == 2 && e["name"] == "process_name").unwrap();
        assert_eq!(name["args"]["name"], "device");
        assert_eq!(super::tests::profile().device_busy_ms(), None);
    }

    #[test]
    fn the_trace_is_that_of_the_format() {
        let trace: Value = serde_json::from_str(&profile().trace()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        // Six spans, the names of two threads and that of the host.
        assert_eq!(events.len(), 6 + 2 + 1);
        for event in events {
            assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["name"].is_string());
            match event["ph"].as_str() {
                Some("X") => {
                    assert!(event["ts"].as_f64() >= Some(0.0) && event["dur"].as_f64() > Some(0.0));
                    assert_eq!(event["args"]["n"], "1");
                }
                Some("M") => {
                    assert!(
                        ["thread_name", "process_name"].contains(&event["name"].as_str().unwrap())
                    );
                    assert!(event["args"]["name"].is_string());
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(Profile::default().totals(), []);
        assert!(Profile::default().trace().contains("\"traceEvents\":[]"));
    }
}
