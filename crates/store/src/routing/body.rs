//! The body of a step in a routing trace: bits of picks behind a few numbers. It knows nothing of files.

use super::{LayerPicks, NO_PICK, RoutingHead, RoutingStep};

/// Bits that a pick takes: enough for every expert and for none.
fn bits(head: &RoutingHead) -> u32 {
    u16::BITS - head.experts_per_layer.leading_zeros()
}

/// A step as bytes.
pub(super) fn encode(head: &RoutingHead, step: &[LayerPicks]) -> Vec<u8> {
    let mut body = Vec::new();
    put(&mut body, step.len() as u64);
    for LayerPicks { layer, picks } in step {
        put(&mut body, u64::from(layer - head.first_layer));
        put(&mut body, picks.len() as u64 / u64::from(head.ranks));
        pack(&mut body, picks, head);
    }
    body
}

fn put(body: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        body.push(number as u8 | 0x80);
        number >>= 7;
    }
    body.push(number as u8);
}

fn pack(body: &mut Vec<u8>, picks: &[u16], head: &RoutingHead) {
    let (width, mut held, mut count) = (bits(head), 0_u64, 0);
    for &pick in picks {
        let number = if pick == NO_PICK { head.experts_per_layer } else { pick };
        held |= u64::from(number) << count;
        count += width;
        while count >= 8 {
            body.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        body.push(held as u8);
    }
}

/// The step in these bytes, or what is wrong with them.
pub(super) fn decode(head: &RoutingHead, mut body: &[u8]) -> Result<RoutingStep, String> {
    let layers = take(&mut body)?;
    if layers > u64::from(head.layers) {
        return Err(format!("a step of {layers} layers where the model has {}", head.layers));
    }
    let mut step = Vec::with_capacity(layers as usize);
    for _ in 0..layers {
        let layer = take(&mut body)?;
        if layer >= u64::from(head.layers) {
            return Err(format!("layer {layer} of {}", head.layers));
        }
        let picks = take(&mut body)?.checked_mul(u64::from(head.ranks)).ok_or("too many rows")?;
        let bytes = picks.checked_mul(u64::from(bits(head))).ok_or("too many rows")?.div_ceil(8);
        let Some((packed, rest)) = usize::try_from(bytes).ok().and_then(|bytes| body.split_at_checked(bytes))
        else {
            return Err(format!("{bytes} bytes of picks where {} are left", body.len()));
        };
        step.push(LayerPicks {
            layer: head.first_layer + layer as u16,
            picks: unpack(packed, picks as usize, head)?,
        });
        body = rest;
    }
    if body.is_empty() {
        Ok(step)
    } else {
        Err(format!("{} bytes behind the last layer of a step", body.len()))
    }
}

fn take(body: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = body.split_first().ok_or("a number that ends early")?;
        *body = rest;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            break;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err("a number of more than 64 bits".to_owned())
}

fn unpack(packed: &[u8], count: usize, head: &RoutingHead) -> Result<Vec<u16>, String> {
    let (width, experts) = (bits(head), head.experts_per_layer);
    let (mut picks, mut held, mut there, mut bytes) = (Vec::with_capacity(count), 0_u64, 0, packed.iter());
    for _ in 0..count {
        while there < width {
            held |= u64::from(*bytes.next().ok_or("picks that end early")?) << there;
            there += 8;
        }
        let pick = (held & ((1 << width) - 1)) as u16;
        held >>= width;
        there -= width;
        picks.push(match pick {
            pick if pick < experts => pick,
            pick if pick == experts => NO_PICK,
            _ => return Err(format!("expert {pick} of {experts}")),
        });
    }
    if held == 0 { Ok(picks) } else { Err("bits behind the last pick".to_owned()) }
}
