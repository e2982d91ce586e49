//! Readers that misbehave on purpose, exchangeable while an engine uses them; and where an expert's bytes lie.
use std::io;
use std::sync::{Arc, RwLock};
use store::{Checkpoint, Reader};

/// A reader that can be exchanged: one engine, many faults.
pub(crate) struct Switch(RwLock<Arc<dyn Reader>>);

impl Switch {
    pub(crate) fn new(reader: Arc<dyn Reader>) -> Arc<Self> {
        Arc::new(Switch(RwLock::new(reader)))
    }

    pub(crate) fn set(&self, reader: Arc<dyn Reader>) {
        *self.0.write().unwrap() = reader;
    }

    fn now(&self) -> Arc<dyn Reader> {
        Arc::clone(&self.0.read().unwrap())
    }
}

impl Reader for Switch {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.now().read_at(file, offset, into)
    }

    fn file_name(&self, file: u32) -> String {
        self.now().file_name(file)
    }
}

/// Another byte at one place of one file.
pub(crate) struct Changed {
    pub(crate) reader: Arc<dyn Reader>,
    pub(crate) file: u32,
    pub(crate) place: u64,
    pub(crate) byte: u8,
}

impl Reader for Changed {
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let came = self.reader.read_at(file, offset, into)?;
        if file == self.file && (offset..offset + came as u64).contains(&self.place) {
            into[(self.place - offset) as usize] = self.byte;
        }
        Ok(came)
    }

    fn file_name(&self, file: u32) -> String {
        self.reader.file_name(file)
    }
}

/// The checkpoint's own files.
pub(crate) fn plain(checkpoint: &Checkpoint) -> Arc<dyn Reader> {
    Arc::new(checkpoint.files())
}

/// File, first byte and the byte after the last of one piece (such as `w1.weight_scale`) of an expert.
pub(crate) fn piece(
    checkpoint: &Checkpoint,
    layer: u32,
    expert: u32,
    name: &str,
) -> (u32, std::ops::Range<u64>) {
    let name = format!("language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}");
    let entry = checkpoint.find(&name).unwrap();
    (entry.file.0, entry.offset..entry.offset + entry.bytes)
}

/// File, first byte and the byte after the last of a token's embedding.
pub(crate) fn embedding(checkpoint: &Checkpoint, token: u32) -> (u32, std::ops::Range<u64>) {
    let entry = checkpoint.find("language_model.model.embed_tokens.weight").unwrap();
    let row = entry.bytes / entry.shape[0];
    let start = entry.offset + u64::from(token) * row;
    (entry.file.0, start..start + row)
}

/// All pieces of an expert together, as [`piece`].
pub(crate) fn extent(checkpoint: &Checkpoint, layer: u32, expert: u32) -> (u32, std::ops::Range<u64>) {
    let pieces = ["w1", "w2", "w3"].map(|w| ["packed", "scale"].map(|part| format!("{w}.weight_{part}")));
    let places: Vec<_> =
        pieces.as_flattened().iter().map(|name| piece(checkpoint, layer, expert, name)).collect();
    let first = places.iter().map(|(_, range)| range.start).min().unwrap();
    let end = places.iter().map(|(_, range)| range.end).max().unwrap();
    assert!(
        places.iter().all(|(file, _)| *file == places[0].0),
        "an expert of the tiny model lies in one file"
    );
    (places[0].0, first..end)
}
