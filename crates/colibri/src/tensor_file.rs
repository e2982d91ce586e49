//! Writing f32 matrices to a safetensors file row by row, so that memory does not grow with the prompt; the file has its
//! name only when it is whole. Reading one matrix. Knows no model.
use crate::errors::Failure;
use crate::interrupt;
use crate::target::Target;
use engine::show_bytes;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// Numbers turned into bytes at a time, so that no second copy of all of them is needed.
const WRITE_NUMBERS: usize = 16 << 10;

/// A file that is being written.
pub(crate) struct TensorFile {
    target: Target,
    file: File,
    /// First byte and bytes of a row, by name.
    places: HashMap<String, (u64, u64)>,
    /// Of the file when it is whole.
    bytes: u64,
    whole: bool,
}

impl TensorFile {
    /// Begins a file of matrices \[rows, cols\] by name.
    pub(crate) fn create(
        target: Target,
        matrices: &[(String, [usize; 2])],
        metadata: HashMap<String, String>,
    ) -> Result<Self, Failure> {
        let writing = |source| Failure::Io { what: format!("writing {}", target.path().display()), source };
        let (header, places) = header(matrices, metadata).map_err(io::Error::other).map_err(writing)?;
        let data: u64 = matrices.iter().map(|(_, [rows, cols])| (rows * cols * 4) as u64).sum();
        let bytes = header.len() as u64 + data;
        let mut unfinished = interrupt::unfinished();
        let mut file = File::create(target.temporary()).map_err(writing)?;
        *unfinished = Some(target.temporary().to_owned());
        drop(unfinished);
        let begun = file.write_all(&header).and_then(|()| file.set_len(bytes));
        let file = TensorFile { target, file, places, bytes, whole: false };
        begun.map_err(|source| file.failure(source))?;
        Ok(file)
    }

    /// Writes rows from row `first` on.
    ///
    /// # Panics
    /// If there is no matrix of this name.
    pub(crate) fn write(&mut self, name: &str, first: usize, values: &[f32]) -> Result<(), Failure> {
        let (start, row_bytes) = self.places[name];
        let mut written = self.file.seek(SeekFrom::Start(start + first as u64 * row_bytes)).map(drop);
        for piece in values.chunks(WRITE_NUMBERS) {
            let bytes: Vec<u8> = piece.iter().flat_map(|v| v.to_le_bytes()).collect();
            written = written.and_then(|()| self.file.write_all(&bytes));
        }
        written.map_err(|source| self.failure(source))
    }

    /// Gives the file its name.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|source| self.failure(source))?;
        let mut unfinished = interrupt::unfinished();
        fs::rename(self.target.temporary(), self.target.path()).map_err(|source| self.failure(source))?;
        *unfinished = None;
        self.whole = true;
        Ok(())
    }

    fn failure(&self, source: io::Error) -> Failure {
        let bytes = show_bytes(self.bytes);
        Failure::Io { what: format!("writing {}, which takes {bytes}", self.target.path().display()), source }
    }
}

impl Drop for TensorFile {
    fn drop(&mut self) {
        if !self.whole {
            let mut unfinished = interrupt::unfinished();
            // What failed was said already; a leftover is not worth another word.
            let _ = fs::remove_file(self.target.temporary());
            *unfinished = None;
        }
    }
}

type Places = HashMap<String, (u64, u64)>;

/// The bytes before the data, and where each matrix will lie.
fn header(
    matrices: &[(String, [usize; 2])],
    metadata: HashMap<String, String>,
) -> Result<(Vec<u8>, Places), Box<dyn std::error::Error + Send + Sync>> {
    let mut end = 0;
    let mut infos = Vec::new();
    for (name, shape) in matrices {
        let start = end;
        end += shape[0] * shape[1] * 4;
        let info = TensorInfo { dtype: Dtype::F32, shape: shape.to_vec(), data_offsets: (start, end) };
        infos.push((name.clone(), info));
    }
    let metadata = Metadata::new(Some(metadata), infos)?;
    // By way of a value, whose keys are sorted: equal results give equal files.
    let mut text = serde_json::to_vec(&serde_json::to_value(&metadata)?)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let data = 8 + text.len() as u64;
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend(text);
    let place = |(name, [_, cols]): &(String, [usize; 2])| {
        let start = metadata.info(name).map_or(0, |info| info.data_offsets.0 as u64);
        (name.clone(), (data + start, *cols as u64 * 4))
    };
    Ok((header, matrices.iter().map(place).collect()))
}

/// Hidden rows of `width` numbers from a file: its f32 tensor `hidden`, or the only one.
pub(crate) fn read_rows(path: &Path, width: u32) -> Result<Vec<f32>, Failure> {
    let bytes = fs::read(path).map_err(Failure::io("reading", path))?;
    let unusable = |what: String| {
        Failure::Usage(format!(
            "--inputs {}: {what}; expected an f32 tensor [rows, {width}] named `hidden`, or only one tensor",
            path.display()
        ))
    };
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| unusable(error.to_string()))?;
    let names = tensors.names();
    let name = match names.as_slice() {
        [only] => *only,
        several if several.contains(&"hidden") => "hidden",
        several => return Err(unusable(format!("it holds {} tensors, none named `hidden`", several.len()))),
    };
    let tensor = tensors.tensor(name).map_err(|error| unusable(error.to_string()))?;
    let fits = matches!(tensor.shape(), [rows, cols] if *rows > 0 && *cols == width as usize);
    if tensor.dtype() != Dtype::F32 || !fits {
        return Err(unusable(format!("tensor `{name}` is {:?} {:?}", tensor.dtype(), tensor.shape())));
    }
    Ok(floats(tensor.data()))
}

/// Little-endian f32 numbers.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a second Ctrl-C removes is the file that is being written, and never one that is whole.
    #[test]
    fn only_an_unfinished_file_is_known_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let matrices = [("x".to_owned(), [3, 2])];
        let begin = |name: &str| {
            let target = Target::new(&folder.path().join(name), &[]).unwrap();
            TensorFile::create(target, &matrices, HashMap::new()).unwrap()
        };
        let mut file = begin("first");
        assert!(interrupt::unfinished().as_ref().unwrap().is_file());
        file.write("x", 1, &[1.0, 2.0, 3.0, 4.0]).unwrap();
        file.finish().unwrap();
        assert_eq!(*interrupt::unfinished(), None);
        let bytes = fs::read(folder.path().join("first")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(floats(tensors.tensor("x").unwrap().data()), [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        drop(begin("second"));
        assert_eq!(*interrupt::unfinished(), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "what was given up is gone");
    }
}
