//! Experts compared with the checksums of a container, each the first time it is read. Knows bytes, no reader.
use super::{Catalog, CatalogError, ExpertId};
use crate::checksums::{Checksum, Summing};
use std::sync::atomic::{AtomicBool, Ordering};

/// The checksum of every expert, and which were found right.
#[derive(Debug)]
pub(super) struct Checks {
    sums: Vec<Checksum>,
    right: Vec<AtomicBool>,
}

impl Catalog {
    /// From now on every expert is compared with its checksum when it is read for the first time. Checksums of experts that
    /// are not in the catalog are passed over.
    ///
    /// # Errors
    /// [`CatalogError::NoChecksum`] for the first expert that has none.
    pub fn check_with(
        &mut self,
        sums: impl IntoIterator<Item = (ExpertId, Checksum)>,
    ) -> Result<(), CatalogError> {
        let mut known = vec![None; self.experts() as usize];
        for (id, sum) in sums {
            if let Some(index) = self.index(id) {
                known[index as usize] = Some(sum);
            }
        }
        let sum = |(sum, index): (Option<Checksum>, u32)| {
            sum.ok_or_else(|| CatalogError::NoChecksum { id: self.id(index) })
        };
        let sums = known.into_iter().zip(0..).map(sum).collect::<Result<Vec<_>, _>>()?;
        let right = sums.iter().map(|_| AtomicBool::new(false)).collect();
        self.checks = Some(Checks { sums, right });
        Ok(())
    }

    /// Found and expected checksum of an expert whose bytes are not what they were when its container was written.
    pub(crate) fn differs(&self, index: u32, payload: &[u8]) -> Option<(Checksum, Checksum)> {
        let checks = self.checks.as_ref()?;
        let right = &checks.right[index as usize];
        if right.load(Ordering::Relaxed) {
            return None;
        }
        // What lies between the pieces of a slot is no part of an expert.
        let mut summing = Summing::default();
        for piece in 0..self.layout.pieces().len() {
            summing.add(&payload[self.layout.range(piece)]);
        }
        let (found, expected) = (summing.sum(), checks.sums[index as usize]);
        right.store(found == expected, Ordering::Relaxed);
        (found != expected).then_some((found, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{CatalogBuilder, ExpertLayout, PieceSpec};

    #[test]
    fn an_expert_is_compared_until_it_was_right() {
        let piece = |name: &str, bytes| PieceSpec { name: name.into(), bytes, row_bytes: 1, forbidden: None };
        let layout = ExpertLayout::new(vec![piece("a", 17), piece("b", 5)]).unwrap();
        let id = |expert| ExpertId { layer: 2, expert };
        let catalog = || {
            let mut builder = CatalogBuilder::new(layout.clone(), 2..3, 2);
            for expert in 0..2 {
                builder.place(id(expert), "a", 0, 0).unwrap();
                builder.place(id(expert), "b", 0, 50).unwrap();
            }
            builder.finish().unwrap()
        };
        // 15 bytes between the pieces, which may be anything.
        let slot: Vec<u8> = (0..37).collect();
        let sum = Checksum::of(&[&slot[..17], &slot[32..]].concat());
        let missing = catalog().check_with([(id(0), sum), (ExpertId { layer: 9, expert: 0 }, sum)]);
        assert_eq!(missing, Err(CatalogError::NoChecksum { id: id(1) }));

        let mut catalog = catalog();
        assert_eq!(catalog.differs(1, &[]), None);
        catalog.check_with([(id(0), sum), (id(1), Checksum(7))]).unwrap();
        let mut bad = slot.clone();
        bad[20] ^= 1;
        let mut worse = slot.clone();
        worse[36] ^= 1;
        assert!(
            catalog.differs(0, &worse).is_some_and(|(found, expected)| found != expected && expected == sum)
        );
        assert!(catalog.differs(0, &worse).is_some());
        assert_eq!(catalog.differs(0, &bad), None);
        assert_eq!(catalog.differs(0, &worse), None, "once is enough");
        assert_eq!(catalog.differs(1, &slot), Some((sum, Checksum(7))));
    }
}
