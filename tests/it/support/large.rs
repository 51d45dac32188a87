//! Components that take long to compile: large ones, and those that are made to. Generated, since no file of that size belongs in the tree.

use super::guests;

/// The `noop` handler with one more core module in it, which is compiled like the rest and never instantiated.
pub(crate) fn noop_with(module: &[u8]) -> Vec<u8> {
    let mut component = guests::bytes("noop");
    // The section of a core module.
    component.push(1);
    leb(&mut component, module.len());
    component.extend(module);
    component
}

/// A handler of 12 MB, of which 2 MB are code: language runtimes have more, but the compiler of the dev profile takes 4 s for these.
pub(crate) fn component() -> Vec<u8> {
    let bodies = (0..2000).map(|n| ordinary(n, 40)).collect::<Vec<_>>();
    let component = noop_with(&module(&bodies, 10_000_000));
    assert!(component.len() >= 10_000_000);
    component
}

/// A core module of functions `(i32) -> i32`, with so many bytes of data.
pub(crate) fn module(bodies: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    section(&mut module, 1, &[1, 0x60, 1, 0x7f, 1, 0x7f]);
    let mut functions = Vec::new();
    leb(&mut functions, bodies.len());
    functions.resize(functions.len() + bodies.len(), 0);
    section(&mut module, 3, &functions);
    let mut memory = vec![1, 0];
    leb(&mut memory, data.div_ceil(65_536) + 1);
    section(&mut module, 5, &memory);
    let mut code = Vec::new();
    leb(&mut code, bodies.len());
    for body in bodies {
        // No locals of its own.
        leb(&mut code, body.len() + 1);
        code.push(0);
        code.extend(body);
    }
    section(&mut module, 10, &code);
    if data > 0 {
        let mut segment = vec![1, 0, 0x41, 0, 0x0b];
        leb(&mut segment, data);
        let mut random = fastrand::Rng::with_seed(7);
        segment.extend(std::iter::repeat_with(|| random.u8(..)).take(data));
        section(&mut module, 11, &segment);
    }
    module
}

/// A function as compilers make them: reads, computes, branches, writes; 25 bytes a step.
pub(crate) fn ordinary(seed: usize, steps: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for step in 0..steps {
        // local.get 0; local.get 0; i32.load at; i32.const n; i32.xor; local.tee 0; i32.store at
        body.extend([0x20, 0, 0x20, 0, 0x28, 2]);
        leb(&mut body, 4 * (step + seed));
        body.push(0x41);
        leb(&mut body, (seed + step) % 60);
        body.extend([0x73, 0x22, 0, 0x36, 2]);
        leb(&mut body, 4 * step);
        // local.get 0; if; i32.const 1; local.set 0; end
        body.extend([0x20, 0, 0x04, 0x40, 0x41, 1, 0x21, 0, 0x0b]);
    }
    body.extend([0x20, 0, 0x0b]);
    body
}

fn section(module: &mut Vec<u8>, id: u8, content: &[u8]) {
    module.push(id);
    leb(module, content.len());
    module.extend(content);
}

/// A number as WebAssembly writes it.
#[expect(clippy::cast_possible_truncation, reason = "seven bits are meant")]
pub(crate) fn leb(bytes: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        bytes.push(number as u8 & 0x7f | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Nested blocks, 3 bytes each: the time that the compiler takes grows with the square of their number. 250,000 are many minutes.
pub(crate) fn nest(depth: usize) -> Vec<u8> {
    let ends = vec![0x0b; depth];
    let body = [[0x02, 0x40].repeat(depth), ends, vec![0x20, 0, 0x0b]].concat();
    noop_with(&module(&[body], 0))
}
