//! What the format's own library writes, we read back equal.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use safetensors::tensor::TensorView;
use store::files::MemoryFiles;
use store::{Checkpoint, Dtype, testing};

/// Their type of the same name, by way of the name, so that ours are compared with theirs and not with themselves.
fn theirs(dtype: Dtype) -> safetensors::Dtype {
    serde_json::from_value(dtype.name().into()).expect("a type that the format's library does not know")
}

/// Type, shape, and a byte to begin the data with. Types below a byte get an even number of eights.
fn tensor() -> impl Strategy<Value = (Dtype, Vec<usize>, u8)> {
    let shape = prop::collection::vec(0_usize..5, 0..5);
    (prop::sample::select(Dtype::ALL), shape, any::<u8>()).prop_map(|(dtype, mut shape, seed)| {
        if !dtype.bits().is_multiple_of(8) {
            shape.push(8);
        }
        (dtype, shape, seed)
    })
}

fn data(dtype: Dtype, shape: &[usize], seed: u8) -> Vec<u8> {
    let bits = shape.iter().product::<usize>() * dtype.bits() as usize;
    (0..bits / 8).map(|place| seed.wrapping_add((place * 31) as u8)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn their_files_read_back_equal(
        tensors in prop::collection::btree_map("[a-z.\"\\\\é\u{1f600}]{1,12}", tensor(), 0..12),
        with_metadata in any::<bool>(),
    ) {
        let contents: BTreeMap<&String, Vec<u8>> =
            tensors.iter().map(|(name, (dtype, shape, seed))| (name, data(*dtype, shape, *seed))).collect();
        let views = tensors.iter().map(|(name, (dtype, shape, _))| {
            (name, TensorView::new(theirs(*dtype), shape.clone(), &contents[name]).unwrap())
        });
        let metadata = with_metadata.then(|| [("format".to_owned(), "pt".to_owned())].into());
        let file = safetensors::serialize(views, metadata).unwrap();
        let files = [
            ("config.json".to_owned(), Cow::Borrowed(&b"{}"[..])),
            ("model.safetensors".to_owned(), Cow::Owned(file)),
        ];
        let checkpoint = Checkpoint::from_files(Arc::new(MemoryFiles::new(files))).unwrap();
        testing::check_consistent(&checkpoint).unwrap();
        prop_assert!(checkpoint.names().eq(tensors.keys()));
        for (name, (dtype, shape, _)) in &tensors {
            let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
            let entry = checkpoint.require(name, &[*dtype], &shape).unwrap();
            prop_assert_eq!(&checkpoint.read_vec(entry).unwrap(), &contents[name]);
        }
    }
}

#[test]
fn types_agree_in_size_with_theirs() {
    for &dtype in Dtype::ALL {
        assert_eq!(dtype.bits(), theirs(dtype).bitsize() as u64, "{dtype}");
        assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
    }
    assert_eq!(Dtype::from_name("bf16"), None);
}
