//! The project's own recipes, run as `cargo xtask RECIPE`; CI calls the same ones. This crate uses none of
//! ours: it knows the engine only as a program and a tree of files.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a recipe's output is what it says on the terminal"
)]

mod arm;
mod bench_model;
mod ci;
mod cross;
mod debian;
#[cfg(test)]
#[path = "../../../tests/documents.rs"]
mod documents;
mod full;
mod generated;
mod memory_table;
mod package;
mod project;
mod steps;
mod tidy;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The project's own recipes")]
struct Arguments {
    #[command(subcommand)]
    recipe: Option<Recipe>,
}

#[derive(Subcommand)]
enum Recipe {
    /// The core tier: fmt, tidy, clippy, build, install, tests, docs, the README's command. Needs Rust and git only
    Ci,
    /// `ci`, then long tests, `cross`, `arm`, `generated`, `package` and cargo-deny's checks that need no network
    Full {
        /// The step to begin with, for going on after a failure; all of them make the tier
        #[arg(long, value_name = "STEP")]
        from: Option<String>,
    },
    /// Type-check the workspace for macOS (arm64) and Windows from Linux
    Cross,
    /// Run the tests of memory, ops and cpu, and the goldens, on emulated arm64 processors from Linux
    Arm,
    /// Run the engine on a generated checkpoint: same ids with every cache, memory as planned; compare the documents'
    /// tables of memory with what is planned for Kimi K3's sizes
    Generated,
    /// Make the release archive for this system, with checksum and licences, and use it as its first user would
    Package,
    /// Ask for known faults in what we depend on. Needs cargo-deny and a network
    Advisories,
    /// Write a checkpoint of random weights in Kimi K3's format, for measurements of speed
    BenchModel(bench_model::Arguments),
    /// Check what no compiler checks: sizes, crate edges, unsafe, words that do not belong
    Tidy,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().recipe {
        None => list(),
        Some(Recipe::Ci) => return ci::run(&ci::steps()),
        Some(Recipe::Full { from }) => match full::steps_from(from.as_deref()) {
            Ok(steps) => return ci::run(&steps),
            Err(error) => Err(error),
        },
        Some(Recipe::Cross) => cross::run(),
        Some(Recipe::Arm) => return ci::run(&[steps::Step { name: "arm", action: arm::run }]),
        Some(Recipe::Generated) => generated::run(),
        Some(Recipe::Package) => package::run(),
        Some(Recipe::Advisories) => full::advisories(),
        Some(Recipe::BenchModel(arguments)) => bench_model::run(&arguments),
        Some(Recipe::Tidy) => tidy::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo xtask` alone: the list of recipes, one line each.
fn list() -> Result<()> {
    Arguments::command().print_help()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipes_of_the_documents_are_there() {
        let blocks = documents::blocks().into_iter().filter(|block| block.language == "sh");
        let mut found = 0;
        for block in blocks {
            for line in block.text.lines().filter(|line| line.starts_with("cargo xtask ")) {
                let words = line.split('#').next().unwrap_or_default().split_whitespace().skip(1);
                if let Err(error) = Arguments::try_parse_from(words) {
                    panic!("{}:{}: `{line}`: {error}", block.page, block.line);
                }
                found += 1;
            }
        }
        assert!(found > 0, "the README names the recipe that runs the tests");
        assert!(Arguments::try_parse_from(["xtask", "no-such-recipe"]).is_err());
    }
}
