//! Makes broken and rearranged copies of a checkpoint, for tests only (cargo feature `testing`). Every function
//! applies one change to a model directory on disk. Reads and writes safetensors on its own, by way of plain JSON
//! values, so that the code under test does not judge itself.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::files::{FileId, Files};
use crate::{Checkpoint, Entry, safetensors};

const INDEX: &str = "model.safetensors.index.json";

/// A tensor as it stands in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainTensor {
    /// Its name.
    pub name: String,
    /// The type's name.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

fn wrong(path: &Path, what: &str) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

/// Copies the files of a model directory, without subdirectories, into another one, which is made if need be.
///
/// # Errors
/// What the file system says.
pub fn copy_model(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.path().is_file() {
            fs::write(to.join(entry.file_name()), fs::read(entry.path())?)?; // not the permissions
        }
    }
    Ok(())
}

/// Changes a JSON file.
///
/// # Errors
/// What the file system or the JSON parser says.
pub fn edit_json(path: &Path, change: impl FnOnce(&mut Value)) -> io::Result<()> {
    let mut value: Value = serde_json::from_slice(&fs::read(path)?)?;
    change(&mut value);
    fs::write(path, serde_json::to_vec(&value)?)
}

/// Changes the `weight_map` of a model's index.
///
/// # Errors
/// What the file system or the JSON parser says; there is no `weight_map`.
pub fn edit_index(model: &Path, change: impl FnOnce(&mut Map<String, Value>)) -> io::Result<()> {
    let path = model.join(INDEX);
    let mut found = false;
    edit_json(&path, |index| {
        if let Some(map) = index.get_mut("weight_map").and_then(Value::as_object_mut) {
            found = true;
            change(map);
        }
    })?;
    if found { Ok(()) } else { Err(wrong(&path, "no weight_map")) }
}

/// Header text and data of a safetensors file.
fn take_apart(shard: &Path) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = fs::read(shard)?;
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let header = bytes.get(8..8 + length).ok_or_else(|| wrong(shard, "no safetensors file"))?;
    let header = String::from_utf8(header.to_vec()).map_err(|_| wrong(shard, "header is no text"))?;
    Ok((header, bytes.split_off(8 + length)))
}

/// A safetensors file of this header, padded with blanks to a multiple of 8, and this data.
#[must_use]
pub fn put_together(header: &str, data: &[u8]) -> Vec<u8> {
    let length = header.len().next_multiple_of(8);
    let mut bytes = (length as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(8 + length, b' ');
    bytes.extend_from_slice(data);
    bytes
}

/// Changes the text of a shard's header and leaves its data alone.
///
/// # Errors
/// What the file system says; the file is no safetensors file.
pub fn edit_header_text(shard: &Path, change: impl FnOnce(&str) -> String) -> io::Result<()> {
    let (header, data) = take_apart(shard)?;
    fs::write(shard, put_together(&change(&header), &data))
}

/// Changes a shard's header as an object and leaves its data alone.
///
/// # Errors
/// As [`edit_header_text`].
pub fn edit_header(shard: &Path, change: impl FnOnce(&mut Map<String, Value>)) -> io::Result<()> {
    let (header, data) = take_apart(shard)?;
    let mut header: Map<String, Value> = serde_json::from_str(&header)?;
    change(&mut header);
    fs::write(shard, put_together(&serde_json::to_string(&header)?, &data))
}

/// The tensors of a shard, in the order of their data.
///
/// # Errors
/// As [`edit_header_text`]; a tensor is not described as it should be.
pub fn read_shard(shard: &Path) -> io::Result<Vec<PlainTensor>> {
    let (header, data) = take_apart(shard)?;
    let header: Map<String, Value> = serde_json::from_str(&header)?;
    let mut tensors = Vec::new();
    for (name, value) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let number = |value: &Value| value.as_u64().ok_or_else(|| wrong(shard, &name));
        let list = |field: &str| value[field].as_array().ok_or_else(|| wrong(shard, &name));
        let shape = list("shape")?.iter().map(number).collect::<io::Result<Vec<u64>>>()?;
        let offsets = list("data_offsets")?.iter().map(number).collect::<io::Result<Vec<u64>>>()?;
        let [begin, end] = offsets[..] else { return Err(wrong(shard, &name)) };
        let bytes = data.get(begin as usize..end as usize).ok_or_else(|| wrong(shard, &name))?.to_vec();
        let dtype = value["dtype"].as_str().ok_or_else(|| wrong(shard, &name))?.to_owned();
        tensors.push((begin, PlainTensor { name, dtype, shape, bytes }));
    }
    tensors.sort_by_key(|(begin, _)| *begin);
    Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
}

/// Content of a shard that holds these tensors, back to back.
#[must_use]
pub fn shard_bytes(tensors: &[PlainTensor]) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        let offsets = json!([begin, data.len()]);
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets});
        header.insert(tensor.name.clone(), entry);
    }
    put_together(&Value::Object(header).to_string(), &data)
}

/// Changes the tensors of a shard; the result is a sound file again.
///
/// # Errors
/// As [`read_shard`].
pub fn edit_shard(shard: &Path, change: impl FnOnce(&mut Vec<PlainTensor>)) -> io::Result<()> {
    let mut tensors = read_shard(shard)?;
    change(&mut tensors);
    fs::write(shard, shard_bytes(&tensors))
}

/// Plain name of the shard that the index gives for a tensor.
///
/// # Errors
/// The index does not list it.
pub fn shard_of(model: &Path, tensor: &str) -> io::Result<String> {
    let path = model.join(INDEX);
    let index: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let name = index["weight_map"][tensor].as_str().map(str::to_owned);
    name.ok_or_else(|| wrong(&path, &format!("{tensor} is not listed")))
}

