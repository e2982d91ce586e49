//! How fast the cache's own readers bring the experts of a model from disk, and what that costs of the processor, with
//! nothing computed: `cargo run --release -p store --example read_rate -- DIRECTORY direct|buffered|uring READERS EXPERTS [guess]`.
//! The experts are taken at scattered places, each once; with `guess` each group is guessed while the one before is read.
#![allow(clippy::print_stdout, reason = "its line is its output")]

use memory::Slab;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;
use store::cache::{Next, Request};
use store::{
    Access, Catalog, CatalogBuilder, Checkpoint, DiskReader, Entry, ExpertCache, ExpertId, ExpertLayout,
    PieceSpec,
};

/// Experts asked for at once, as many as a token of Kimi K3 takes of a layer.
const AT_ONCE: usize = 16;

type Pieces<'c> = BTreeMap<&'c str, &'c Entry>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (arguments, guesses) = match &arguments[..] {
        [arguments @ .., last] if last == "guess" => (arguments, true),
        arguments => (arguments, false),
    };
    let [_, directory, access, readers, experts] = arguments else {
        return Err("give DIRECTORY direct|buffered|uring READERS EXPERTS [guess]".into());
    };
    let access =
        Access::ALL.into_iter().find(|known| known.name() == access).ok_or("direct, buffered or uring")?;
    let checkpoint = Checkpoint::open(&[directory.into()])?;
    let catalog = Arc::new(catalog(&checkpoint)?);
    let reader = Arc::new(DiskReader::new(checkpoint.files(), access));
    let notes = reader.notes().to_vec();
    let slab = Slab::new(2 * AT_ONCE as u32, catalog.layout().slot_bytes())?;
    let mut cache = ExpertCache::new(Arc::clone(&catalog), reader, slab, readers.parse()?)?;
    // Every slot is written once before, so that no page is new to the system while time is taken.
    let all = scattered(&catalog);
    get(&mut cache, &all[all.len() - 2 * AT_ONCE..])?;
    let before = cache.statistics();
    let (start, processor) = (Instant::now(), processor_seconds()?);
    let wanted = &all[..experts.parse::<usize>()?.min(all.len() - 2 * AT_ONCE)];
    for (number, group) in wanted.chunks(AT_ONCE).enumerate() {
        let mut request = cache.request(group);
        if guesses {
            cache.prefetch(wanted.chunks(AT_ONCE).nth(number + 1).unwrap_or_default());
        }
        finish(&mut cache, &mut request)?;
    }
    let (seconds, processor) = (start.elapsed().as_secs_f64(), processor_seconds()? - processor);
    let after = cache.statistics();
    let gigabytes = (after.bytes_read - before.bytes_read) as f64 / 1e9;
    println!(
        "{} readers {readers}: {gigabytes:.2} GB, {:.3} GB/s, {:.4} processor seconds a GB, disk busy {:.1} % {}",
        access.name(),
        gigabytes / seconds,
        processor / gigabytes,
        after.busy.saturating_sub(before.busy).as_secs_f64() / seconds * 100.0,
        notes.join("; "),
    );
    Ok(())
}

/// Reads a group of experts and lets it go.
fn get(cache: &mut ExpertCache, ids: &[ExpertId]) -> Result<(), Box<dyn Error>> {
    let mut request = cache.request(ids);
    finish(cache, &mut request)
}

/// Takes all that a request brings and lets it go.
fn finish(cache: &mut ExpertCache, request: &mut Request) -> Result<(), Box<dyn Error>> {
    while let Next::Arrived(arrivals) = cache.next(request, None) {
        for arrival in arrivals {
            cache.release(arrival.result?, 0);
        }
    }
    Ok(())
}

/// Layer, expert and piece in a tensor's name.
fn parsed(name: &str) -> Option<(ExpertId, &str)> {
    let (layer, rest) = name.split_once(".layers.")?.1.split_once('.')?;
    let (expert, piece) = rest.split_once("experts.")?.1.split_once('.')?;
    Some((ExpertId { layer: layer.parse().ok()?, expert: expert.parse().ok()? }, piece))
}

fn catalog(checkpoint: &Checkpoint) -> Result<Catalog, Box<dyn Error>> {
    let mut all: BTreeMap<ExpertId, Pieces<'_>> = BTreeMap::new();
    for (name, entry) in checkpoint.under("") {
        if let Some((id, piece)) = parsed(name) {
            all.entry(id).or_default().insert(piece, entry);
        }
    }
    let (first, pieces) = all.first_key_value().ok_or("no tensor is an expert's")?;
    let last = all.last_key_value().map_or(*first, |(id, _)| *id);
    let specs = pieces.iter().map(|(piece, entry)| PieceSpec {
        name: (*piece).to_owned(),
        bytes: entry.bytes,
        row_bytes: entry.bytes,
        forbidden: piece.ends_with("scale").then_some(255),
    });
    let layout = ExpertLayout::new(specs.collect())?;
    let mut builder = CatalogBuilder::new(layout, first.layer..last.layer + 1, last.expert + 1);
    for (id, pieces) in &all {
        for (piece, entry) in pieces {
            builder.place(*id, piece, entry.file.0, entry.offset)?;
        }
    }
    Ok(builder.finish()?)
}

/// All experts, neighbours far apart.
fn scattered(catalog: &Catalog) -> Vec<ExpertId> {
    let count = catalog.experts();
    let step = (count * 5 / 8..count).find(|step| gcd(*step, count) == 1).unwrap_or(1);
    (0..count)
        .map(|number| catalog.id((u64::from(number) * u64::from(step) % u64::from(count)) as u32))
        .collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What all threads of this process have taken of the processor, in the system's mode too.
#[cfg(target_os = "linux")]
fn processor_seconds() -> Result<f64, Box<dyn Error>> {
    /// Ticks a second in this file, on every system that Linux runs on.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / TICKS)
}

/// It is not asked elsewhere.
#[cfg(not(target_os = "linux"))]
fn processor_seconds() -> Result<f64, Box<dyn Error>> {
    Err("the processor's time is known on Linux only".into())
}
