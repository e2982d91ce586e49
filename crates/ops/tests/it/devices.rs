//! What [`Device`] promises, on the oracle and on a late one; the test devices; `Checked` with each.

use ops::testing::{Call, Failing, Late, Poisoned, Reversed, WrongState};
use ops::{
    Activation, Activations, Allowed, Buffer, Checked, Device, DeviceError, ExpertMatrices, Ids, LatentCache,
    Matrix, NONE, Op, Oracle, Packing, Picked, Submission, Tensor, Traced,
};
use std::time::{Duration, Instant};

fn oracle() -> Oracle {
    Oracle::new(1).unwrap()
}

fn both() -> [Box<dyn Device>; 2] {
    [Box::new(oracle()), Box::new(Late::new(oracle(), 3))]
}

fn bytes(numbers: &[f32]) -> &[u8] {
    bytemuck::cast_slice(numbers)
}

fn read(device: &mut dyn Device, t: Tensor) -> Vec<f32> {
    let ticket = device.read_later(t.buffer, t.offset * 4, t.elements() * 4).unwrap();
    let mut numbers = vec![0.0; t.elements() as usize];
    device.take(ticket, bytemuck::cast_slice_mut(&mut numbers)).unwrap();
    numbers
}

/// A buffer of 64 numbers and the i-th row of 8 in it.
fn desk(device: &mut dyn Device) -> (Buffer, impl Fn(u64) -> Tensor + use<>) {
    let buffer = device.allocate(256, "numbers").unwrap();
    (buffer, move |i| Tensor::new(buffer, i * 8, 1, 8))
}

#[test]
fn a_buffer_starts_with_zeros_and_is_counted() {
    for mut device in both() {
        let (buffer, _) = desk(&mut *device);
        assert_eq!(device.memory().allocated, 256);
        assert_eq!(read(&mut *device, Tensor::new(buffer, 0, 1, 64)), [0.0; 64]);
    }
}

#[test]
fn submissions_rise_and_zero_is_before_the_first() {
    for mut device in both() {
        assert_eq!(device.last(), Submission(0));
        assert!(device.done(Submission(0)).unwrap());
        let (_, row) = desk(&mut *device);
        let mut before = Submission(0);
        for _ in 0..5 {
            let submission = device.submit(&[Op::Copy { out: row(1), x: row(0) }]).unwrap();
            assert!(submission > before && device.last() == submission);
            before = submission;
        }
        assert!(device.wait(before, None).unwrap());
        assert!(device.done(before).unwrap() && device.done(Submission(1)).unwrap());
    }
}

#[test]
fn work_happens_in_the_order_of_the_calls() {
    for mut device in both() {
        let (buffer, row) = desk(&mut *device);
        let mut source = [1.0; 8];
        device.write(buffer, 0, bytes(&source)).unwrap();
        // The bytes of a write are those of the call.
        source = [100.0; 8];
        device.submit(&[Op::Add { out: row(1), x: row(0), y: row(0) }]).unwrap();
        let two = device.read_later(buffer, 32, 32).unwrap();
        device.copy((buffer, 32), (buffer, 64), 32).unwrap();
        device.write(buffer, 32, bytes(&source)).unwrap();
        device.submit(&[Op::Add { out: row(3), x: row(1), y: row(2) }]).unwrap();
        let sum = read(&mut *device, row(3));
        assert_eq!(sum, [102.0; 8]);
        // A read asked for earlier has the numbers of then, even if taken later.
        let mut numbers = [0.0_f32; 8];
        device.take(two, bytemuck::cast_slice_mut(&mut numbers)).unwrap();
        assert_eq!(numbers, [2.0; 8]);
    }
}

