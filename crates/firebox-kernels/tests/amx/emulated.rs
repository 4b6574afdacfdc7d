//! The instructions of AMX that the kernels use, done in software where the processor refuses them: the system
//! then sends the signal of an illegal instruction, and its handler does what the instruction would have
//! done. Written from Intel's manual (Software Developer's Manual, volume 2, and the chapter on AMX).

use std::cell::UnsafeCell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use firebox_kernels::CpuKernels;

/// The eight tiles of a thread: rows of sixteen words, and how many rows and bytes of each are used.
#[derive(Clone, Copy)]
struct Registers {
    tiles: [[[u32; 16]; 16]; 8],
    rows: [usize; 8],
    bytes: [usize; 8],
}

thread_local! {
    static REGISTERS: UnsafeCell<Registers> = const {
        UnsafeCell::new(Registers { tiles: [[[0; 16]; 16]; 8], rows: [0; 8], bytes: [0; 8] })
    };
}

/// Whether `FIREBOX_TEST_EMULATE` asks for the handler where the processor has AMX. The process never asks for
/// permission then, and the system refuses what moves or multiplies tiles, but neither setting them up nor
/// giving them back, which the handler does not see.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// From here on this process has AMX: by itself, or by the handler.
pub fn emulate() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let asked = std::env::var_os("FIREBOX_TEST_EMULATE").is_some();
        IN_PLACE.store(asked, Ordering::Relaxed);
        if !asked && CpuKernels::available().contains(&CpuKernels::Amx) {
            println!("the processor has AMX: nothing is emulated");
            return;
        }
        // SAFETY: a zeroed action is one without flags; the handler has the signature of SA_SIGINFO.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let run: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handler;
            action.sa_sigaction = run as usize;
            // On the thread's own stack: that for signals is small.
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
        }
        // SAFETY: the handler does what the instructions would do.
        unsafe { CpuKernels::assume_amx() };
    });
}

extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the registers of the thread that was interrupted; its tiles are used
    // by this thread alone, and a handler is not interrupted by the same signal.
    unsafe {
        let general = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = general[libc::REG_RIP as usize] as *const u8;
        let length = REGISTERS.with(|registers| {
            let registers = &mut *registers.get();
            if IN_PLACE.load(Ordering::Relaxed) {
                (registers.rows, registers.bytes) = ([16; 8], [64; 8]);
            }
            step(registers, at, general)
        });
        match length {
            Some(length) => general[libc::REG_RIP as usize] += length as i64,
            None => {
                // Some other instruction: as without a handler.
                libc::signal(libc::SIGILL, libc::SIG_DFL);
            }
        }
    }
}

/// General registers by their numbers in an instruction.
const GENERAL: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Does one instruction; its bytes if it is one of AMX.
unsafe fn step(registers: &mut Registers, at: *const u8, general: &[i64; 23]) -> Option<usize> {
    // SAFETY: the processor has just fetched the instruction from there; the operands are the caller's.
    unsafe {
        let byte = |index: usize| *at.add(index);
        // VEX of three bytes, map 0F38, no W, 128 bits.
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
            return None;
        }
        let (prefix, second) = (byte(2) & 3, usize::from(!(byte(2) >> 3) & 0xf));
        let (code, modes) = (byte(3), byte(4));
        let (mode, reg, rm) = (modes >> 6, usize::from(modes >> 3 & 7), usize::from(modes & 7));
        let high = |bit: u8| if byte(1) >> bit & 1 == 0 { 8 } else { 0 };
        match (code, prefix, mode) {
            (0x49, 0, 3) if modes == 0xc0 => {
                *registers = Registers { tiles: [[[0; 16]; 16]; 8], rows: [0; 8], bytes: [0; 8] };
                Some(5)
            }
            (0x49, 3, 3) if rm == 0 => {
                registers.tiles[reg] = [[0; 16]; 16];
                Some(5)
            }
            (0x5c, 2, 3) => {
                multiply(registers, reg, rm, second);
                Some(5)
            }
            (0x49, 0, _) | (0x4b, 2 | 3, _) if mode < 3 => {
                let (mut next, mut base, mut stride) = (5, rm, 0i64);
                let scaled = rm == 4;
                if scaled {
                    let sib = byte(5);
                    next = 6;
                    base = usize::from(sib & 7);
                    let index = usize::from(sib >> 3 & 7) + high(6);
                    if index != 4 {
                        stride = general[GENERAL[index] as usize] << (sib >> 6);
                    }
                }
                assert!(mode != 0 || base != 5, "no base");
                let mut address = general[GENERAL[base + high(5)] as usize];
                match mode {
                    1 => address += i64::from(byte(next) as i8),
                    2 => address += i64::from(at.add(next).cast::<i32>().read_unaligned()),
                    _ => {}
                }
                next += [0, 1, 4][usize::from(mode)];
                if code == 0x49 {
                    shape(registers, address as *const u8);
                } else {
                    assert!(scaled, "tiles are moved with a stride");
                    move_rows(registers, reg, address, stride, prefix == 3);
                }
                Some(next)
            }
            _ => None,
        }
    }
}

