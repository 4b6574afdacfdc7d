//! The dashboard as text: from 80 columns on, and with the curves beside the figures from 120 on.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Borders, Chart, Dataset, GraphType, LegendPosition, LineGauge, Paragraph,
    Sparkline, Wrap,
};

use super::live::Live;
use crate::text::{bytes, duration, percent, significant};

/// Lines at the top: how the run is, its device, its progress, and what it has behind it.
const HEAD: u16 = 4;
/// Columns from which curves and figures stand side by side.
const WIDE: u16 = 120;
/// Ratio of the highest loss to the lowest from which the axis is logarithmic.
const LOGARITHMIC: f64 = 10.0;
const TRAINING: Color = Color::Cyan;
const VALIDATION: Color = Color::Yellow;

/// Draws the whole screen. `status` is how the run is; `said` is what the last key did, or none where there are no keys.
pub(crate) fn draw(frame: &mut Frame<'_>, live: &Live, status: &str, said: Option<&str>) {
    // How the run is comes first where there is little room.
    let height = frame.area().height;
    let (head, foot) = (HEAD.min(height), u16::from(said.is_some() && height > HEAD));
    let [head, body, foot] = [head, height - head - foot, foot].map(Constraint::Length);
    let [head, body, foot] = Layout::vertical([head, body, foot]).areas(frame.area());
    // A status that the first line has no room for, such as why a run failed, is told below as a whole.
    let room = usize::from(frame.area().width);
    let told = (status_line(live, status).width() > room).then_some(status);
    draw_head(frame, head, live, status);
    if body.width >= WIDE {
        let [left, right] =
            Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(body);
        let machine = if told.is_some() { 4 } else { 11 };
        let [figures, machine, messages] = Layout::vertical([
            Constraint::Length(8),
            Constraint::Length(machine),
            Constraint::Min(0),
        ])
        .areas(right);
        draw_curves(frame, left, live);
        draw_figures(frame, figures, live);
        draw_machine(frame, machine, live);
        draw_messages(frame, messages, live, told);
    } else {
        // Lines end between words, some letters early.
        let lines = told.map_or(0, |told| {
            1 + Span::raw(told).width().div_ceil(room.saturating_sub(12).max(1)) as u16
        });
        let [curves, below, messages] = Layout::vertical([
            Constraint::Min(6),
            Constraint::Length(8),
            Constraint::Length((3.min(body.height / 6)).max(lines.min(body.height / 2))),
        ])
        .areas(body);
        let [figures, machine] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(below);
        draw_curves(frame, curves, live);
        draw_figures(frame, figures, live);
        draw_machine(frame, machine, live);
        draw_messages(frame, messages, live, told);
    }
    let Some(said) = said else { return };
    let keys = " p pause/go on   s save now   e stop after epoch   q leave";
    let foot_line = if said.is_empty() { Line::from(keys) } else { Line::from(format!(" {said}")) };
    frame.render_widget(foot_line.style(Style::new().add_modifier(Modifier::REVERSED)), foot);
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn block(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(Line::from(format!(" {title} "))).border_style(faint())
}

/// A bar whose filled part differs in its shape, not in its colour alone.
fn bar_of(gauge: LineGauge<'_>, colour: Color) -> LineGauge<'_> {
    let gauge = gauge.filled_symbol("━").unfilled_symbol("─");
    gauge.filled_style(Style::new().fg(colour)).unfilled_style(faint())
}

/// A line that ends with `…` where there is no room for all of it.
fn fitted(line: Line<'_>, width: u16) -> Line<'_> {
    let width = usize::from(width);
    if line.width() <= width {
        return line;
    }
    let mut room = width.saturating_sub(1);
    let mut spans = vec![];
    for span in line.spans {
        let mut kept = String::new();
        for character in span.content.chars() {
            let wide = Span::raw(character.to_string()).width();
            if wide > room {
                room = 0;
                break;
            }
            room -= wide;
            kept.push(character);
        }
        spans.push(Span::styled(kept, span.style));
        if room == 0 {
            break;
        }
    }
    spans.push(Span::raw("…"));
    Line::from(spans).style(line.style)
}

/// The name of the run and how it is.
fn status_line<'a>(live: &'a Live, status: &'a str) -> Line<'a> {
    let colour = match status {
        "finished" | "stopped early" => Color::Green,
        text if text.starts_with("running") => TRAINING,
        "paused" | "interrupted" => VALIDATION,
        _ => Color::Red,
    };
    Line::from(vec![
        Span::styled(format!(" {} ", live.run), Style::new().add_modifier(Modifier::BOLD)),
        Span::styled(status, Style::new().fg(colour)),
    ])
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, live: &Live, status: &str) {
    let line = |place: u16| match place < area.height {
        true => Rect { y: area.y + place, height: 1, ..area },
        false => Rect::default(),
    };
    let [name, device, bar, stages] = [0, 1, 2, 3].map(line);
    frame.render_widget(fitted(status_line(live, status), area.width), name);
    let of_device = Line::from(format!(" {}", live.device)).style(faint());
    frame.render_widget(fitted(of_device, area.width), device);
    if let Some(progress) = live.progress.as_ref().filter(|progress| progress.total > 0) {
        let ratio = (progress.done as f64 / progress.total as f64).clamp(0.0, 1.0);
        let left = match live.seconds_left() {
            Some(seconds) if live.outcome.is_none() => format!(", {} left", duration(seconds)),
            _ => String::new(),
        };
        let (stage, unit) = (&progress.stage, &progress.unit);
        let label = format!(" {stage} {}/{} {unit}{left} ", progress.done, progress.total);
        let gauge = LineGauge::default().ratio(ratio).label(label);
        let gauge = bar_of(gauge, TRAINING);
        frame.render_widget(gauge, bar);
    }
    let ended: Vec<String> = live
        .stages
        .iter()
        .map(|(stage, seconds, reused)| match reused {
            true => format!("{stage} reused"),
            false => format!("{stage} {}", duration(*seconds)),
        })
        .collect();
    let ended = Line::from(format!(" {}", ended.join(" · "))).style(faint());
    frame.render_widget(fitted(ended, area.width), stages);
}

/// At most as many points as there is room for, each the mean of those it stands for.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let size = points.len().div_ceil(most.max(1)).max(1);
    let mean = |some: &[(f64, f64)]| {
        let count = some.len() as f64;
        (
            some.iter().map(|point| point.0).sum::<f64>() / count,
            some.iter().map(|point| point.1).sum::<f64>() / count,
        )
    };
    points.chunks(size).map(mean).collect()
}

fn draw_curves(frame: &mut Frame<'_>, area: Rect, live: &Live) {
    let all = || live.losses.iter().chain(&live.validation);
    if all().next().is_none() {
        let text = Paragraph::new(" no step yet").block(block("loss")).style(faint());
        return frame.render_widget(text, area);
    }
    let lowest = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let highest = all().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    // A loss that falls by much would be a line along the floor.
    let logarithmic = lowest > 0.0 && highest > LOGARITHMIC * lowest;
    let to = |value: f64| if logarithmic { value.log10() } else { value };
    let from = |value: f64| if logarithmic { 10f64.powf(value) } else { value };
    let drawn = |points: &[(f64, f64)], most: usize| -> Vec<(f64, f64)> {
        thinned(points, most).into_iter().map(|(step, loss)| (step, to(loss))).collect()
    };
    let training = drawn(&live.losses, 2 * usize::from(area.width));
    let validation = drawn(&live.validation, usize::from(area.width));
    let ends = |of: fn(&(f64, f64)) -> f64| {
        let all = training.iter().chain(&validation).map(of);
        all.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)])
    };
    let ([first, last], [low, high]) = (ends(|point| point.0), ends(|point| point.1));
    let margin = (0.05 * (high - low)).max(1e-12);
    let (low, high) = (low - margin, high + margin);
    let last = if last > first { last } else { first + 1.0 };
    let curve = |name, points, colour| {
        let curve = Dataset::default().name(name).data(points).marker(Marker::Braille);
        curve.graph_type(GraphType::Line).style(Style::new().fg(colour))
    };
    let mut curves = vec![curve("training", &training, TRAINING)];
    if !validation.is_empty() {
        curves.push(curve("validation", &validation, VALIDATION));
    }
    let labels = |values: &[f64]| {
        values.iter().map(|value| Line::from(significant(from(*value)))).collect::<Vec<_>>()
    };
    // Each needs a line of its own.
    let all = [low, (low + high) / 2.0, high];
    let values = match area.height {
        0..=4 => &[],
        5..=6 => &[low, high][..],
        _ => &all[..],
    };
    let step = |value: f64| Line::from(format!("{value:.0}"));
    let x = Axis::default().bounds([first, last]).style(faint());
    let y = Axis::default().bounds([low, high]).style(faint());
    let of = live.part.as_ref().map_or(String::new(), |part| format!(" of {part}"));
    let scale = if logarithmic { ", logarithmic" } else { "" };
    let title = format!("loss by step{of}{scale}");
    let chart = Chart::new(curves)
        .block(block(&title))
        .legend_position(Some(LegendPosition::TopRight))
        .hidden_legend_constraints((Constraint::Min(0), Constraint::Min(0)))
        .x_axis(x.labels([step(first), step((first + last) / 2.0), step(last)]))
        .y_axis(y.labels(labels(values)).labels_alignment(Alignment::Right));
    frame.render_widget(chart, area);
}