#[test]
fn a_freed_buffer_is_free_after_the_work_before() {
    for mut device in both() {
        let (buffer, row) = desk(&mut *device);
        device.write(buffer, 0, bytes(&[3.0; 8])).unwrap();
        device.submit(&[Op::Copy { out: row(1), x: row(0) }]).unwrap();
        let ticket = device.read_later(buffer, 32, 32).unwrap();
        device.free(buffer).unwrap();
        let mut numbers = [0.0_f32; 8];
        device.take(ticket, bytemuck::cast_slice_mut(&mut numbers)).unwrap();
        assert_eq!(numbers, [3.0; 8]);
        let after = device.submit(&[]).unwrap();
        device.wait(after, None).unwrap();
        assert_eq!(device.memory().allocated, 0);
        for error in [
            device.free(buffer).unwrap_err(),
            device.write(buffer, 0, &[0; 4]).unwrap_err(),
            device.copy((buffer, 0), (buffer, 8), 4).unwrap_err(),
            device.read_later(buffer, 0, 4).unwrap_err(),
        ] {
            assert!(matches!(error, DeviceError::UnknownHandle { .. }), "{error}");
            assert!(error.to_string().contains("Buffer(0)") && error.to_string().contains(device.name()));
        }
    }
}

#[test]
fn a_range_outside_is_refused_by_name() {
    for mut device in both() {
        let (buffer, _) = desk(&mut *device);
        for error in [
            device.write(buffer, 250, &[0; 8]).unwrap_err(),
            device.write(buffer, u64::MAX, &[0; 8]).unwrap_err(),
            device.copy((buffer, 0), (buffer, 200), 60).unwrap_err(),
            device.copy((buffer, 200), (buffer, 0), 60).unwrap_err(),
            device.read_later(buffer, 256, 1).unwrap_err(),
        ] {
            assert!(matches!(error, DeviceError::OutOfRange { bytes: 256, .. }), "{error}");
            assert!(error.to_string().contains("outside buffer Buffer(0) of 256 bytes"), "{error}");
        }
        // Up to the very end is inside.
        device.write(buffer, 252, &[1; 4]).unwrap();
        let end = device.read_later(buffer, 256, 0).unwrap();
        device.take(end, &mut []).unwrap();
    }
}

#[test]
fn a_ticket_serves_once() {
    for mut device in both() {
        let (buffer, _) = desk(&mut *device);
        let ticket = device.read_later(buffer, 0, 4).unwrap();
        let again = ops::Ticket { after: ticket.after, id: ticket.id, bytes: ticket.bytes };
        device.take(ticket, &mut [0; 4]).unwrap();
        let error = device.take(again, &mut [0; 4]).unwrap_err();
        assert!(matches!(error, DeviceError::UnknownHandle { .. }), "{error}");
    }
}

#[test]
fn a_late_device_is_late_and_gets_there() {
    let mut delays = Vec::new();
    for seed in 0..20 {
        let mut device = Late::new(oracle(), seed);
        let (buffer, row) = desk(&mut device);
        device.write(buffer, 0, bytes(&[1.0; 8])).unwrap();
        let first = device.submit(&[Op::Copy { out: row(1), x: row(0) }]).unwrap();
        let second = device.submit(&[Op::Add { out: row(2), x: row(1), y: row(1) }]).unwrap();
        assert_eq!(device.queued(), 3);
        let mut asked = 0;
        while !device.wait(second, Some(Duration::from_millis(1))).unwrap() {
            asked += 1;
        }
        assert!(device.done(first).unwrap(), "the one before is done too");
        assert_eq!(device.queued(), 0);
        assert_eq!(read(&mut device, row(2)), [2.0; 8]);
        delays.push(asked);
    }
    assert!(
        delays.iter().all(|asked| *asked > 0),
        "two submissions never complete at one question: {delays:?}"
    );
    assert!(delays.iter().max() > delays.iter().min(), "the seed decides: {delays:?}");
}

#[test]
fn a_late_device_knows_no_submission_to_come() {
    let mut device = Late::new(oracle(), 0);
    for error in [device.done(Submission(1)).unwrap_err(), device.wait(Submission(1), None).unwrap_err()] {
        assert!(error.to_string().contains("Submission(1)"), "{error}");
    }
}

