//! What a device promises beside the results of ops: buffers, reads, and errors that name what is wrong.

use cpu::Cpu;
use ops::{Buffer, Device, DeviceError, Ids, LatentCache, NONE, Op, Tensor};

fn device() -> Cpu {
    Cpu::new(2).unwrap()
}

/// A buffer of 64 numbers and the i-th row of 8 in it.
fn desk(device: &mut Cpu) -> (Buffer, impl Fn(u64) -> Tensor + use<>) {
    let buffer = device.allocate(256, "numbers").unwrap();
    (buffer, move |i| Tensor::new(buffer, i * 8, 1, 8))
}

fn numbers(device: &mut Cpu, t: Tensor) -> Vec<f32> {
    let ticket = device.read_later(t.buffer, t.offset * 4, t.elements() * 4).unwrap();
    let mut bytes = vec![0; ticket.bytes as usize];
    device.take(ticket, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn work_happens_in_the_order_of_the_calls() {
    let mut device = device();
    let (buffer, row) = desk(&mut device);
    assert_eq!(numbers(&mut device, Tensor::new(buffer, 0, 1, 64)), [0.0; 64]);
    device.write(buffer, 0, &1.0_f32.to_le_bytes().repeat(8)).unwrap();
    let first = device.submit(&[Op::Add { out: row(1), x: row(0), y: row(0) }]).unwrap();
    let two = device.read_later(buffer, 32, 4).unwrap();
    device.copy((buffer, 32), (buffer, 64), 32).unwrap();
    device.write(buffer, 32, &100.0_f32.to_le_bytes().repeat(8)).unwrap();
    let second = device.submit(&[Op::Add { out: row(3), x: row(1), y: row(2) }]).unwrap();
    assert_eq!(numbers(&mut device, row(3)), [102.0; 8]);
    let mut bytes = [0; 4];
    device.take(two, &mut bytes).unwrap();
    assert_eq!(f32::from_le_bytes(bytes), 2.0);
    assert!(second > first && device.last() == second && device.done(second).unwrap());
    assert!(device.wait(second, None).unwrap());
}

#[test]
fn handles_ranges_and_tickets_are_checked() {
    let mut device = device();
    let (buffer, _) = desk(&mut device);
    for error in [
        device.write(buffer, 250, &[0; 8]).unwrap_err(),
        device.write(buffer, u64::MAX, &[0; 8]).unwrap_err(),
        device.copy((buffer, 0), (buffer, 200), 60).unwrap_err(),
        device.copy((buffer, 200), (buffer, 0), 60).unwrap_err(),
        device.read_later(buffer, 256, 1).unwrap_err(),
    ] {
        assert!(matches!(error, DeviceError::OutOfRange { bytes: 256, .. }), "{error}");
    }
    let ticket = device.read_later(buffer, 0, 4).unwrap();
    let again = ops::Ticket { after: ticket.after, id: ticket.id, bytes: 4 };
    device.take(ticket, &mut [0; 4]).unwrap();
    assert!(matches!(device.take(again, &mut [0; 4]), Err(DeviceError::UnknownHandle { .. })));
    assert_eq!(device.memory().allocated, 256);
    device.free(buffer).unwrap();
    assert_eq!(device.memory().allocated, 0);
    assert!(matches!(device.free(buffer), Err(DeviceError::UnknownHandle { .. })));
}

#[test]
fn an_op_on_wrong_operands_is_an_error_and_the_device_goes_on() {
    let mut device = device();
    let (buffer, row) = desk(&mut device);
    let error = device.submit(&[Op::Copy { out: row(1), x: row(1) }]).unwrap_err().to_string();
    assert!(error.contains("overlap"), "{error}");
    let outside = Tensor::new(buffer, 60, 1, 8);
    let error = device.submit(&[Op::Copy { out: row(1), x: outside }]).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange { end: 272, .. }), "{error}");
    // A position without a block is a fault that only the op's own threads see.
    device.write(buffer, 0, &NONE.to_le_bytes()).unwrap();
    let pool = device.allocate(64 * 32, "cache").unwrap();
    let cache = LatentCache {
        pool: Tensor::new(pool, 0, 64, 8),
        table: Ids(Tensor::new(buffer, 0, 1, 1)),
        latent: 8,
    };
    let op = Op::AttendLatent {
        out: row(1),
        q: row(2),
        q_rope: None,
        cache,
        position: 0,
        selected: None,
        heads: 1,
        scale: 1.0,
    };
    let error = device.submit(&[op]).unwrap_err().to_string();
    assert!(error.contains("position 0 has no block"), "{error}");
    device.submit(&[Op::Copy { out: row(1), x: row(2) }]).unwrap();
}

#[test]
fn no_memory_is_an_error_by_name() {
    let error = device().allocate(u64::MAX, "everything").unwrap_err().to_string();
    assert!(error.contains("everything") && error.contains("cpu"), "{error}");
}