/// A name with its value, the names in one column.
fn row(name: &str, value: String) -> Line<'static> {
    Line::from(vec![Span::styled(format!(" {name:<14}"), faint()), Span::raw(value)])
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, live: &Live) {
    let newest = &live.newest;
    let mut rows = vec![];
    if newest.step > 0 {
        let skipped = match live.skipped.len() {
            0 => String::new(),
            some => format!(" ({some} skipped)"),
        };
        let step = format!("{} in epoch {}{skipped}", newest.step, newest.epoch);
        rows.push(row("step", step));
        rows.push(row("loss", significant(newest.loss)));
        rows.push(row("gradient norm", significant(newest.gradient_norm)));
        rows.push(row("learning rate", significant(newest.learning_rate)));
    }
    if let Some((epoch, loss)) = live.best {
        rows.push(row("best loss", format!("{} after epoch {epoch}", significant(loss))));
    }
    if let Some((milliseconds, waiting, samples)) = live.rates() {
        rows.push(row("samples", format!("{} /s", significant(samples))));
        let share = percent(waiting / milliseconds);
        rows.push(row("step time", format!("{} ms, data {share}", significant(milliseconds))));
    }
    let rows: Vec<Line<'_>> = rows.into_iter().map(|row| fitted(row, area.width)).collect();
    frame.render_widget(Paragraph::new(rows).block(block("training")), area);
}

