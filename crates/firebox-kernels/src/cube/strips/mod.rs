//! Attention on tensor cores: the walks of [`attend`](super::attend) and
//! [`attend_back`](super::attend_back), whose scores, sums and gradients are products of whole tiles.
//!
//! A plane (warp) owns a strip of rows, queries or keys, for which it walks over the blocks of the other
//! side that its cube brings into shared memory. The scores of a strip and a block go through shared
//! memory, where a team of threads has a row: it makes probabilities of them, and puts those back for the
//! next product. Sums over the blocks stay in the registers of tensor cores.
//!
//! Largest scores are kept until one exceeds them by [`SLACK`](forward::SLACK): what has been summed up is
//! scaled so rarely that it may go through shared memory for it. Probabilities and the gradients of scores
//! are rounded to the tensors' type before they are multiplied, as are those of Dao, "FlashAttention-2",
//! 2023; sums and all else are f32.
//!
//! All planes of a cube meet the same barriers, those of a plane too: a software driver waits for all threads
//! of the cube at any.
//!
//! A number that is not finite spoils what is multiplied by it, also where that is zero: one in a value
//! reaches all queries whose strip sees its block, and back, one in a key reaches the gradients of those
//! queries, one in a query or a gradient those of all keys whose strip meets its block. Padding is not read.

pub(super) mod backward;
pub(super) mod forward;
mod parts;
