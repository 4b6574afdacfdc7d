//! The tiles of a processor that has them, under Linux.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{PAIRS_LINES, PIECES_LINES, Part, TILE};

static ASSUMED: AtomicBool = AtomicBool::new(false);

/// Takes it that the processor has the tiles, for tests that do what its instructions would do.
pub(in crate::cpu) fn assume() {
    ASSUMED.store(true, Ordering::Relaxed);
}

/// Whether this processor has the tiles, and the system lets this process use them.
pub(in crate::cpu) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    ASSUMED.load(Ordering::Relaxed) || *AVAILABLE.get_or_init(|| has_tiles() && ask())
}

/// Whether the processor has tiles and their products of bf16, the system keeps what is in them, and the vectors are
/// there for which the code around those products is compiled: a virtual machine may hide these alone.
fn has_tiles() -> bool {
    if __cpuid(0).eax < 7 || __cpuid(1).ecx >> 27 & 1 == 0 {
        return false;
    }
    let edx = __cpuid_count(7, 0).edx;
    let low: u32;
    // SAFETY: OSXSAVE, asked for above, says that the instruction is there; it reads a register.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack)) };
    let tiles = edx >> 22 & 1 == 1 && edx >> 24 & 1 == 1 && low >> 17 & 3 == 3;
    tiles && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512bf16")
}

/// Asks the system to let this process use the tiles: `arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`. All
/// threads may use them then. It refuses where a thread has a stack for signals that is too small for
/// them; those of Rust's threads are not.
fn ask() -> bool {
    let (call, request, data): (i64, u64, u64) = (158, 0x1023, 18);
    let answer: i64;
    // SAFETY: the call changes nothing but which registers the process may use, and clobbers what calls
    // of the system clobber.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") call => answer, in("rdi") request, in("rsi") data,
            out("rcx") _, out("r11") _, options(nostack)
        );
    }
    answer == 0
}

/// How the eight tiles are cut: sixteen rows of 64 bytes each.
#[repr(C, align(64))]
struct Shape([u8; 64]);

static SHAPE: Shape = {
    let mut shape = [0; 64];
    shape[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        shape[16 + 2 * tile] = (4 * TILE) as u8;
        shape[48 + tile] = TILE as u8;
        tile += 1;
    }
    Shape(shape)
};