/// LDTILECFG
unsafe fn shape(registers: &mut Registers, at: *const u8) {
    // SAFETY: the 64 bytes are the caller's.
    let shape = unsafe { at.cast::<[u8; 64]>().read() };
    assert_eq!(shape[..2], [1, 0], "palette and first row");
    registers.tiles = [[[0; 16]; 16]; 8];
    for tile in 0..8 {
        registers.bytes[tile] =
            usize::from(shape[16 + 2 * tile]) + 256 * usize::from(shape[17 + 2 * tile]);
        registers.rows[tile] = usize::from(shape[48 + tile]);
        assert!(registers.bytes[tile] <= 64 && registers.rows[tile] <= 16, "{shape:?}");
    }
}

/// TILELOADD and TILESTORED
unsafe fn move_rows(registers: &mut Registers, tile: usize, at: i64, stride: i64, load: bool) {
    let (rows, words) = (registers.rows[tile], registers.bytes[tile] / 4);
    assert!(rows > 0 && words > 0, "a tile without a shape");
    for row in 0..rows {
        let memory = (at + row as i64 * stride) as *mut u32;
        let values = &mut registers.tiles[tile][row];
        for (word, value) in values.iter_mut().enumerate().take(words) {
            // SAFETY: the rows are the caller's.
            unsafe {
                match load {
                    true => *value = memory.add(word).read_unaligned(),
                    false => memory.add(word).write_unaligned(*value),
                }
            }
        }
    }
}

/// Denormals are read as zeros, and written as such.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0 * x } else { x }
}

/// TDPBF16PS: in each row and column the products of the lower and those of the upper halves are summed up
/// for themselves, and both added to what is there. A product of two bf16 has no more digits than an f32.
fn multiply(registers: &mut Registers, sums: usize, left: usize, right: usize) {
    let halves =
        |word: u32| [word << 16, word & 0xffff_0000].map(|bits| flushed(f32::from_bits(bits)));
    let columns = registers.bytes[sums] / 4;
    let words = registers.bytes[left] / 4;
    assert_eq!((words, columns), (registers.rows[right], registers.bytes[right] / 4));
    let right = registers.tiles[right].map(|row| row.map(halves));
    for row in 0..registers.rows[sums] {
        let mut parts = [[0.0f32; 2]; 16];
        for (word, right) in registers.tiles[left][row].iter().zip(&right).take(words) {
            let left = halves(*word);
            for (part, right) in parts.iter_mut().zip(right) {
                for half in 0..2 {
                    part[half] = flushed(part[half] + left[half] * right[half]);
                }
            }
        }
        for (sum, [low, high]) in registers.tiles[sums][row].iter_mut().zip(parts).take(columns) {
            let both = flushed(low + high);
            *sum = flushed(flushed(f32::from_bits(*sum)) + both).to_bits();
        }
    }
}
