//! The `piecework` program.

fn main() -> std::process::ExitCode {
    piecework::cli::main()
}
