use super::*;
use ops::Packing;

/// A buffer of the numbers 0, 1, 2 and so on.
fn counting(memory: &mut Memory, count: u64) -> Buffer {
    let buffer = memory.allocate(count * 4, "numbers").unwrap();
    for (i, bytes) in
        memory.range_mut(buffer, 0, count * 4).unwrap().as_chunks_mut::<4>().0.iter_mut().enumerate()
    {
        *bytes = (i as f32).to_le_bytes();
    }
    buffer
}

#[test]
fn views_see_rows_columns_blocks_and_residues() {
    let mut memory = Memory::default();
    let buffer = counting(&mut memory, 60);
    let t = Tensor { buffer, offset: 1, rows: 5, cols: 4, stride: 10 };
    let mut access = memory.access();
    let view = access.read(t).unwrap();
    assert_eq!((view.rows(), view.cols(), view.is_contiguous()), (5, 4, false));
    assert_eq!(view.row(2), [21.0, 22.0, 23.0, 24.0]);
    let block = view.block(1..3, 2..4);
    assert_eq!((block.row(0), block.row(1)), (&[13.0, 14.0][..], &[23.0, 24.0][..]));
    let every = view.every(1, 2);
    assert_eq!((every.rows(), every.row(0)[0], every.row(1)[0]), (2, 11.0, 31.0));
    assert_eq!(view.every(4, 7).rows(), 1);
    assert_eq!(view.every(6, 7).rows(), 0);
    assert_eq!(view.block(5..5, 0..4).rows(), 0);
    assert_eq!(access.read(Tensor::new(buffer, 10, 2, 5)).unwrap().flat().row(0).len(), 10);
}

#[test]
fn parts_cover_everything_once() {
    for cut in [Cut::Blocks(2, 3), Cut::Blocks(100, 1), Cut::Blocks(1, 100), Cut::Every(3), Cut::Every(9)] {
        let mut numbers = vec![0_u32; 7 * 8];
        let pieces = ViewMut::from_slice(&mut numbers, 7, 8).cut(cut);
        for mut part in pieces.all() {
            assert!(part.rows() > 0 && part.cols() > 0, "{cut:?}");
            for r in 0..part.rows() {
                part.row(r).iter_mut().for_each(|number| *number += 1);
            }
        }
        assert!(numbers.iter().all(|number| *number == 1), "{cut:?}: {numbers:?}");
    }
    assert_eq!(ViewMut::<u32>::from_slice(&mut [], 0, 8).cut(Cut::Blocks(1, 1)).count(), 0);
}

#[test]
fn numbers_to_write_are_lent_once() {
    let mut memory = Memory::default();
    let (buffer, other) = (counting(&mut memory, 60), counting(&mut memory, 60));
    let whole = Tensor::new(buffer, 0, 6, 10);
    let tensors = [
        // Shares numbers with columns 2..5 of rows 1..3 or not.
        (whole, true),
        (whole.rows_at(0, 1), false),
        (whole.rows_at(3, 2), false),
        (whole.columns_at(0, 2), false),
        (whole.columns_at(5, 5), false),
        (whole.columns_at(4, 2), true),
        (whole.rows_at(2, 1), true),
        (Tensor::new(other, 0, 6, 10), false),
        (Tensor::new(buffer, 12, 1, 0), false),
    ];
    for (t, overlaps) in tensors {
        let mut access = memory.access();
        access.write(whole.rows_at(1, 2).columns_at(2, 3)).unwrap();
        assert_eq!(access.read(t).is_err(), overlaps, "{t:?}");
        let mut access = memory.access();
        access.read(t).unwrap();
        assert_eq!(access.write(whole.rows_at(1, 2).columns_at(2, 3)).is_err(), overlaps, "{t:?}");
        let mut access = memory.access();
        access.read(t).unwrap();
        access.read(whole).unwrap();
    }
    let mut access = memory.access();
    let weight = Matrix { buffer, codes: 40, scales: 0, rows: 2, cols: 5, packing: Packing::F32 };
    assert_eq!(access.matrix(weight).unwrap()[0].len(), 40);
    let error = access.write(whole.rows_at(1, 1)).err().unwrap().to_string();
    assert!(error.contains("overlap"), "{error}");
    access.write(whole.rows_at(0, 1)).unwrap();
}

#[test]
fn faults_are_named() {
    let mut memory = Memory::default();
    let buffer = counting(&mut memory, 20);
    let mut access = memory.access();
    assert!(matches!(
        access.read(Tensor::new(buffer, 15, 2, 3)),
        Err(DeviceError::OutOfRange { end: 84, .. })
    ));
    assert!(matches!(access.read(Tensor::new(Buffer(9), 0, 1, 1)), Err(DeviceError::UnknownHandle { .. })));
    let folded = Tensor { buffer, offset: 0, rows: 3, cols: 4, stride: 2 };
    assert!(access.read(folded).err().unwrap().to_string().contains("rows of"));
    assert!(access.slots(buffer).err().unwrap().to_string().contains("no slots"));
    memory.free(buffer).unwrap();
    assert_eq!(memory.allocated, 0);
    assert!(memory.free(buffer).is_err() && memory.range(buffer, 0, 1).is_err());
}
