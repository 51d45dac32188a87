//! Does nothing: what is left to measure is the host.
//!
//! Without the standard library, whose start-up and panic code would import a dozen WASI functions.

#![no_std]

extern crate alloc;

use alloc::string::String;
use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32;
use core::cell::Cell;
use core::panic::PanicInfo;
use core::ptr;

wit_bindgen::generate!({ path: "../../wit", world: "handler", generate_all });

struct Noop;

impl Guest for Noop {
    fn run(_job: Job) -> Result<Option<String>, Failure> {
        Ok(None)
    }
}

export!(Noop);

/// The host asks here for the room to write the job's texts to; otherwise the standard library brings it along.
///
/// # Safety
/// `old` is null and `old_size` 0, or both are of an earlier block from here.
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(
    old: *mut u8,
    old_size: usize,
    align: usize,
    new_size: usize,
) -> *mut u8 {
    if new_size == 0 {
        return ptr::without_provenance_mut(align);
    }
    // SAFETY: the host passes the power of two of a type in the interface, and the size of something that exists.
    let layout = unsafe { Layout::from_size_align_unchecked(new_size, align) };
    // SAFETY: the size is not 0, see above.
    let block = unsafe { MEMORY.alloc(layout) };
    if block.is_null() {
        wasm32::unreachable()
    }
    // SAFETY: both blocks are at least this long and never overlap.
    unsafe { ptr::copy_nonoverlapping(old, block, old_size.min(new_size)) };
    block
}

const PAGE: usize = 65_536;

unsafe extern "C" {
    /// Where the linker's own data ends and free memory begins.
    static __heap_base: u8;
}

/// Hands out memory and never takes it back: an instance lives for one attempt, which needs only what the job's own
/// texts take up. What is left of the last page mostly does, so the memory is seldom grown.
struct Bump {
    next: Cell<usize>,
    end: Cell<usize>,
}

// SAFETY: the component is built without threads, so nothing is ever shared.
unsafe impl Sync for Bump {}

// SAFETY: every block lies between `next` and the end of the memory, and `next` only moves up: no two overlap.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.end.get() == 0 {
            self.next.set((&raw const __heap_base).addr());
            self.end.set(wasm32::memory_size(0) * PAGE);
        }
        let Some(start) = self.next.get().checked_next_multiple_of(layout.align()) else {
            return ptr::null_mut();
        };
        let Some(stop) = start.checked_add(layout.size()) else {
            return ptr::null_mut();
        };
        if stop > self.end.get() {
            let pages = (stop - self.end.get()).div_ceil(PAGE);
            if wasm32::memory_grow(0, pages) == usize::MAX {
                return ptr::null_mut();
            }
            self.end.set(self.end.get() + pages * PAGE);
        }
        self.next.set(stop);
        ptr::with_exposed_provenance_mut(start)
    }

    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static MEMORY: Bump = Bump {
    next: Cell::new(0),
    end: Cell::new(0),
};

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    wasm32::unreachable()
}