fn draw_machine(frame: &mut Frame<'_>, area: Rect, live: &Live) {
    let outer = block("machine");
    let inner = outer.inner(area);
    frame.render_widget(outer, area);
    let Some(machine) = &live.machine else {
        return frame.render_widget(Line::from(" no sample").style(faint()), inner);
    };
    let used = machine.memory_bytes.saturating_sub(machine.available_bytes) as f64;
    let share =
        |part: f64, whole: f64| if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
    let threads = f64::from(machine.threads);
    let mut gauges = vec![
        (
            share(machine.cpu_threads, threads),
            format!(" processor {} of {threads} ", significant(machine.cpu_threads)),
        ),
        (
            share(used, machine.memory_bytes as f64),
            format!(" memory {}, own {} ", bytes(used), bytes(machine.resident_bytes as f64)),
        ),
    ];
    for gpu in &machine.gpus {
        let mut text = format!(" GPU {}", gpu.index);
        text.extend(gpu.utilisation.map(|busy| format!(" {}", percent(busy))));
        text.extend(gpu.memory_used_bytes.map(|used| format!(" {}", bytes(used as f64))));
        text.extend(gpu.power_watts.map(|watts| format!(" {watts:.0} W")));
        text.extend(gpu.temperature_celsius.map(|degrees| format!(" {degrees} °C")));
        gauges.push((gpu.utilisation.unwrap_or(0.0).clamp(0.0, 1.0), text + " "));
    }
    let mut rest = inner;
    let mut next = |height: u16| {
        let height = height.min(rest.height);
        let area = Rect { height, ..rest };
        rest.y += height;
        rest.height -= height;
        area
    };
    for (ratio, label) in gauges {
        let colour = if ratio > 0.9 { Color::Red } else { Color::Green };
        let gauge = LineGauge::default().ratio(ratio).label(label);
        let gauge = bar_of(gauge, colour);
        frame.render_widget(gauge, next(1));
    }
    let disk = format!(
        " disk: {}/s read, {}/s written",
        bytes(machine.disk_read),
        bytes(machine.disk_written)
    );
    frame.render_widget(fitted(Line::from(disk), inner.width), next(1));
    let faults = [("minor", machine.minor_faults), ("major", machine.major_faults)];
    let faults = faults.map(|(name, rate)| Some(format!("{} {name}", significant(rate?))));
    let faults: Vec<String> = faults.into_iter().flatten().collect();
    if !faults.is_empty() {
        let faults = Line::from(format!(" page faults /s: {}", faults.join(", ")));
        frame.render_widget(fitted(faults, inner.width), next(1));
    }
    let area = next(u16::MAX);
    if area.height > 0 {
        let width = usize::from(area.width.saturating_sub(1));
        let newest: Vec<u64> =
            live.busy.iter().skip(live.busy.len().saturating_sub(width)).copied().collect();
        let line = Sparkline::default().data(newest).max(100).style(Style::new().fg(Color::Green));
        let area = Rect { x: area.x + 1, width: area.width.saturating_sub(1), ..area };
        frame.render_widget(line, area);
    }
}

/// The newest warnings; before them `status`, if that is to be told as a whole.
fn draw_messages(frame: &mut Frame<'_>, area: Rect, live: &Live, status: Option<&str>) {
    if area.height < 2 {
        return;
    }
    let newest = live.all_warnings().into_iter().rev().take(usize::from(area.height));
    let newest = newest.map(|text| Line::from(format!(" {text}")));
    let status =
        status.map(|status| Line::from(format!(" {status}")).style(Style::new().fg(Color::Red)));
    let (title, mut lines) = match status {
        Some(status) => ("how it ended, and warnings", vec![status]),
        None => ("warnings", vec![]),
    };
    lines.extend(newest);
    if lines.is_empty() {
        lines.push(Line::from(" none").style(faint()));
    }
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).block(block(title));
    frame.render_widget(text, area);
}