#[test]
fn a_failure_comes_at_its_call_and_stays() {
    for (call, nth) in [(Call::Submit, 2), (Call::Wait, 1), (Call::Take, 3)] {
        let mut device = Failing::new(oracle(), call, nth);
        let (buffer, _) = desk(&mut device);
        let mut failures = 0;
        for _ in 0..4 {
            let submission = device.submit(&[]);
            let waited = submission.as_ref().map_or(Ok(true), |s| device.wait(*s, None));
            let ticket = device.read_later(buffer, 0, 4).unwrap();
            let taken = device.take(ticket, &mut [0; 4]);
            let errors = [submission.err(), waited.err(), taken.err()];
            assert!(errors.iter().flatten().all(|e| e.to_string().contains(&format!("{call:?}"))));
            failures += errors.iter().flatten().count() as u64;
        }
        assert_eq!(failures, 4 - (nth - 1), "{call:?}");
    }
}

#[test]
fn the_nth_result_is_poisoned_and_no_other() {
    let mut device = Poisoned::new(oracle(), "add", 2);
    let (buffer, row) = desk(&mut device);
    device.write(buffer, 0, bytes(&[1.0; 8])).unwrap();
    let add = |i| Op::Add { out: row(i), x: row(0), y: row(0) };
    device.submit(&[Op::Copy { out: row(5), x: row(0) }, add(1), add(2), add(3)]).unwrap();
    let firsts = [5, 1, 2, 3].map(|i| read(&mut device, row(i))[0]);
    assert_eq!(firsts.map(f32::is_nan), [false, false, true, false]);
    assert_eq!(read(&mut device, row(2))[1..], [2.0; 7]);
}

/// A matrix of ones and a row whose sum depends on its order: 2^24 + 1 - 2^24.
fn order_matters(device: &mut dyn Device) -> Op {
    let (buffer, row) = desk(device);
    let weight = Matrix { buffer, codes: 128, scales: 0, rows: 1, cols: 8, packing: Packing::F32 };
    device.write(buffer, 0, bytes(&[16_777_216.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])).unwrap();
    device.write(buffer, 128, bytes(&[1.0; 8])).unwrap();
    let out = Tensor::new(buffer, 16, 1, 1);
    Op::MatMul { out, x: row(0), weight, activations: Activations::Exact }
}

#[test]
fn checked_names_the_op_whose_order_differs_and_goes_by_the_tolerance() {
    let mut exact = Checked::new(oracle(), Reversed::new(oracle()), Allowed::Nothing);
    let op = order_matters(&mut exact);
    let error = exact.submit(&[op]).unwrap_err();
    assert!(error.to_string().starts_with("mat_mul departs from the oracle"), "{error}");
    let mut about = Checked::new(oracle(), Reversed::new(oracle()), Allowed::Tolerance);
    let op = order_matters(&mut about);
    about.submit(&[op]).unwrap();
    let worst = about.report().lock().unwrap()["mat_mul"];
    assert_eq!(worst.count, 1);
    assert!(worst.absolute > 0.0 && worst.relative < 1e-6, "{worst:?}");
}