/// Removes a tensor from its shard and from the index, as a conversion that dropped it would.
///
/// # Errors
/// The index does not list it.
pub fn remove_tensor(model: &Path, tensor: &str) -> io::Result<()> {
    let shard = model.join(shard_of(model, tensor)?);
    edit_shard(&shard, |tensors| tensors.retain(|other| other.name != tensor))?;
    edit_index(model, |map| drop(map.remove(tensor)))
}

/// Cuts the last `bytes` bytes off a file.
///
/// # Errors
/// What the file system says; the file is shorter.
pub fn truncate(file: &Path, bytes: u64) -> io::Result<()> {
    let len = fs::metadata(file)?.len();
    let rest = len.checked_sub(bytes).ok_or_else(|| wrong(file, "shorter than the cut"))?;
    fs::OpenOptions::new().write(true).open(file)?.set_len(rest)
}

/// Writes bytes behind the end of a file.
///
/// # Errors
/// What the file system says.
pub fn append(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut content = fs::read(file)?;
    content.extend_from_slice(bytes);
    fs::write(file, content)
}

/// Gives a shard another name, on disk and in the index.
///
/// # Errors
/// What the file system says.
pub fn rename_shard(model: &Path, from: &str, to: &str) -> io::Result<()> {
    fs::rename(model.join(from), model.join(to))?;
    edit_index(model, |map| {
        map.values_mut().filter(|shard| *shard == from).for_each(|shard| *shard = Value::from(to));
    })
}

/// Moves every shard whose plain name `choose` accepts to another directory, which is made if need be.
///
/// # Errors
/// What the file system says.
pub fn split_over(model: &Path, other: &Path, choose: impl Fn(&str) -> bool) -> io::Result<()> {
    fs::create_dir_all(other)?;
    for name in shard_names(model)?.iter().filter(|name| choose(name)) {
        fs::write(other.join(name), fs::read(model.join(name))?)?; // the two may lie on different drives
        fs::remove_file(model.join(name))?;
    }
    Ok(())
}

/// Replaces the beginning of all tensor names that begin with `from`, in every shard and in the index.
///
/// # Errors
/// What the file system says; a shard is no safetensors file.
pub fn rename_prefix(model: &Path, from: &str, to: &str) -> io::Result<()> {
    let renamed = |map: &mut Map<String, Value>| {
        let entries = std::mem::take(map).into_iter();
        *map = entries
            .map(|(name, value)| match name.strip_prefix(from) {
                Some(rest) => (format!("{to}{rest}"), value),
                None => (name, value),
            })
            .collect();
    };
    for name in shard_names(model)? {
        edit_header(&model.join(name), renamed)?;
    }
    edit_index(model, renamed)
}

/// Turns a model of shards and an index into one `model.safetensors` without an index.
///
/// # Errors
/// What the file system says; a shard is no safetensors file.
pub fn merge_shards(model: &Path) -> io::Result<()> {
    let mut tensors = Vec::new();
    for name in shard_names(model)? {
        tensors.append(&mut read_shard(&model.join(&name))?);
        fs::remove_file(model.join(&name))?;
    }
    fs::remove_file(model.join(INDEX))?;
    fs::write(model.join("model.safetensors"), shard_bytes(&tensors))
}

/// Plain names of the `.safetensors` files in a directory, sorted.
///
/// # Errors
/// What the file system says.
pub fn shard_names(model: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(model)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// What must hold of every checkpoint that opened, however odd its files: names sorted and distinct, every tensor
/// inside its file, as long as shape and type say, sharing no byte with another, and readable in parts as in whole.
///
/// # Errors
/// A sentence that says what does not hold.
pub fn check_consistent(checkpoint: &Checkpoint) -> Result<(), String> {
    let files = checkpoint.files();
    let mut extents: Vec<(FileId, u64, u64)> = Vec::new();
    let mut previous = None;
    for (name, entry) in checkpoint.under("") {
        if previous.is_some_and(|previous| previous >= name) {
            return Err(format!("{name} is not in order"));
        }
        previous = Some(name);
        check_entry(checkpoint, &*files, entry).map_err(|reason| format!("{name}: {reason}"))?;
        if entry.bytes > 0 {
            extents.push((entry.file, entry.offset, entry.offset + entry.bytes));
        }
    }
    extents.sort_unstable();
    let apart = |pair: &[(FileId, u64, u64)]| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1;
    if extents.windows(2).all(apart) { Ok(()) } else { Err("two tensors share bytes".to_owned()) }
}

fn check_entry(checkpoint: &Checkpoint, files: &dyn Files, entry: &Entry) -> Result<(), String> {
    if safetensors::tensor_bytes(entry.dtype, &entry.shape) != Some(entry.bytes) {
        return Err("shape and type do not give its length".to_owned());
    }
    let len = files.len(entry.file).map_err(|error| error.to_string())?;
    if entry.offset.checked_add(entry.bytes).is_none_or(|end| end > len) {
        return Err("it does not lie inside its file".to_owned());
    }
    let whole = checkpoint.read_vec(entry).map_err(|error| error.to_string())?;
    let mut half = vec![0; whole.len() / 2];
    let start = (whole.len() - half.len()) as u64;
    checkpoint.read_range(entry, start, &mut half).map_err(|error| error.to_string())?;
    if whole.ends_with(&half) { Ok(()) } else { Err("its second half reads differently".to_owned()) }
}
