//! Hand values.
use super::*;
use ops::{Activation, Buffer, ExpertMatrices, Ids, LatentCache, Matrix, Routing, Tensor};
use store::cache::CachePolicy;
use store::routing::{LayerPicks, RoutingHead, RoutingTrace};

const RATES: Rates =
    Rates { memory_bytes: 100.0, floats: 1000.0, byte_products: 4000.0, products: Vec::new() };

fn t(rows: u32, cols: u32) -> Tensor {
    Tensor::new(Buffer(0), 0, rows, cols)
}

fn matrix(packing: Packing, rows: u32, cols: u32) -> Matrix {
    Matrix { buffer: Buffer(0), codes: 0, scales: 0, rows, cols, packing }
}

fn product(inputs: u32, weight: Matrix) -> Op {
    let (out, x) = (t(inputs, weight.rows), t(inputs, weight.cols));
    Op::MatMul { out, x, weight, activations: Activations::Int15 }
}

/// 400 bytes and 100 operations.
fn small() -> Op {
    product(1, matrix(Packing::F32, 10, 10))
}

/// Of 5 experts 2.
fn route() -> Op {
    let routing = Routing { renormalize: true, scale: 1.0, keep: 1.0 };
    Op::Route { picks: Ids(t(1, 2)), weights: t(1, 2), logits: t(1, 5), bias: None, routing }
}

/// Three matrices of 32 x 32: 544 bytes each.
fn experts(rows: u32) -> Op {
    let one = matrix(Packing::Mxfp4, 32, 32);
    let experts = ExpertMatrices { gate: one, up: one, down: one };
    let (activation, activations) = (Activation::Silu, Activations::Int15);
    let (out, x) = (t(2 * rows, 32), t(rows, 32));
    Op::Experts { out, x, picks: Ids(t(rows, 2)), table: Ids(t(5, 2)), experts, activation, activations }
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9 * expected.max(1.0), "{found}, expected {expected}");
}

/// Reads of experts alone.
fn of_experts(experts: f64) -> DriveSeconds {
    DriveSeconds { experts, ..DriveSeconds::default() }
}

/// Two layers with experts and a head: before 4 s, beside 4 s and the experts, after them what comes before the next.
fn two_layers() -> Vec<Op> {
    vec![small(), route(), small(), experts(1), small(), small(), route(), experts(1), small()]
}

const ROUTE: f64 = 5.0 * 12.0 / 1000.0;
/// One expert, 3 x 32 x 32 multiply-adds, at its packing's own rate.
const EXPERTS: f64 = 3.0;

fn rates() -> Rates {
    let rate = ProductRate { packing: Packing::Mxfp4, inputs: 1, multiply_adds: 1024.0 };
    Rates { products: vec![rate], ..RATES }
}

const PICKED: Picked = Picked { experts: 2, rows: 2 };

#[test]
fn a_step_is_cut_where_it_waits() {
    let time = StepTime::of(&two_layers(), 0, PICKED, &rates());
    let experts = 2.0 * EXPERTS;
    close(time.compute(), 5.0 * 4.0 + 2.0 * ROUTE + 2.0 * experts);
    let seconds = |reads, together| time.seconds(of_experts(reads), together);
    // 100 s of reads, 50 a layer: longer than what goes on beside them.
    close(seconds(100.0, Together::Dependent), 4.0 + ROUTE + 50.0 + 8.0 + ROUTE + 50.0 + 4.0);
    close(seconds(100.0, Together::Guessed), 100.0);
    close(seconds(100.0, Together::InTurn), time.compute() + 100.0);
    // The first layer computes for 10 s beside its reads, the second for 6.
    close(seconds(16.0, Together::Dependent), 4.0 + ROUTE + 10.0 + 8.0 + ROUTE + 8.0 + 4.0);
    for together in [Together::Dependent, Together::Guessed, Together::InTurn] {
        close(seconds(0.0, together), time.compute());
    }
}

#[test]
fn mapped_weights_are_hidden_at_best_and_waited_for_at_worst() {
    let time = StepTime::of(&two_layers(), 0, PICKED, &rates());
    let compute = time.compute();
    for together in [Together::Dependent, Together::Guessed, Together::InTurn] {
        let seconds =
            |experts, hidden, exposed| time.seconds(DriveSeconds { experts, hidden, exposed }, together);
        let without = seconds(10.0, 0.0, 0.0);
        close(seconds(10.0, 0.0, 7.0), without + 7.0);
        // The drive's own time, where that is the longer.
        close(seconds(10.0, 1.0, 0.0), without.max(11.0));
        close(seconds(10.0, 1000.0, 0.0), 1010.0);
        close(seconds(0.0, 0.0, compute), 2.0 * compute);
    }
    close(DriveSeconds { experts: 1.0, hidden: 2.0, exposed: 3.0 }.all(), 6.0);
}

