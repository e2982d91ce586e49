//! Which experts earlier runs asked for, kept across runs in one small file for each model. The file is replaced as a whole
//! or not at all, runs that end at the same time add up, and a file that is not understood is never written over. It knows
//! numbers of experts; no model, and not where such files lie.
//!
//! All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `COLIHIST` |
//! | 4 | version, 1 |
//! | 32 | identity of the model with the layers in use |
//! | 4, 4 | layers with experts, experts in each |
//! | 8 | steps (f64), where one that is [`HALF_LIFE`] steps old counts one half |
//! | 8 each | for each expert the steps that asked for it (f64), counted likewise, layer after layer |
//! | 32 | the BLAKE3 hash of all before |

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"COLIHIST";
/// Of the files written here.
pub const VERSION: u32 = 1;
/// Steps after which a request counts one half: some long answers.
pub const HALF_LIFE: f64 = 8192.0;
const HEAD_BYTES: usize = 60;
const HASH_BYTES: usize = 32;
/// More experts than any model has; a larger file is damaged.
const EXPERTS_MAX: u64 = 1 << 24;

/// What steps asked for, the latest counting most.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// Of the model with the layers in use.
    pub identity: [u8; 32],
    layers: u32,
    experts_per_layer: u32,
    steps: f64,
    counts: Vec<f64>,
}

/// Why a file is no history that can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Another kind of file.
    #[error("it is no history of experts: it does not begin with COLIHIST")]
    Foreign,
    /// Of another version.
    #[error("it is a history of version {found}, but this program reads version {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// Of another model.
    #[error("it is the history of another model")]
    OtherModel,
    /// Damaged or cut off.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// The system's.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl History {
    /// Of nothing.
    #[must_use]
    pub fn new(identity: [u8; 32], layers: u32, experts_per_layer: u32) -> Self {
        let counts = vec![0.0; layers as usize * experts_per_layer as usize];
        Self { identity, layers, experts_per_layer, steps: 0.0, counts }
    }

    /// One pass through all layers asked for these experts, by their place in the order of layers and experts; unknown ones
    /// are left out.
    pub fn add_step(&mut self, experts: impl IntoIterator<Item = u32>) {
        self.age(1.0);
        self.steps += 1.0;
        for expert in experts {
            if let Some(count) = self.counts.get_mut(expert as usize) {
                *count += 1.0;
            }
        }
    }

    fn age(&mut self, steps: f64) {
        let factor = (-steps / HALF_LIFE).exp2();
        self.steps *= factor;
        for count in &mut self.counts {
            *count *= factor;
        }
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps == 0.0
    }

    /// For each expert the share of steps that asked for it, in the order of layers and experts.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let share = |count: &f64| if self.steps > 0.0 { count / self.steps } else { 0.0 };
        self.counts.iter().map(share).collect()
    }

    /// Adds what a later run asked for, of the same model.
    fn add(&mut self, later: &History) {
        self.age(later.steps);
        self.steps += later.steps;
        for (count, later) in self.counts.iter_mut().zip(&later.counts) {
            *count += later;
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.layers.to_le_bytes());
        bytes.extend(self.experts_per_layer.to_le_bytes());
        bytes.extend(self.steps.to_le_bytes());
        bytes.extend(self.counts.iter().flat_map(|count| count.to_le_bytes()));
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        bytes
    }

    /// The history in these bytes.
    ///
    /// # Errors
    /// Bytes that are none of this version, or damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, HistoryError> {
        if !bytes.starts_with(MAGIC) {
            return Err(HistoryError::Foreign);
        }
        let cut = || HistoryError::Damaged(format!("{} bytes are too few: it was cut off", bytes.len()));
        let four = |at: usize| -> Result<u32, HistoryError> {
            let four = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(cut)?;
            Ok(u32::from_le_bytes(*four))
        };
        match four(8)? {
            VERSION => {}
            found => return Err(HistoryError::Version { found }),
        }
        let (layers, experts_per_layer) = (four(44)?, four(48)?);
        let experts = u64::from(layers) * u64::from(experts_per_layer);
        if experts > EXPERTS_MAX {
            return Err(HistoryError::Damaged(format!("{layers} layers of {experts_per_layer} experts")));
        }
        let (body, hash) = bytes.split_last_chunk::<HASH_BYTES>().ok_or_else(cut)?;
        if body.len() as u64 != HEAD_BYTES as u64 + 8 * experts {
            return Err(HistoryError::Damaged(format!("{} bytes for {experts} experts", bytes.len())));
        }
        if blake3::hash(body).as_bytes() != hash {
            return Err(HistoryError::Damaged("its checksum does not fit".to_owned()));
        }
        let identity = bytes.get(12..).and_then(<[u8]>::first_chunk).ok_or_else(cut)?;
        let steps = bytes.get(52..).and_then(<[u8]>::first_chunk).ok_or_else(cut)?;
        let (counts, _) = body[HEAD_BYTES..].as_chunks();
        Ok(Self {
            identity: *identity,
            layers,
            experts_per_layer,
            steps: f64::from_le_bytes(*steps),
            counts: counts.iter().map(|count| f64::from_le_bytes(*count)).collect(),
        })
    }

    /// The history of this model in a file; None if there is no file.
    ///
    /// # Errors
    /// A file that cannot be read or is no history of this model.
    pub fn read(&self, path: &Path) -> Result<Option<Self>, HistoryError> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let history = Self::parse(&bytes)?;
        let size = |history: &Self| (history.identity, history.layers, history.experts_per_layer);
        if size(&history) == size(self) { Ok(Some(history)) } else { Err(HistoryError::OtherModel) }
    }

    /// Adds this history to the one in a file, which is replaced as a whole; whoever else does the same waits. A file that is
    /// no history of this model is moved aside first; where it went is returned.
    ///
    /// # Errors
    /// The system's; the file is then as it was.
    pub fn merge_into(&self, path: &Path) -> Result<Option<PathBuf>, HistoryError> {
        let lock = File::options().create(true).truncate(false).write(true).open(beside(path, ".lock"))?;
        lock.lock()?;
        let (mut whole, mut aside) = (Self::new(self.identity, self.layers, self.experts_per_layer), None);
        match self.read(path) {
            Ok(Some(earlier)) => whole = earlier,
            Ok(None) => {}
            Err(HistoryError::Io(error)) => return Err(error.into()),
            Err(_) => aside = Some(move_aside(path)?),
        }
        whole.add(self);
        let temporary = beside(path, ".partial");
        let written = write_whole(&temporary, &whole.encode()).and_then(|()| fs::rename(&temporary, path));
        if let Err(error) = written {
            // It is only a part, and the error that matters is the first.
            let _ = fs::remove_file(&temporary);
            return Err(error.into());
        }
        Ok(aside)
    }
}

