//! Progress bars on standard error; nothing where that is not a terminal.
use engine::Progress;
use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};
use std::sync::LazyLock;

/// All bars that are shown.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Does something to the terminal while no bar is in the way.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    BARS.suspend(work)
}

/// A bar that counts bytes.
pub(crate) fn bytes(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// A bar that counts things.
pub(crate) fn count(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {wide_bar} {pos}/{len} {eta}")
}

fn bar(what: &'static str, total: u64, template: &str) -> ProgressBar {
    let bar = BARS.add(ProgressBar::new(total));
    // A template that does not parse would only cost its looks.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    // It goes when it is dropped, after an error too.
    bar.with_style(style).with_message(what).with_finish(ProgressFinish::AndClear)
}

/// The bars of loading, one after the other.
#[derive(Default)]
pub(crate) struct LoadBars {
    dense: Option<ProgressBar>,
    experts: Option<ProgressBar>,
}

impl LoadBars {
    /// Shows how far it is.
    pub(crate) fn show(&mut self, progress: Progress) {
        match progress {
            Progress::Dense(done, total) => {
                self.dense.get_or_insert_with(|| bytes("dense weights", total)).set_position(done);
            }
            Progress::Experts(done, total) => {
                self.dense = None;
                self.experts.get_or_insert_with(|| count("experts", total.into())).set_position(done.into());
            }
        }
    }
}
