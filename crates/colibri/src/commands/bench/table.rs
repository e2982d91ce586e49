//! The record for people, in 80 columns. Knows no measurement.
use super::record::{Profile, Record, Row};
use crate::probe::samples::duration;
use std::fmt::Write as _;

/// All of it.
pub(crate) fn table(record: &Record) -> String {
    let mut text = String::new();
    let machine = &record.machine;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}, {} cores, {}, {}",
        machine.processor, machine.cores, machine.instructions, machine.system
    );
    let mut parts: Vec<&str> = record.rows.iter().map(|row| row.part.as_str()).collect();
    parts.dedup();
    for part in parts {
        let rows: Vec<&Row> = record.rows.iter().filter(|row| row.part == part).collect();
        text.push('\n');
        text.push_str(&heading(part));
        for row in rows {
            text.push_str(&line(row));
        }
        if let Some(rates) = record.limits.get(part).filter(|_| part != "machine") {
            let disk =
                rates.disk_bytes.map_or(String::new(), |rate| format!(", disk {:.2} GB/s", rate / 1e9));
            let _ = writeln!(
                text,
                "  by: memory {:.1} GB/s, f32 {:.0} GMAC/s, bytes {:.0} G/s{disk}; {} threads",
                rates.read_bytes / 1e9,
                rates.floats / 1e9,
                rates.byte_products / 1e9,
                rates.threads
            );
        }
    }
    for profile in &record.profiles {
        text.push_str(&ops(profile));
    }
    for note in &record.notes {
        text.push_str(&paragraph(&format!("note: {note}")));
    }
    text
}

fn heading(part: &str) -> String {
    if part == "machine" {
        format!("{part:<35} {:>17} {:>8}\n", "median", "spread")
    } else {
        let columns = ["median", "spread", "floor", "ratio", "f32"];
        figures(part, columns, "bound")
    }
}

fn line(row: &Row) -> String {
    let mark = if row.seconds.disturbed { "!" } else { "" };
    let (name, spread) = (&row.name, format!("±{:.1} %", 100.0 * row.seconds.relative()));
    let mut text = match (row.floor, row.ratio) {
        (Some(floor), Some(ratio)) => {
            let peak = row.of_f32_peak.map_or(String::new(), |share| format!("{share:.2}"));
            let (median, least) = (duration(row.seconds.median), duration(floor.seconds));
            let columns = [&*median, &*spread, &*least, &*format!("{ratio:.2}"), &*peak];
            figures(name, columns, &format!("{}{mark}", floor.bound.name()))
        }
        _ => format!("{name:<35} {:>17} {spread:>8} {mark}\n", rate(row)).replace(" \n", "\n"),
    };
    if let Some(how) = &row.how {
        let _ = writeln!(text, "    {how}");
    }
    if let Some(sections) = &row.sections {
        let _ = write!(
            text,
            "    {:.1} tokens/s; attention {}, moe {}, wait {}, head {}",
            1.0 / row.seconds.median,
            duration(sections.attention),
            duration(sections.moe),
            duration(sections.expert_wait),
            duration(sections.head),
        );
        text.push('\n');
    }
    if let Some(in_turn) = row.in_turn {
        let (least, ratio) = (duration(in_turn), row.seconds.median / in_turn);
        let _ =
            writeln!(text, "    {ratio:.2} of attention and then the larger of reads and experts, {least}");
    }
    if let Some(cache) = &row.cache {
        let rate =
            cache.hit_rate.map_or("no requests".to_owned(), |rate| format!("{:.1} % hits", 100.0 * rate));
        let read = engine::show_bytes(cache.bytes_read);
        let fast = cache.drive_rate.map_or(String::new(), |rate| {
            format!(", {}/s while a drive was busy", engine::show_bytes(rate as u64))
        });
        let _ = writeln!(text, "    expert cache: {rate}, {read} read{fast}");
    }
    text
}

/// One line of figures with a floor.
fn figures(name: &str, [median, spread, floor, ratio, peak]: [&str; 5], bound: &str) -> String {
    format!("{name:<29} {median:>9} {spread:>8} {floor:>9} {ratio:>6} {peak:>5} {bound}\n")
}

/// What a limit's seconds, for 10^9 of something, are in a second.
fn rate(row: &Row) -> String {
    let rate = 1.0 / row.seconds.median;
    let digits = if rate < 10.0 { 2 } else { usize::from(rate < 100.0) };
    format!("{rate:.digits$} {}/s", row.per)
}

fn ops(profile: &Profile) -> String {
    let name = format!("ops of {}", profile.name);
    let mut text = format!("\n{name}, each waited for\n");
    text.push_str(&figures("", ["a token", "count", "floor", "ratio", ""], "bound"));
    for op in &profile.ops {
        let (took, least) = (duration(op.seconds), duration(op.floor.seconds));
        let (count, ratio) = (format!("{:.1}", op.count), format!("{:.2}", op.ratio));
        text.push_str(&figures(&op.op, [&took, &count, &least, &ratio, ""], op.floor.bound.name()));
    }
    text
}

/// Words in lines of 80 columns, after the first indented.
pub(crate) fn paragraph(words: &str) -> String {
    let mut text = String::new();
    let mut used = 0;
    for word in words.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > 80 {
            text.push_str("\n ");
            used = 1;
        }
        if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length;
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_fit() {
        let words = "word ".repeat(40) + "end";
        let text = paragraph(&words);
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.ends_with("end\n") && text.lines().skip(1).all(|line| line.starts_with("  word")));
    }
}