#[test]
fn checked_names_the_state_that_is_wrong() {
    let t = |buffer, at, rows, cols| Tensor::new(buffer, at, rows, cols);
    for name in ["short_conv", "delta_rule", "append_latent"] {
        let mut device = Checked::new(oracle(), WrongState::new(oracle(), name), Allowed::Nothing);
        let b = device.allocate(16384, "numbers").unwrap();
        device.write(b, 0, bytes(&[0.5; 64])).unwrap();
        let pool = t(b, 512, 64, 2);
        let cache = LatentCache { pool, table: ops::Ids(t(b, 100, 1, 1)), latent: 2 };
        let (op, state) = match name {
            "short_conv" => {
                let window = t(b, 128, 4, 1);
                (
                    Op::ShortConv { out: t(b, 200, 1, 4), x: t(b, 0, 1, 4), window, taps: t(b, 8, 4, 2) },
                    window,
                )
            }
            "delta_rule" => {
                let [q, k, v, decay] = [0, 2, 4, 6].map(|at| t(b, at, 1, 2));
                let (out, beta, state) = (t(b, 200, 1, 2), t(b, 8, 1, 1), t(b, 128, 2, 2));
                (Op::DeltaRule { out, q, k, v, decay, beta, state }, state)
            }
            _ => (Op::AppendLatent { latent: t(b, 0, 1, 2), rope: None, cache, position: 3 }, pool),
        };
        match device.submit(&[op]).unwrap_err() {
            DeviceError::Mismatch { op, operand, .. } => {
                assert_eq!((op, operand), (name, format!("{state:?}")));
            }
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn a_late_device_says_when_it_worked() {
    let mut device = Late::new(oracle(), 11);
    let (_, row) = desk(&mut device);
    let before = Instant::now();
    let sent = [1, 2, 3].map(|i| device.submit(&[Op::Copy { out: row(i), x: row(0) }]).unwrap());
    assert_eq!(device.ran(sent[0]), None, "nothing has happened yet");
    device.wait(sent[1], None).unwrap();
    let spans = [0, 1].map(|i| device.ran(sent[i]).unwrap());
    assert!(before <= spans[0].start && spans[0].end <= spans[1].start && spans[1].end <= Instant::now());
    assert_eq!(device.ran(sent[2]), None);
    assert_eq!(device.ran(Submission(0)), None);
    // The calls of others are the work.
    let mut device = oracle();
    let (_, row) = desk(&mut device);
    let sent = device.submit(&[Op::Copy { out: row(1), x: row(0) }]).unwrap();
    assert_eq!(device.ran(sent), None);
}

#[test]
fn a_traced_device_notes_what_it_is_told_to_look_at() {
    let weights = [2.0_f32; 64];
    for device in both() {
        let mut device = Traced::new(device);
        let trace = device.trace();
        let (buffer, row) = desk(&mut device);
        device.write(buffer, 0, bytes(&weights)).unwrap();
        let weight = Matrix { buffer, codes: 128, scales: 0, rows: 4, cols: 8, packing: Packing::F32 };
        let out = Tensor::new(buffer, 8, 1, 4);
        let ops = [
            Op::MatMul { out, x: row(0), weight, activations: Activations::Exact },
            Op::Add { out, x: out, y: out },
        ];
        device.submit(&ops).unwrap();
        assert!(trace.take().is_empty());
        trace.look(true);
        device.submit(&ops).unwrap();
        device.submit(&ops[1..]).unwrap();
        trace.look(false);
        device.submit(&ops).unwrap();
        assert_eq!(read(&mut device, out), [64.0; 4]);
        let costs = trace.take();
        let seen: Vec<_> = costs.iter().map(|(name, cost)| (*name, cost.count, cost.work.floats)).collect();
        assert_eq!(seen, [("add", 2, 8), ("mat_mul", 1, 32)]);
        assert!(trace.take().is_empty());
    }
}

#[test]
fn a_traced_device_looks_at_picks_and_slots() {
    let mut device = Traced::new(Box::new(oracle()));
    device.trace().look(true);
    let slab = memory::Slab::new(4, 4096).unwrap();
    let slab = device.adopt(&slab, "slots").unwrap();
    let (buffer, _) = desk(&mut device);
    // Two tokens pick three of six experts each; one has no slot, one pick is none.
    let picks: [u32; 6] = [0, 1, 2, 2, 5, NONE];
    let table: [[u32; 2]; 6] = [[0, 0], [NONE, 0], [3, 0], [1, 0], [NONE, 0], [2, 0]];
    device.write(buffer, 0, bytemuck::cast_slice(&picks)).unwrap();
    device.write(buffer, 32, bytemuck::cast_slice(&table)).unwrap();
    let results = device.allocate(6 * 32 * 4, "results").unwrap();
    let inputs = device.allocate(2 * 32 * 4, "inputs").unwrap();
    let matrix = Matrix { buffer: slab, codes: 0, scales: 512, rows: 32, cols: 32, packing: Packing::Mxfp4 };
    let op = Op::Experts {
        out: Tensor::new(results, 0, 6, 32),
        x: Tensor::new(inputs, 0, 2, 32),
        picks: Ids(Tensor::new(buffer, 0, 2, 3)),
        table: Ids(Tensor::new(buffer, 8, 6, 2)),
        experts: ExpertMatrices { gate: matrix, up: matrix, down: matrix },
        activation: Activation::Silu,
        activations: Activations::Int15,
    };
    device.submit(&[op]).unwrap();
    let cost = device.trace().take()["experts"];
    assert_eq!(cost.work, op.work(Picked { experts: 3, rows: 4 }));
}
