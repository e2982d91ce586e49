//! One safetensors file: the header, checked so that every tensor it yields lies whole inside the file. Knows
//! neither other shards nor an index, and reads no tensor data.
//!
//! Format (<https://github.com/huggingface/safetensors>): header length (u64, little endian), header (a JSON object
//! of name -> {dtype, shape, `data_offsets`}, perhaps padded with blanks), data; the offsets count from the end of
//! the header. We are laxer than the format in one point: bytes between two tensors that belong to none are allowed,
//! because they harm nobody. Bytes after the last tensor are refused: downloads that went wrong leave such files.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::checksums::Checksum;
use crate::container;
use crate::content::{HEAD_BYTES, recognise};
use crate::error::{StoreError, TensorSize, Truncated};
use crate::files::{FileId, Files};
use crate::read;

/// Longest header we accept; the limit of the format's own library.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Most dimensions a shape may have.
const RANK_MAX: usize = 64;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal $doc:literal,)*) => {
        /// Type of a tensor's elements, as safetensors names them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dtype { $(#[doc = $doc] $variant,)* }

        impl Dtype {
            /// All types.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant),*];

            /// The name in a header.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name),* }
            }

            /// Bits of one element. Types below 8 bits are packed without gaps.
            #[must_use]
            pub fn bits(self) -> u64 {
                match self { $(Dtype::$variant => $bits),* }
            }

            /// The type of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Dtype> {
                match name { $($name => Some(Dtype::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    Bool "BOOL" 8 "One byte, 0 or 1.",
    F4 "F4" 4 "OCP e2m1.",
    F6E2m3 "F6_E2M3" 6 "OCP e2m3.",
    F6E3m2 "F6_E3M2" 6 "OCP e3m2.",
    U8 "U8" 8 "Unsigned byte; also any packed format.",
    I8 "I8" 8 "Signed byte.",
    F8E5m2 "F8_E5M2" 8 "e5m2 with infinities.",
    F8E4m3 "F8_E4M3" 8 "e4m3 without infinities.",
    F8E8m0 "F8_E8M0" 8 "OCP power-of-two scale.",
    F8E4m3Fnuz "F8_E4M3FNUZ" 8 "e4m3 with one zero and one NaN.",
    F8E5m2Fnuz "F8_E5M2FNUZ" 8 "e5m2 with one zero and one NaN.",
    I16 "I16" 16 "Signed 16 bits.",
    U16 "U16" 16 "Unsigned 16 bits.",
    F16 "F16" 16 "IEEE half.",
    Bf16 "BF16" 16 "The upper half of an f32.",
    I32 "I32" 32 "Signed 32 bits.",
    U32 "U32" 32 "Unsigned 32 bits.",
    F32 "F32" 32 "IEEE single.",
    C64 "C64" 64 "Complex of two singles.",
    F64 "F64" 64 "IEEE double.",
    I64 "I64" 64 "Signed 64 bits.",
    U64 "U64" 64 "Unsigned 64 bits.",
}

impl fmt::Display for Dtype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Where a tensor lies and what it is. The bytes are known to be inside the file as it was when it was opened, and
/// to be as many as shape and type say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Sizes of the dimensions, the slowest first. Equal shapes share their memory.
    pub shape: Arc<[u64]>,
    /// The file that holds it.
    pub file: FileId,
    /// First byte, counted from the beginning of the file.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A name and its entry.
pub(crate) type Named = (Box<str>, Entry);

/// The distinct shapes seen so far: half a million tensors have a few dozen.
#[derive(Default)]
pub(crate) struct Shapes(HashSet<Arc<[u64]>>);

impl Shapes {
    fn share(&mut self, shape: &[u64]) -> Arc<[u64]> {
        if let Some(known) = self.0.get(shape) {
            return Arc::clone(known);
        }
        let shape: Arc<[u64]> = shape.into();
        self.0.insert(Arc::clone(&shape));
        shape
    }
}

/// Bytes of a tensor; `None` when that is not a whole number below 2^64.
#[must_use]
pub fn tensor_bytes(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size))?;
    let bits = u128::from(elements) * u128::from(dtype.bits());
    if bits.is_multiple_of(8) { u64::try_from(bits / 8).ok() } else { None }
}

/// What the header of one file says.
pub(crate) struct Header {
    /// In the order of the header.
    pub(crate) tensors: Vec<Named>,
    /// What `colibri convert` wrote into `__metadata__`; others' remarks are no part of a model.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Of the header's bytes with the length before them.
    pub(crate) checksum: Checksum,
    /// Of the file.
    pub(crate) bytes: u64,
}

/// Reads and checks the header of one file.
///
/// # Errors
/// All that can be wrong with a single shard: see the variants of [`StoreError`].
pub(crate) fn read_header(
    files: &dyn Files,
    file: FileId,
    shapes: &mut Shapes,
) -> Result<Header, StoreError> {
    let len = read::len(files, file)?;
    let header_bytes = header_length(files, file, len)?;
    let mut header = vec![0; 8 + header_bytes as usize];
    read::exact(files, file, 0, &mut header)?;
    let shard = Shard { path: files.location(file), file, data_start: 8 + header_bytes, len };
    let (tensors, metadata) = shard.parse(&header[8..])?;
    let checksum = Checksum::of(&header);
    drop(header);
    let mut named = Vec::with_capacity(tensors.len());
    for (name, raw) in tensors {
        let entry = shard.entry(&name, raw, shapes)?;
        named.push((name, entry));
    }
    shard.check_layout(&named)?;
    Ok(Header { tensors: named, metadata, checksum, bytes: len })
}

/// Length of the header in bytes, known to fit into the file and the limit.
fn header_length(files: &dyn Files, file: FileId, len: u64) -> Result<u64, StoreError> {
    let path = || files.location(file);
    if len == 0 {
        return Err(StoreError::EmptyFile { path: path() });
    }
    let mut head = [0; HEAD_BYTES];
    let head = &mut head[..len.min(HEAD_BYTES as u64) as usize];
    read::exact(files, file, 0, head)?;
    let length = head.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    match length {
        Some(length @ 2..=HEADER_BYTES_MAX) if length <= len - 8 => return Ok(length),
        // A plausible length and the beginning of a header: the rest is cut off.
        Some(length @ 2..=HEADER_BYTES_MAX) if head.get(8).is_none_or(|&first| first == b'{') => {
            return Err(StoreError::TruncatedHeader { path: path(), needed: 8 + length, found: len });
        }
        _ => {}
    }
    if let Some(found) = recognise(head) {
        return Err(StoreError::WrongContent { path: path(), expected: "a safetensors file", found });
    }
    let Some(found) = length else {
        return Err(StoreError::TruncatedHeader { path: path(), needed: 8, found: len });
    };
    Err(StoreError::HeaderLength { path: path(), found, limit: HEADER_BYTES_MAX.min(len - 8), len })
}

/// A file whose header is being checked.
struct Shard {
    path: String,
    file: FileId,
    data_start: u64,
    len: u64,
}

impl Shard {
    fn parse(&self, header: &[u8]) -> Result<RawHeader, StoreError> {
        let mut parser = serde_json::Deserializer::from_slice(header);
        let parsed = HeaderSeed.deserialize(&mut parser).and_then(|tensors| parser.end().map(|()| tensors));
        parsed.map_err(|error| StoreError::Header { path: self.path.clone(), reason: error.to_string() })
    }

    fn entry(&self, name: &str, raw: RawTensor, shapes: &mut Shapes) -> Result<Entry, StoreError> {
        let (path, tensor) = (|| self.path.clone(), || name.to_owned());
        let RawTensor { dtype, shape, begin, end } = raw;
        let dtype =
            dtype.map_err(|dtype| StoreError::UnknownDtype { path: path(), tensor: tensor(), dtype })?;
        let bytes = end.checked_sub(begin);
        let (Some(bytes), Some(offset)) = (bytes, self.data_start.checked_add(begin)) else {
            return Err(StoreError::Offsets { path: path(), tensor: tensor(), begin, end });
        };
        if self.data_start.checked_add(end).is_none() {
            return Err(StoreError::Offsets { path: path(), tensor: tensor(), begin, end });
        }
        let expected = tensor_bytes(dtype, &shape);
        if expected != Some(bytes) {
            let size = TensorSize { path: path(), tensor: tensor(), dtype, shape, expected, found: bytes };
            return Err(StoreError::TensorSize(Box::new(size)));
        }
        Ok(Entry { dtype, shape: shapes.share(&shape), file: self.file, offset, bytes })
    }

    /// No two tensors share bytes; the last one ends where the file ends.
    fn check_layout(&self, tensors: &[Named]) -> Result<(), StoreError> {
        let mut order: Vec<&Named> = tensors.iter().filter(|(_, entry)| entry.bytes > 0).collect();
        order.sort_unstable_by_key(|(_, entry)| entry.offset);
        for pair in order.windows(2) {
            if pair[0].1.offset + pair[0].1.bytes > pair[1].1.offset {
                let (first, second) = (pair[0].0.to_string(), pair[1].0.to_string());
                return Err(StoreError::Overlap { path: self.path.clone(), first, second });
            }
        }
        let end = |entry: &Entry| entry.offset + entry.bytes;
        let expected = tensors.iter().map(|(_, entry)| end(entry)).max().unwrap_or(self.data_start);
        if expected < self.len {
            return Err(StoreError::TrailingBytes { path: self.path.clone(), expected, found: self.len });
        }
        if expected > self.len {
            let cut: Vec<&&Named> = order.iter().filter(|(_, entry)| end(entry) > self.len).collect();
            return Err(StoreError::Truncated(Box::new(Truncated {
                path: self.path.clone(),
                expected,
                found: self.len,
                tensors: cut.iter().take(8).map(|(name, _)| name.to_string()).collect(),
                count: cut.len(),
            })));
        }
        Ok(())
    }
}

/// A tensor as the header describes it; nothing about it is checked but the JSON types.
struct RawTensor {
    dtype: Result<Dtype, String>,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

/// Tensors in the order of the header, and the part of the metadata that is ours.
type RawHeader = (Vec<(Box<str>, RawTensor)>, BTreeMap<String, String>);

/// Reads the header object as a stream: no tree of JSON values is ever built. Names that occur twice come out twice;
/// the checkpoint, which sorts all names, finds them.
struct HeaderSeed;

impl<'de> DeserializeSeed<'de> for HeaderSeed {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed {
    type Value = RawHeader;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = Vec::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<Box<str>>()? {
            let at = |error: A::Error| A::Error::custom(format_args!("{name}: {error}"));
            if &*name != "__metadata__" {
                let tensor = map.next_value_seed(TensorSeed).map_err(at)?;
                tensors.push((name, tensor));
            } else if metadata.is_some() {
                return Err(at(A::Error::custom("occurs twice")));
            } else {
                metadata = Some(map.next_value_seed(MetadataSeed).map_err(at)?);
            }
        }
        Ok((tensors, metadata.unwrap_or_default()))
    }
}

/// `__metadata__`, an object of strings: checked, and thrown away but for what is ours.
struct MetadataSeed;

impl<'de> DeserializeSeed<'de> for MetadataSeed {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut ours = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if key.starts_with(container::KEYS) {
                ours.insert(key, value);
            }
        }
        Ok(ours)
    }
}