#[test]
fn the_bound_is_what_is_busy() {
    let time = StepTime::of(&two_layers(), 0, PICKED, &rates());
    let compute = time.compute();
    let bound = |experts, together| time.bound(of_experts(experts), together);
    assert_eq!(bound(100.0 * compute, Together::Dependent), Bound::Disk);
    assert_eq!(bound(compute, Together::Dependent), Bound::Waits);
    assert_eq!(bound(compute, Together::InTurn), Bound::Waits);
    assert_eq!(bound(compute, Together::Guessed), Bound::Disk);
    // 400 bytes take 4 s, 100 operations 0.1: memory. With many inputs it is arithmetic.
    assert_eq!(bound(0.0, Together::Guessed), Bound::Memory);
    // Mapped weights make the drive the bound where they are hidden, and waits where they are not, unless they take far longer.
    let with = |hidden, exposed| DriveSeconds { experts: 0.0, hidden, exposed };
    assert_eq!(time.bound(with(2.0 * compute, 0.0), Together::Guessed), Bound::Disk);
    assert_eq!(time.bound(with(0.0, 2.0 * compute), Together::Dependent), Bound::Waits);
    assert_eq!(time.bound(with(0.0, 100.0 * compute), Together::Dependent), Bound::Disk);
    let prompt = [product(1000, matrix(Packing::F32, 10, 10))];
    let time = StepTime::of(&prompt, 0, PICKED, &RATES);
    close(time.compute(), 100.0);
    assert_eq!(time.bound(DriveSeconds::default(), Together::Dependent), Bound::Arithmetic);
    // Without experts nothing is cut.
    close(time.seconds(DriveSeconds::default(), Together::Dependent), 100.0);
}

#[test]
fn products_take_their_measured_rate() {
    let rate = |inputs, multiply_adds| ProductRate { packing: Packing::F32, inputs, multiply_adds };
    let rates = Rates { products: vec![rate(16, 300.0), rate(1, 100.0), rate(4, 200.0)], ..RATES };
    let seconds =
        |inputs| StepTime::of(&[product(inputs, matrix(Packing::F32, 10, 10))], 0, PICKED, &rates).compute();
    close(seconds(1), 1.0);
    close(seconds(4), 2.0);
    // Half way between 4 and 16 in powers of two.
    close(seconds(8), 800.0 / 250.0);
    close(seconds(64), 6400.0 / 300.0);
    // Heads share an input; experts have theirs each: 8 rows for 4 of them.
    let weight = matrix(Packing::F32, 10, 10);
    let heads = Op::HeadMatMul { out: t(8, 5), x: t(8, 10), weight, heads: 2 };
    close(StepTime::of(&[heads], 0, PICKED, &rates).compute(), 8.0 * 50.0 / 200.0);
    let rate = |inputs, multiply_adds| ProductRate { packing: Packing::Mxfp4, inputs, multiply_adds };
    let rates = Rates { products: vec![rate(2, 1024.0), rate(1, 1.0)], ..RATES };
    let picked = Picked { experts: 4, rows: 8 };
    close(StepTime::of(&[experts(4)], 0, picked, &rates).compute(), 8.0 * 3.0);
}

#[test]
fn attention_sees_what_is_behind() {
    let cache = LatentCache { pool: t(128, 6), table: Ids(t(1, 2)), latent: 4 };
    let (out, q, q_rope) = (t(3, 4), t(3, 4), Some(t(3, 2)));
    let attend =
        Op::AttendLatent { out, q, q_rope, cache, position: 0, selected: None, heads: 3, scale: 1.0 };
    let seconds = |behind| StepTime::of(&[attend], behind, PICKED, &RATES).compute();
    // A row has 24 bytes; 3 heads meet 10 numbers of it and take 11 steps besides.
    close(seconds(0), 0.24);
    close(seconds(99), 100.0 * 0.24);
}

#[test]
fn kinds_of_products_are_named_once_with_their_largest_matrix() {
    let step = [small(), product(1, matrix(Packing::F32, 20, 10)), experts(1), small()];
    let expected =
        [(Packing::F32, Activations::Exact, (20, 10)), (Packing::Mxfp4, Activations::Int15, (32, 32))];
    assert_eq!(product_kinds(&step), expected);
}

#[test]
fn chance_picks_evenly() {
    let one = by_chance(1.0, (16, 896), (896, 896 * 92));
    close(one.experts, 16.0);
    close(one.hit_rate, 1.0 / 92.0);
    assert_eq!(one.source, HitSource::Chance);
    // The table of the pages: 32 rows read 634 GB of 92 layers at 17.547 MB an expert.
    let chunk = by_chance(32.0, (16, 896), (32, 896 * 92));
    close((chunk.experts * 92.0 * 17.547_264e-3).round(), 634.0);
    assert_eq!(by_chance(7.0, (4, 4), (8, 8)).source, HitSource::Resident);
    close(by_chance(7.0, (4, 4), (8, 8)).experts, 4.0);
}

