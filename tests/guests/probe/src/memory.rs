//! Commands that use up memory, the call stack, or instructions that move a lot at once.

use std::hint::black_box;

pub fn grow(mib: u64, step_kib: u64) {
    let mut kept = Vec::new();
    let mut left = mib << 20;
    while left > 0 {
        let step = left.min(step_kib.max(1) << 10);
        let bytes = usize::try_from(step).unwrap_or(usize::MAX);
        // Not zero: zeroed memory may come untouched.
        kept.push(vec![1_u8; bytes]);
        left -= step;
    }
    black_box(&kept);
}

pub fn try_grow(mib: u64) -> bool {
    let mut bytes: Vec<u8> = Vec::new();
    let size = usize::try_from(mib << 20).unwrap_or(usize::MAX);
    let grown = bytes.try_reserve_exact(size).is_ok();
    black_box(&bytes);
    grown
}

/// Keeps nothing in linear memory, so that it is the call stack that ends; the result is mixed after the inner call,
/// so that no loop can stand in for it.
#[inline(never)]
pub fn deep(level: u64, bottom: u64) -> u64 {
    if level == bottom {
        return level;
    }
    deep(level + 1, bottom).rotate_left(7) ^ level
}

/// A JSON string of that many MiB.
pub fn huge_json(mib: usize) -> String {
    let size = mib << 20;
    let mut text = String::with_capacity(size);
    text.push('"');
    // Both quotes count.
    text.extend(std::iter::repeat_n('x', size.saturating_sub(2)));
    text.push('"');
    text
}

/// One `memory.fill` and one `memory.copy` after the other. The parts overlap, so that the copy is a real one, and
/// one block is enough to stay below the limit of memory.
pub fn bulk() -> ! {
    const BLOCK: usize = 32 << 20;
    let mut bytes = vec![1_u8; BLOCK + 1];
    let mut value = 0_u8;
    loop {
        value = value.wrapping_add(1);
        black_box(&mut bytes)[..BLOCK].fill(value);
        black_box(&mut bytes).copy_within(..BLOCK, 1);
    }
}
