//! Any bytes in any cuts: the stream is the lossy whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::StreamDecoder;

fuzz_target!(|parts: Vec<Vec<u8>>| {
    let mut decoder = StreamDecoder::new();
    let mut streamed: String = parts.iter().map(|part| decoder.push(part)).collect();
    streamed += &decoder.finish();
    assert_eq!(streamed, String::from_utf8_lossy(&parts.concat()));
});