struct TensorSeed;

impl<'de> DeserializeSeed<'de> for TensorSeed {
    type Value = RawTensor;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawTensor, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TensorSeed {
    type Value = RawTensor;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with dtype, shape and data_offsets")
    }

    /// Unknown fields are refused: one might change what the bytes mean.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawTensor, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            let twice = match field.as_str() {
                "dtype" => {
                    let name: String = map.next_value()?;
                    dtype.replace(Dtype::from_name(&name).ok_or(name)).is_some()
                }
                "shape" => shape.replace(map.next_value_seed(ShapeSeed)?).is_some(),
                "data_offsets" => offsets.replace(map.next_value::<[u64; 2]>()?).is_some(),
                other => return Err(A::Error::custom(format_args!("unknown field {other:?}"))),
            };
            if twice {
                return Err(A::Error::custom(format_args!("field {field} occurs twice")));
            }
        }
        let missing = |field| move || A::Error::missing_field(field);
        let [begin, end] = offsets.ok_or_else(missing("data_offsets"))?;
        let dtype = dtype.ok_or_else(missing("dtype"))?;
        let shape = shape.ok_or_else(missing("shape"))?;
        Ok(RawTensor { dtype, shape, begin, end })
    }
}

struct ShapeSeed;

impl<'de> DeserializeSeed<'de> for ShapeSeed {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<u64>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ShapeSeed {
    type Value = Vec<u64>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Vec<u64>, A::Error> {
        let mut shape = Vec::new();
        while let Some(size) = sizes.next_element()? {
            if shape.len() == RANK_MAX {
                return Err(A::Error::custom(format_args!("a shape has more than {RANK_MAX} dimensions")));
            }
            shape.push(size);
        }
        Ok(shape)
    }
}
