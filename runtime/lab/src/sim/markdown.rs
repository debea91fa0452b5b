//! The tables of a zone study as Markdown.

use super::study::{Figure, Memory, PAPER_BOOT, PAPER_MONITOR_MS, Study, ZoneFigures};
use std::fmt::Write;

/// The changes that are measured.
const CHANGES: [&str; 4] = ["leave", "join", "crash", "silence"];

/// All tables of a study.
pub(super) fn study(study: &Study) -> String {
    let mut out = String::new();
    conditions(&mut out, study);
    boot(&mut out, study);
    let title = "Milliseconds until all views are right";
    changes(&mut out, study, title, |figure| figure.all_views_right_ms);
    let title = "Milliseconds until half of all views are right";
    changes(&mut out, study, title, |figure| {
        Some(figure.half_of_views_right_ms)
    });
    let title = format!(
        "Milliseconds until the monitor's view is right (the paper: about {PAPER_MONITOR_MS:.0}, \
         at any size, when a connection breaks)"
    );
    changes(&mut out, study, &title, |figure| figure.monitor_ms);
    let title = "Datagrams that a member sends, until all views are right and 30 ms longer";
    changes(&mut out, study, title, |figure| {
        Some(figure.datagrams_per_member as f64)
    });
    let title = "Kilobytes that a member sends in that time, headers of IPv4 and UDP included";
    changes(&mut out, study, title, |figure| {
        Some(figure.wire_bytes_per_member as f64 / 1e3)
    });
    idle(&mut out, study);
    out
}

fn conditions(out: &mut String, study: &Study) {
    let Study {
        seed,
        seeds,
        round_trip_us,
        service_us,
        members_per_cpu,
        ..
    } = study;
    let last = seed + (seeds - 1);
    writeln!(
        out,
        "Simulated: seeds {seed} to {last}, medians; round trip {round_trip_us} us; a datagram keeps \
         a CPU busy for {service_us} us at its sender and at its receiver; {members_per_cpu} members \
         share a CPU.\n"
    )
    .ok();
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value >= 99.95 => format!("{value:.0}"),
        Some(value) => format!("{value:.1}"),
    }
}

fn find<'a>(zone: &'a ZoneFigures, what: &str, at_once: Option<usize>) -> Option<&'a Figure> {
    let mut figures = zone.measured.iter();
    figures
        .find(|figure| figure.what == what && at_once.is_none_or(|count| figure.at_once == count))
}

fn boot(out: &mut String, study: &Study) {
    out.push_str(
        "Boot: milliseconds from the start of all members until all views are right, least and \
         most of the seeds; until half of the views are right; what a member sends, headers of \
         IPv4 and UDP included.\n\n\
         | timing | members | boot | least | most | half | datagrams | kB |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for zone in &study.zones {
        let Some(boot) = find(zone, "boot", None) else {
            continue;
        };
        let (least, most) = boot.range_ms.unzip();
        writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            zone.timing,
            zone.members,
            number(boot.all_views_right_ms),
            number(least),
            number(most),
            number(Some(boot.half_of_views_right_ms)),
            boot.datagrams_per_member,
            number(Some(boot.wire_bytes_per_member as f64 / 1e3)),
        )
        .ok();
    }
    let (members, ms) = PAPER_BOOT;
    writeln!(
        out,
        "| measured by the paper | {members} | {ms:.0} | | | | | |\n"
    )
    .ok();
}

fn changes(out: &mut String, study: &Study, title: &str, value: impl Fn(&Figure) -> Option<f64>) {
    let counts: Vec<String> = study.counts.iter().map(ToString::to_string).collect();
    let counts = counts.join(" / ");
    let heads = CHANGES.map(|what| format!(" {what} {counts} |")).concat();
    write!(
        out,
        "{title}:\n\n| timing | members |{heads}\n|---|---|---|---|---|---|\n"
    )
    .ok();
    for zone in &study.zones {
        write!(out, "| {} | {} |", zone.timing, zone.members).ok();
        for what in CHANGES {
            let figures = study
                .counts
                .iter()
                .map(|count| find(zone, what, Some(*count)));
            let cells: Vec<String> = figures.map(|one| number(one.and_then(&value))).collect();
            write!(out, " {} |", cells.join(" / ")).ok();
        }
        out.push('\n');
    }
    out.push('\n');
}

fn idle(out: &mut String, study: &Study) {
    out.push_str(
        "A second in which nothing happens: what a member sends, without and with the headers of \
         IPv4 and UDP.\n\n\
         | timing | members | datagrams | bytes | with headers |\n|---|---|---|---|---|\n",
    );
    for zone in &study.zones {
        if let Some(idle) = find(zone, "idle", None) {
            writeln!(
                out,
                "| {} | {} | {} | {} | {} |",
                zone.timing,
                zone.members,
                idle.datagrams_per_member,
                idle.bytes_per_member,
                idle.wire_bytes_per_member
            )
            .ok();
        }
    }
    out.push('\n');
}

/// The table of engine memory.
pub(super) fn memory(taken: &[Memory]) -> String {
    let mut out = String::from(
        "Heap of the engine of one member, in a zone that has booted and is at rest, in bytes.\n\n\
         | members | engine | for each member |\n|---|---|---|\n",
    );
    for one in taken {
        let Memory {
            members,
            engine_bytes,
            bytes_per_member,
        } = one;
        writeln!(out, "| {members} | {engine_bytes} | {bytes_per_member} |").ok();
    }
    if let [first, .., last] = taken {
        let more = (last.members - first.members).max(1) as u64;
        let slope = last.engine_bytes.saturating_sub(first.engine_bytes) / more;
        writeln!(out, "\nEach further member: {slope} bytes.").ok();
    }
    out.push('\n');
    out
}