#[test]
fn a_prediction_multiplies_by_layers() {
    let traffic = Traffic { experts: 1.6, hit_rate: 0.25, source: HitSource::Chance };
    let mapped = MappedReads { least: 100, most: 600 };
    let tokens = StepTokens { rows: 1.0, behind: 0 };
    let experts = RoutedExperts { layers: 2, ranks: 2, bytes_each: 1000 };
    let (step, rates) = (two_layers(), rates());
    let of = |rates| Prediction::of(&step, tokens, experts, traffic, mapped, rates);
    let predicted = of(Some(&rates));
    close(experts.bytes_asked(traffic), 3200.0);
    close(experts.bytes_read(traffic), 2400.0);
    close(predicted.bytes_most(), 3000.0);
    let [least, most] = predicted.reads(10.0);
    assert_eq!(least, DriveSeconds { experts: 240.0, hidden: 10.0, exposed: 0.0 });
    assert_eq!(most, DriveSeconds { experts: 240.0, hidden: 0.0, exposed: 60.0 });
    assert_eq!(predicted.time, Some(StepTime::of(&step, 0, PICKED, &rates)));
    assert_eq!(of(None).time, None);
}

/// Of a trace of one layer of which each token picks so many experts.
fn head(ranks: u16) -> RoutingHead {
    RoutingHead {
        identity: [0; 32],
        first_layer: 1,
        layers: 1,
        experts_per_layer: 8,
        ranks,
        expert_bytes: 10,
    }
}

#[test]
fn traces_tell_of_prompts_and_tokens() {
    let head = head(1);
    let step = |picks: &[u16]| vec![LayerPicks { layer: 1, picks: picks.to_vec() }];
    let steps = vec![step(&[0, 1]), step(&[1, 2]), step(&[2]), step(&[3]), step(&[2]), step(&[2])];
    let trace = RoutingTrace { head: head.clone(), steps, cut: 0 };
    let policy: CachePolicy = "lru".parse().unwrap();
    let (prompt, tokens) = from_traces(policy, 8, &[trace.clone(), trace.clone()], 2);
    let of = |experts, hit_rate| Some(Traffic { experts, hit_rate, source: HitSource::Traces });
    // Of 2 and 2 experts one was there; every run begins with empty slots.
    assert_eq!(prompt, of(2.0, 0.25));
    let rows = |chunk| rows_of_chunks(std::slice::from_ref(&trace), chunk);
    assert_eq!([2, 3, 512].map(rows), [Some(2.0), Some(3.0), Some(4.0)]);
    assert_eq!(tokens, of(1.0, 0.75));
    // In one chunk the prompt asks for each of its experts once.
    assert_eq!(from_traces(policy, 8, &[trace], 4).0, of(3.0, 0.0));
    let none = RoutingTrace { head, steps: vec![step(&[5])], cut: 0 };
    assert_eq!(rows_of_chunks(std::slice::from_ref(&none), 4), None);
    assert_eq!(from_traces(policy, 8, &[none], 4), (None, of(1.0, 0.0)));
}

/// What a token of several prompts reads is the mean over all their tokens: 4 experts for 2 of them and 3 for 3 more.
#[test]
fn a_token_of_several_prompts_reads_the_mean() {
    let head = head(2);
    let prompt = |picks: &[u16]| RoutingTrace {
        head: head.clone(),
        steps: vec![vec![LayerPicks { layer: 1, picks: picks.to_vec() }]],
        cut: 0,
    };
    let experts = RoutedExperts { layers: 1, ranks: 2, bytes_each: 10 };
    let bytes_a_token = |traces: &[RoutingTrace]| {
        let traffic = from_traces("lru".parse().unwrap(), 8, traces, 512).0.unwrap();
        experts.bytes_read(traffic) / rows_of_chunks(traces, 512).unwrap()
    };
    let (two, three) = (prompt(&[0, 1, 2, 3]), prompt(&[0, 1, 0, 2, 1, 2]));
    close(bytes_a_token(std::slice::from_ref(&two)), 20.0);
    close(bytes_a_token(std::slice::from_ref(&three)), 10.0);
    close(bytes_a_token(&[two, three]), (2.0 * 20.0 + 3.0 * 10.0) / 5.0);
    let whole = |rows| StepTokens { rows, behind: 0 }.whole_rows();
    assert_eq!([0.2, 1.0, 2.4, 2.5].map(whole), [1, 1, 2, 3]);
}
