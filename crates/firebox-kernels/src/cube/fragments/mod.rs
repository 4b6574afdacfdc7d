//! The recurrent layer on NVIDIA's tensor cores, whose operands and sums are told register by register
//! (`mma.m16n8k16`, `ldmatrix`).
//!
//! The weights are the left operand and lie in memory as a thread has them in its registers, so that it reads them 16
//! bytes at a time, or keeps them there for the whole sequence. All columns of a unit come out in one thread, which
//! takes them through the cell and has its states in registers: of a step, only the new hidden states, or gradients of
//! gates, pass through shared memory. That has two copies of them, so that one barrier a step is enough.
//!
//! States and gradients that are multiplied are rounded to the tensors' type; sums and the cell's arithmetic are f32.

pub(super) mod backward;
pub(super) mod forward;
mod product;
pub(super) mod weights;