/// The path with an ending more.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Gives a file another name, which no file has.
fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let free =
        (1..10_000).map(|number| beside(path, &format!(".unread-{number}"))).find(|aside| !aside.exists());
    let aside = free.ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn history(expert: u32, steps: u32) -> History {
        let mut history = History::new([3; 32], 2, 4);
        for _ in 0..steps {
            history.add_step([expert, 7, 99]);
        }
        history
    }

    #[test]
    fn shares_are_of_steps_and_the_latest_count_most() {
        let mut history = history(1, 3);
        history.add_step([2]);
        let shares = history.shares();
        assert!((shares[1] - 0.75).abs() < 1e-3 && (shares[2] - 0.25).abs() < 1e-3 && shares[0] == 0.0);
        let later = self::history(0, 8192);
        history.add(&later);
        assert!(history.shares()[2] < 1e-3 && history.shares()[7] > 0.999);
        assert!(History::new([0; 32], 2, 4).shares().iter().all(|share| *share == 0.0));
    }

    #[test]
    fn runs_add_up_in_a_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        assert!(history(1, 1).read(&path).unwrap().is_none());
        assert_eq!(history(1, 2).merge_into(&path).unwrap(), None);
        assert_eq!(history(2, 2).merge_into(&path).unwrap(), None);
        let both = history(0, 0).read(&path).unwrap().unwrap();
        assert!((both.shares()[1] - 0.5).abs() < 1e-3 && (both.shares()[7] - 1.0).abs() < 1e-6);
        assert!(!beside(&path, ".partial").exists());
    }

    /// Two that end together: nothing of either is lost.
    #[test]
    fn many_who_write_together_lose_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        history(1, 1).merge_into(&path).unwrap();
                    }
                });
            }
        });
        let all = history(0, 0).read(&path).unwrap().unwrap();
        assert!((all.steps - 40.0).abs() < 0.2 && (all.counts[1] - 40.0).abs() < 0.2, "{}", all.steps);
    }

    /// Killed after any byte of the new file: the old one is there, or the new one, and the next run goes on.
    #[test]
    fn a_write_cut_off_at_any_byte_leaves_the_old_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        history(1, 2).merge_into(&path).unwrap();
        let old = fs::read(&path).unwrap();
        let new = history(2, 2).encode();
        for length in 0..=new.len() {
            fs::write(beside(&path, ".partial"), &new[..length]).unwrap();
            assert_eq!(fs::read(&path).unwrap(), old);
            assert!(history(0, 0).read(&path).unwrap().is_some());
        }
        history(2, 2).merge_into(&path).unwrap();
        assert!((history(0, 0).read(&path).unwrap().unwrap().steps - 4.0).abs() < 1e-2);
    }

    #[test]
    fn what_is_not_understood_is_moved_aside_and_kept() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("x");
        let mut newer = history(1, 1).encode();
        newer[8] = 2;
        let mut other = history(1, 1);
        other.identity = [4; 32];
        let mut damaged = history(1, 1).encode();
        damaged[70] ^= 1;
        let files: [(&[u8], &str); 4] = [
            (b"something else", "does not begin with COLIHIST"),
            (&newer, "version 2, but this program reads version 1"),
            (&other.encode(), "another model"),
            (&damaged, "its checksum does not fit"),
        ];
        for (number, (bytes, words)) in files.into_iter().enumerate() {
            fs::write(&path, bytes).unwrap();
            let error = history(1, 1).read(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "looking changes nothing");
            let aside = history(1, 1).merge_into(&path).unwrap().unwrap();
            assert_eq!(aside, beside(&path, &format!(".unread-{}", number + 1)));
            assert_eq!(fs::read(&aside).unwrap(), bytes);
            assert_eq!(history(0, 0).read(&path).unwrap().unwrap(), history(1, 1));
        }
    }

    /// A file of version 1 as it was written when there was only that version.
    #[test]
    fn the_first_version_is_read() {
        let bytes = include_bytes!("../tests/fixtures/history-1.bin");
        assert_eq!(History::parse(bytes).unwrap(), history(1, 2));
        assert_eq!(VERSION, 1, "a new version gets a fixture of its own");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn damaged_bytes_are_refused(at in any::<prop::sample::Index>(), bit in 0..8_u32, cut in any::<prop::sample::Index>(), any in prop::collection::vec(any::<u8>(), 0..120)) {
            let whole = history(1, 2).encode();
            let mut bytes = whole.clone();
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(History::parse(&bytes).is_err());
            prop_assert!(History::parse(&whole[..cut.index(whole.len())]).is_err());
            let _ = History::parse(&any);
            let _ = History::parse(&[&whole[..HEAD_BYTES], &any].concat());
        }
    }
}
