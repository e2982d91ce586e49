//! Reads `tiktoken.model`: a line a token, `BASE64 RANK`, ranks counting up from 0 and all single bytes among
//! them. It deliberately knows nothing of merging and nothing of control tokens.

use crate::TextError;
use crate::error::excerpt;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;

/// The bytes of each rank.
///
/// # Errors
/// One that names the line: two fields, base64, the next rank and a new token are expected in each; or the
/// single byte that no line holds.
pub(crate) fn parse(model: &[u8]) -> Result<Vec<Box<[u8]>>, TextError> {
    let lines = model.strip_suffix(b"\n").unwrap_or(model);
    if lines.is_empty() {
        return Err(TextError::NoTokens);
    }
    let tokens = lines
        .split(|&byte| byte == b'\n')
        .enumerate()
        .map(|(rank, line)| parse_line(rank, line))
        .collect::<Result<Vec<_>, _>>()?;
    check_unique_and_complete(&tokens)?;
    Ok(tokens)
}

/// One line, which is the one of `rank`.
fn parse_line(rank: usize, line: &[u8]) -> Result<Box<[u8]>, TextError> {
    let number = rank + 1;
    // Python, which wrote and reads these files, takes both kinds of line ends.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut fields = line.split(|&byte| byte == b' ');
    let (Some(token), Some(found), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(TextError::BadLine { line: number, found: excerpt(line) });
    };
    if token.is_empty() {
        return Err(TextError::BadLine { line: number, found: excerpt(line) });
    }
    let bytes = STANDARD.decode(token).map_err(|source| TextError::BadBase64 {
        line: number,
        found: excerpt(token),
        source,
    })?;
    if std::str::from_utf8(found).ok().and_then(|text| text.parse().ok()) != Some(rank) {
        return Err(TextError::BadRank { line: number, expected: rank, found: excerpt(found) });
    }
    Ok(bytes.into())
}

/// Merging needs one rank for each byte string; encoding any text needs all single bytes.
fn check_unique_and_complete(tokens: &[Box<[u8]>]) -> Result<(), TextError> {
    let mut rank_of: HashMap<&[u8], usize> = HashMap::with_capacity(tokens.len());
    for (rank, token) in tokens.iter().enumerate() {
        if let Some(first) = rank_of.insert(token, rank) {
            return Err(TextError::DuplicateToken {
                line: rank + 1,
                first: first + 1,
                token: excerpt(token),
            });
        }
    }
    match (0..=u8::MAX).find(|byte| !rank_of.contains_key([*byte].as_slice())) {
        Some(byte) => Err(TextError::MissingByte { byte }),
        None => Ok(()),
    }
}