/// The tiles of this thread, from when they are set up to when they are given back.
pub(in crate::cpu) struct Tiles {
    /// Of each number that they multiply.
    pieces: usize,
    /// They belong to the thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: as in `set_up`. Without it, the system would go on saving 8 KiB for the thread.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// The instructions of a product: the loop over the groups of a part, and for each block its tile of sums, the
/// tile of the right operand, and the bytes at which it lies in a row.
macro_rules! product {
    ($group:ident, $parts:ident, $out:ident, $row:ident, $start:ident; $([$sum:literal $factor:literal $at:literal])*) => {{
        // The compiler uses none of these registers, so that what is in them stays from one block of
        // assembly to the next.
        if let Some((start, start_row)) = $start {
            asm!(
                $(concat!("tileloadd tmm", $sum, ", [{start} + {row}*1 + ", $at, "]"),)*
                start = in(reg) start, row = in(reg) 4 * start_row, options(nostack)
            );
        } else {
            asm!($(concat!("tilezero tmm", $sum),)* options(nostack));
        }
        for Part { a, a_row, b, b_row, groups, ahead } in $parts {
            if groups == 0 {
                continue;
            }
            // Where nothing is to come, the same lines of an operand again and again, which are there.
            let ahead = (ahead.unwrap_or(a), usize::from(ahead.is_some()));
            $group!(a, a_row, b, b_row, groups, ahead; $([$sum $factor $at])*);
        }
        asm!(
            $(concat!("tilestored [{out} + {row}*1 + ", $at, "], tmm", $sum),)*
            out = in(reg) $out, row = in(reg) $row, options(nostack)
        );
    }};
}

/// The loop over the groups of a part: of pairs.
macro_rules! pairs {
    ($a:ident, $a_row:ident, $b:ident, $b_row:ident, $groups:ident, $ahead:ident; $([$sum:literal $factor:literal $at:literal])*) => {
        asm!(
            "2:",
            "tileloadd tmm4, [{a} + {a_row}*1]",
            "prefetcht1 [{ahead}]",
            "prefetcht1 [{ahead} + 64]",
            "prefetcht1 [{ahead} + 128]",
            "prefetcht1 [{ahead} + 192]",
            "add {ahead}, {ahead_group}",
            $(
                concat!("tileloadd tmm", $factor, ", [{b} + {b_row}*1 + ", $at, "]"),
                concat!("tdpbf16ps tmm", $sum, ", tmm4, tmm", $factor),
            )*
            "add {a}, 64",
            "add {b}, {b_group}",
            "dec {groups}",
            "jnz 2b",
            a = inout(reg) $a => _,
            b = inout(reg) $b => _,
            groups = inout(reg) $groups => _,
            a_row = in(reg) 4 * $a_row,
            b_row = in(reg) 4 * $b_row,
            b_group = in(reg) 4 * TILE * $b_row,
            ahead = inout(reg) $ahead.0 => _,
            ahead_group = in(reg) 64 * PAIRS_LINES * $ahead.1,
            options(nostack)
        )
    };
}

/// The same of numbers in three pieces: the six larger ones of their products.
macro_rules! pieces {
    ($a:ident, $a_row:ident, $b:ident, $b_row:ident, $groups:ident, $ahead:ident; $([$sum:literal $factor:literal $at:literal])*) => {
        asm!(
            "2:",
            "tileloadd tmm4, [{a} + {a_row}*1]",
            "tileloadd tmm5, [{a} + {a_row}*1 + 64]",
            "prefetcht1 [{ahead} + 0]",
            "prefetcht1 [{ahead} + 64]",
            "prefetcht1 [{ahead} + 128]",
            $(
                concat!("tileloadd tmm", $factor, ", [{b} + {b_row}*1 + ", $at, "]"),
                concat!("tdpbf16ps tmm", $sum, ", tmm4, tmm", $factor),
                concat!("tdpbf16ps tmm", $sum, ", tmm5, tmm", $factor),
            )*
            "add {b}, {b_piece}",
            "prefetcht1 [{ahead} + 192]",
            "prefetcht1 [{ahead} + 256]",
            "prefetcht1 [{ahead} + 320]",
            $(
                concat!("tileloadd tmm", $factor, ", [{b} + {b_row}*1 + ", $at, "]"),
                concat!("tdpbf16ps tmm", $sum, ", tmm4, tmm", $factor),
                concat!("tdpbf16ps tmm", $sum, ", tmm5, tmm", $factor),
            )*
            "add {b}, {b_piece}",
            "tileloadd tmm5, [{a} + {a_row}*1 + 128]",
            "prefetcht1 [{ahead} + 384]",
            "prefetcht1 [{ahead} + 448]",
            "prefetcht1 [{ahead} + 512]",
            $(
                concat!("tileloadd tmm", $factor, ", [{b} + {b_row}*1 + ", $at, "]"),
                concat!("tdpbf16ps tmm", $sum, ", tmm4, tmm", $factor),
            )*
            "sub {b}, {b_piece}",
            "sub {b}, {b_piece}",
            "prefetcht1 [{ahead} + 576]",
            "prefetcht1 [{ahead} + 640]",
            "prefetcht1 [{ahead} + 704]",
            "add {ahead}, {ahead_group}",
            $(
                concat!("tileloadd tmm", $factor, ", [{b} + {b_row}*1 + ", $at, "]"),
                concat!("tdpbf16ps tmm", $sum, ", tmm5, tmm", $factor),
            )*
            "add {a}, 192",
            "lea {b}, [{b} + {b_piece}*2]",
            "add {b}, {b_piece}",
            "dec {groups}",
            "jnz 2b",
            a = inout(reg) $a => _,
            b = inout(reg) $b => _,
            groups = inout(reg) $groups => _,
            a_row = in(reg) 4 * $a_row,
            b_row = in(reg) 4 * $b_row,
            b_piece = in(reg) 4 * TILE * $b_row,
            ahead = inout(reg) $ahead.0 => _,
            ahead_group = in(reg) 64 * PIECES_LINES * $ahead.1,
            options(nostack)
        )
    };
}

impl Tiles {
    /// Sets them up, if they are there.
    pub(super) fn set_up(pieces: usize) -> Option<Self> {
        if !available() {
            return None;
        }
        // SAFETY: they are available; the 64 bytes are a shape that every such processor has.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPE, options(nostack)) };
        Some(Self { pieces, thread: PhantomData })
    }

    /// `out[m][n] = start[m][n] + Σ a[m] · b[n]` over all parts, for sixteen rows and `blocks` blocks of columns,
    /// from one to four.
    ///
    /// # Safety
    /// Each part is valid for sixteen rows of `a` and for its rows of `b`, `blocks` blocks long; `out` for
    /// sixteen rows of so many blocks, that many numbers apart, and so is what the sums start from, if anything.
    pub(in crate::cpu) unsafe fn product(
        &self,
        blocks: usize,
        parts: impl Iterator<Item = Part>,
        (out, out_row): (*mut f32, usize),
        start: Option<(*const f32, usize)>,
    ) {
        let row = 4 * out_row;
        // SAFETY: a `Tiles` is there, so that the tiles are set up; the caller vouches for the memory.
        unsafe {
            match (self.pieces, blocks) {
                (1, 1) => product!(pairs, parts, out, row, start; [0 5 0]),
                (1, 2) => product!(pairs, parts, out, row, start; [0 5 0] [1 6 64]),
                (1, 3) => product!(pairs, parts, out, row, start; [0 5 0] [1 6 64] [2 7 128]),
                (1, 4) => {
                    product!(pairs, parts, out, row, start; [0 5 0] [1 6 64] [2 7 128] [3 5 192]);
                }
                (3, 1) => product!(pieces, parts, out, row, start; [0 6 0]),
                (3, 2) => product!(pieces, parts, out, row, start; [0 6 0] [1 7 64]),
                (3, 3) => product!(pieces, parts, out, row, start; [0 6 0] [1 7 64] [2 6 128]),
                (3, 4) => {
                    product!(pieces, parts, out, row, start; [0 6 0] [1 7 64] [2 6 128] [3 7 192]);
                }
                _ => unreachable!("{blocks} blocks of columns in {} pieces", self.pieces),
            }
        }
    }
}
