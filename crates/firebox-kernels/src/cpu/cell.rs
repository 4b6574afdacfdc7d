//! What a recurrent cell does with the sums of its four columns, and the gradient of that.
//!
//! An LSTM's columns are its gates: input, forget, cell, output. A GRU's are the reset gate, the
//! update gate, and the candidate's part from the input and part from the hidden state, apart
//! because the reset gate is applied to the second one alone; its `cell` is its hidden state.

use super::compute::Compute;
use super::gates::{share_kept, sigmoid, tanh};
use super::kernels::CompiledFor;
use super::simd::Simd;

/// A recurrent cell.
pub(super) trait Cell: CompiledFor + Copy {
    /// Which of what [`step`](Cell::step) keeps lie from 0 to 1.
    const SHARES: [bool; 4];

    /// From the columns' sums and the cell state before the step: what the gradient needs of the
    /// columns, the new cell state and the new hidden state.
    ///
    /// # Safety
    /// That of [`Simd`].
    unsafe fn step<S: Simd, C: Compute>(
        columns: [S::Vector; 4],
        before: S::Vector,
    ) -> ([S::Vector; 4], S::Vector, S::Vector);

    /// From what `step` kept, the cell states after and before it, the gradient of the hidden state
    /// and that of the cell state: the gradients of the columns' sums, and of the cell state before.
    ///
    /// # Safety
    /// That of [`Simd`].
    unsafe fn gradient<S: Simd, C: Compute>(
        kept: [S::Vector; 4],
        cell: S::Vector,
        before: S::Vector,
        d_hidden: S::Vector,
        d_cell: S::Vector,
    ) -> ([S::Vector; 4], S::Vector);
}

/// Long short-term memory.
#[derive(Clone, Copy)]
pub(super) struct LstmCell;

impl CompiledFor for LstmCell {}

impl Cell for LstmCell {
    const SHARES: [bool; 4] = [true, true, false, true];

    #[inline(always)]
    unsafe fn step<S: Simd, C: Compute>(
        [i, f, g, o]: [S::Vector; 4],
        before: S::Vector,
    ) -> ([S::Vector; 4], S::Vector, S::Vector) {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe {
            let (i, f, g, o) =
                (sigmoid::<S, C>(i), share_kept::<S, C>(f), tanh::<S, C>(g), sigmoid::<S, C>(o));
            let c = S::fma(f, before, S::mul(i, g));
            ([i, f, g, o], c, S::mul(o, tanh::<S, C>(c)))
        }
    }

    #[inline(always)]
    unsafe fn gradient<S: Simd, C: Compute>(
        [i, f, g, o]: [S::Vector; 4],
        cell: S::Vector,
        before: S::Vector,
        dh: S::Vector,
        d_cell: S::Vector,
    ) -> ([S::Vector; 4], S::Vector) {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe {
            let one = S::splat(1.0);
            let tanh_c = tanh::<S, C>(cell);
            let through = S::mul(S::mul(dh, o), S::sub(one, S::mul(tanh_c, tanh_c)));
            let dc = S::add(d_cell, through);
            let d_i = S::mul(S::mul(dc, g), S::mul(i, S::sub(one, i)));
            let d_f = S::mul(S::mul(dc, before), S::mul(f, S::sub(one, f)));
            let d_g = S::mul(S::mul(dc, i), S::sub(one, S::mul(g, g)));
            let d_o = S::mul(S::mul(dh, tanh_c), S::mul(o, S::sub(one, o)));
            ([d_i, d_f, d_g, d_o], S::mul(dc, f))
        }
    }
}

/// Gated recurrent unit.
#[derive(Clone, Copy)]
pub(super) struct GruCell;

impl CompiledFor for GruCell {}

impl Cell for GruCell {
    const SHARES: [bool; 4] = [true, true, false, false];

    #[inline(always)]
    unsafe fn step<S: Simd, C: Compute>(
        [r, z, n, m]: [S::Vector; 4],
        before: S::Vector,
    ) -> ([S::Vector; 4], S::Vector, S::Vector) {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe {
            let (r, z) = (sigmoid::<S, C>(r), share_kept::<S, C>(z));
            let n = tanh::<S, C>(S::fma(r, m, n));
            let h = S::fma(z, S::sub(before, n), n);
            ([r, z, n, m], h, h)
        }
    }

    #[inline(always)]
    unsafe fn gradient<S: Simd, C: Compute>(
        [r, z, n, m]: [S::Vector; 4],
        _: S::Vector,
        before: S::Vector,
        dh: S::Vector,
        d_cell: S::Vector,
    ) -> ([S::Vector; 4], S::Vector) {
        // SAFETY: the caller's promise is the one that `Simd` asks for.
        unsafe {
            let one = S::splat(1.0);
            let dh = S::add(dh, d_cell);
            let d_z = S::mul(S::mul(dh, S::sub(before, n)), S::mul(z, S::sub(one, z)));
            let d_n = S::mul(S::mul(dh, S::sub(one, z)), S::sub(one, S::mul(n, n)));
            let d_r = S::mul(S::mul(d_n, m), S::mul(r, S::sub(one, r)));
            ([d_r, d_z, d_n, S::mul(d_n, r)], S::mul(dh, z))
        }
    }
}