#[cfg(test)]
mod tests {
    use firebox_core::{Event, GpuSample, MachineSample};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::watch::live::Alive;

    fn live() -> Live {
        let mut live = Live::default();
        let mut tell = |event: Event| {
            let mut value = serde_json::to_value(event).unwrap();
            value["time"] = 1000.into();
            live.line(&value.to_string());
        };
        let (run, device) = ("pretrain-0123456789ab".to_owned(), "cpu: two threads".to_owned());
        tell(Event::RunStarted { run, device, resumed_at_step: None });
        tell(Event::StageFinished {
            stage: "ingest".to_owned(),
            key: None,
            reused: true,
            seconds: 0.1,
            detail: String::new(),
        });
        tell(Event::StageStarted { stage: "train".to_owned() });
        (1..=300).for_each(|step| tell(crate::testing::step(step, 1.0 / step as f64)));
        tell(Event::Epoch {
            epoch: 1,
            step: 300,
            train_loss: 0.1,
            validation_loss: Some(0.2),
            best: true,
            seconds: 3.0,
        });
        tell(Event::Progress {
            stage: "train".to_owned(),
            done: 300,
            total: 600,
            unit: "steps".to_owned(),
        });
        tell(Event::Machine(MachineSample {
            seconds: 1.0,
            cpu_threads: 1.5,
            threads: 2,
            resident_bytes: 200_000_000,
            memory_bytes: 8_000_000_000,
            available_bytes: 6_000_000_000,
            gpus: vec![GpuSample { utilisation: Some(0.5), ..GpuSample::default() }],
            ..MachineSample::default()
        }));
        tell(Event::Warning { message: "the disk is nearly full".to_owned() });
        live
    }

    fn screen(live: &Live, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let status = live.status(2000, Alive::Yes);
        terminal.draw(|frame| draw(frame, live, &status, Some(""))).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn everything_is_there_at_80_and_at_200_columns() {
        for (width, height) in [(80, 24), (200, 50), (120, 30)] {
            let screen = screen(&live(), width, height);
            for part in [
                "pretrain-0123456789ab running: train",
                "train 300/600 steps",
                "ingest reused",
                "300 in epoch 1",
                "0.200 after epoch 1",
                "400 /s",
                "10.0 ms, data 10.0 %",
                "processor 1.50 of 2",
                "memory 2.00 GB, own 200.0 MB",
                "GPU 0 50.0 %",
                "the disk is nearly full",
                "s save now",
                "validation",
            ] {
                assert!(screen.contains(part), "`{part}` is missing at {width}\n{screen}");
            }
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_told_elsewhere_or_marked() {
        let mut live = live();
        let reason =
            format!("{}lower its twentieth", "the gradients are not finite, so ".repeat(4));
        let run = "pretrain-0123456789ab".to_owned();
        let ended = Event::RunFinished { run, outcome: format!("failed: {reason}"), seconds: 1.0 };
        let mut value = serde_json::to_value(ended).unwrap();
        value["time"] = 1000.into();
        live.line(&value.to_string());
        for (width, height) in [(80, 24), (100, 40), (130, 30), (130, 24)] {
            let screen = screen(&live, width, height);
            let first = screen.lines().next().unwrap();
            assert!(first.contains('…'), "{screen}");
            assert!(screen.contains("twentieth"), "{screen}");
        }
        let line = fitted(Line::from("数据 12.34"), 6);
        assert_eq!(line.to_string(), "数据 …");
        assert_eq!(fitted(Line::from("12.34"), 5).to_string(), "12.34");
    }

    #[test]
    fn how_the_run_is_comes_first_in_little_room() {
        for height in 1..9 {
            let screen = screen(&live(), 80, height);
            assert!(screen.contains("pretrain-0123456789ab running: train"), "{screen}");
            assert!(height < 5 || screen.contains("s save now"), "{screen}");
            // No label is written over another.
            for (label, _) in screen.lines().filter_map(|line| line.split_once('│')) {
                let label = label.trim_matches(['"', ' ']);
                let whole = label.parse::<f64>().is_ok() && !label.starts_with("00");
                assert!(label.is_empty() || whole, "{screen}");
            }
        }
    }

    #[test]
    fn no_size_and_no_state_breaks_it() {
        for live in [Live::default(), live()] {
            for width in [1, 2, 10, 40, 79, 119, 300] {
                for height in [1, 2, 5, 8, 13, 80] {
                    screen(&live, width, height);
                }
            }
        }
    }
}
