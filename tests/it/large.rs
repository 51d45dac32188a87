//! Large components are compiled in a process of their own, and jobs go on as if nothing were.

use std::path::Path;
use std::time::Instant;

use piecework::config::Config;
use piecework::engine::{Engine, Handler, Refusal};

use super::support::large::{self, module, noop_with, ordinary};

fn engine(settings: &str, program: Option<&str>) -> Engine {
    let settings = format!("[engine]\ncache = 'off'\n{settings}");
    let mut config = Config::parse(&settings, Path::new("runner.toml")).unwrap();
    config.program = program.map(Into::into);
    Engine::new(&config, 1).unwrap()
}

fn compile(component: &[u8], settings: &str, fuel: bool) -> Result<Handler, Refusal> {
    let begun = Instant::now();
    let program = Some(env!("CARGO_BIN_EXE_piecework"));
    let answer = engine(settings, program).compile(component, fuel);
    eprintln!(
        "{} bytes: {:?}, {:?}",
        component.len(),
        answer.as_ref().map(Handler::version),
        begun.elapsed()
    );
    answer
}

#[test]
fn measure() {
    let large = large::component();
    compile(&large, "", false).unwrap();
    let begun = Instant::now();
    engine("", None).compile(&large, false).unwrap();
    eprintln!("here: {:?}", begun.elapsed());
    for code in [40, 400, 1000] {
        let bodies: Vec<_> = (0..code).map(|n| ordinary(n, 40)).collect();
        let component = noop_with(&module(&bodies, 1_000_000));
        compile(&component, "", false).unwrap();
        let begun = Instant::now();
        engine("", None).compile(&component, false).unwrap();
        eprintln!("here: {:?}", begun.elapsed());
    }
}

#[test]
fn bombs() {
    let which = std::env::var("BOMB").unwrap_or_default();
    let bodies = match which.as_str() {
        "tiny" => vec![vec![0x20, 0, 0x0b]; 500_000],
        "body" => vec![ordinary(0, 250_000)],
        "nest" => {
            let depth = 2_000_000;
            let mut body = [0x02, 0x40].repeat(depth);
            body.extend(vec![0x0b; depth]);
            body.extend([0x20, 0, 0x0b]);
            vec![body]
        }
        "loops" => {
            let depth = 200_000;
            let mut body = [0x03, 0x40, 0x20, 0, 0x0d, 0].repeat(depth);
            body.extend(vec![0x0b; depth]);
            body.extend([0x20, 0, 0x0b]);
            vec![body]
        }
        _ => return,
    };
    let component = noop_with(&module(&bodies, 0));
    let answer = compile(&component, "", false);
    eprintln!("{answer:?}");
}
