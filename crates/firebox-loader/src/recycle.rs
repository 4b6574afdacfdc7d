//! Buffers of batches, used again once the tensor that was made of one is gone.
//!
//! A batch of megabytes that is allocated anew costs a page fault for every 4 KiB, which takes longer
//! than filling it. Pinned memory is taken from the device once for each buffer, and batches are written
//! straight into it: a device that copies by itself needs no other copy, and nobody waits for one.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{AllocationProperty, Bytes, DType, Device, TensorData};
use burn_std::{AccessError, AccessPolicy, AllocationController};

use crate::upload::in_queue;

/// Buffers that nobody uses.
#[derive(Clone, Debug)]
pub(crate) struct Buffers(Arc<Shelf>);

struct Shelf {
    idle: Mutex<Vec<Memory>>,
    most: usize,
    /// Where memory comes from that a device copies from by itself.
    pinned: Option<Arc<Pinned>>,
}

/// Gives pinned memory of so many zeros, if there is any left.
type Pinned = dyn Fn(usize) -> Option<TensorData> + Send + Sync;

/// Initialised numbers, as many as the largest batch had that they were used for.
enum Memory {
    Plain(Vec<f32>),
    Pinned(TensorData),
}

impl Memory {
    fn values(&mut self) -> &mut [f32] {
        match self {
            Self::Plain(values) => values,
            // Pinned memory is made of numbers of this type and aligned for any.
            Self::Pinned(data) => data.as_mut_slice().unwrap_or_default(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain(values) => bytemuck::cast_slice(values),
            Self::Pinned(data) => data.as_bytes(),
        }
    }

    fn property(&self) -> AllocationProperty {
        match self {
            Self::Plain(_) => AllocationProperty::Native,
            Self::Pinned(_) => AllocationProperty::Pinned,
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::Plain(Vec::new())
    }
}

impl Buffers {
    /// Keeps up to this many.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Shelf { idle: Mutex::default(), most, pinned: None }))
    }

    /// Keeps up to this many, in memory that this device copies from by itself as long as it has some.
    pub(crate) fn pinned(most: usize, device: Device) -> Self {
        Self::pinned_by(most, Arc::new(move |values| pinned(values, &device)))
    }

    fn pinned_by(most: usize, pinned: Arc<Pinned>) -> Self {
        Self(Arc::new(Shelf { idle: Mutex::default(), most, pinned: Some(pinned) }))
    }

    /// A buffer of so many values, which may be any.
    pub(crate) fn take(&self, values: usize) -> Buffer {
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut memory = idle.unwrap_or_default();
        if memory.values().len() < values {
            memory = match self.0.pinned.as_ref().and_then(|pinned| pinned(values)) {
                Some(data) => Memory::Pinned(data),
                None => Memory::Plain(vec![0.0; values]),
            };
        }
        Buffer { memory, values }
    }

    /// A buffer as a tensor's data, whose memory comes back here.
    pub(crate) fn lend<const D: usize>(&self, buffer: Buffer, shape: [usize; D]) -> TensorData {
        let Buffer { memory, values } = buffer;
        let length = values * size_of::<f32>();
        let lent = Lent { memory, home: Arc::clone(&self.0) };
        // SAFETY: the controller's memory is at least `length` bytes of initialised numbers.
        let bytes = unsafe { Bytes::from_controller(Box::new(lent), length) };
        TensorData::from_bytes(bytes, shape, DType::F32)
    }
}

/// Pinned memory of this device; none if it has none, or none left.
fn pinned(values: usize, device: &Device) -> Option<TensorData> {
    let mut data = TensorData::new(vec![0.0_f32; values], [values]);
    in_queue(|| device.staging(std::iter::once(&mut data)));
    (data.bytes().property() == AllocationProperty::Pinned).then_some(data)
}

/// Whether a device has pinned memory.
pub(crate) fn has_pinned(device: &Device) -> bool {
    pinned(1, device).is_some()
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).len();
        let pinned = self.pinned.is_some();
        f.debug_struct("Shelf").field("idle", &idle).field("pinned", &pinned).finish()
    }
}

/// The values of a batch.
pub(crate) struct Buffer {
    memory: Memory,
    values: usize,
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.memory.bytes()[..self.values * size_of::<f32>()])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory.values()[..self.values]
    }
}

/// A buffer in use.
struct Lent {
    memory: Memory,
    home: Arc<Shelf>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut idle = self.home.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.home.most {
            idle.push(std::mem::take(&mut self.memory));
        }
    }
}

impl AllocationController for Lent {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        self.memory.property()
    }

    fn capacity(&self) -> usize {
        self.memory.bytes().len()
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes = self.memory.bytes();
        // SAFETY: initialised bytes are bytes that may be.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.memory.values());
        // SAFETY: as above, borrowed alone; the caller writes initialised bytes, and any are an f32.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Tensor};

    #[test]
    fn memory_comes_back_when_the_last_tensor_has_gone() {
        let buffers = Buffers::new(2);
        let mut values = buffers.take(6);
        values.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let at = values.as_ptr();
        let tensor = Tensor::<3>::from_data(buffers.lend(values, [1, 3, 2]), &Device::default());
        let other = tensor.clone() * 2.0;
        assert_eq!(other.into_data().try_to_vec::<f32>().unwrap()[5], 12.0);
        let kept = tensor.clone();
        drop(tensor);
        let meanwhile = buffers.take(6);
        assert_ne!(meanwhile.as_ptr(), at);
        // In place or not: what others made of it stays theirs.
        let changed = kept + 1.0;
        assert_eq!(changed.to_data().try_to_vec::<f32>().unwrap()[0], 2.0);
        drop(changed);
        let again = buffers.take(6);
        assert_eq!(again.as_ptr(), at);
    }

    #[test]
    fn no_more_are_kept_than_asked_for() {
        let buffers = Buffers::new(1);
        let lent: Vec<_> = (0..3).map(|_| buffers.lend(buffers.take(6), [1, 3, 2])).collect();
        drop(lent);
        assert_eq!(buffers.0.idle.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_buffer_is_as_large_as_asked_for_and_its_memory_as_the_largest() {
        let buffers = Buffers::new(1);
        drop(buffers.lend(buffers.take(12), [2, 3, 2]));
        let mut small = buffers.take(6);
        let at = small.as_ptr();
        small.fill(7.0);
        let data = buffers.lend(small, [1, 3, 2]);
        assert_eq!((data.as_bytes().len(), data.num_elements()), (24, 6));
        assert_eq!(data.as_slice::<f32>().unwrap(), [7.0; 6]);
        drop(data);
        assert_eq!(buffers.take(12).as_ptr(), at);
        drop(buffers.lend(buffers.take(18), [3, 3, 2]));
        assert_eq!(buffers.0.idle.lock().unwrap()[0].values().len(), 18);
    }

    /// Memory that says it is pinned.
    struct Fake(Vec<u128>);

    impl AllocationController for Fake {
        fn alloc_align(&self) -> usize {
            align_of::<u128>()
        }

        fn property(&self) -> AllocationProperty {
            AllocationProperty::Pinned
        }

        fn capacity(&self) -> usize {
            size_of_val(self.0.as_slice())
        }

        fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
            let (bytes, length) = (self.0.as_ptr().cast(), self.capacity());
            // SAFETY: the bytes of the vector's numbers.
            Ok(unsafe { std::slice::from_raw_parts(bytes, length) })
        }

        unsafe fn memory_mut(
            &mut self,
            _: AccessPolicy,
        ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
            let (bytes, length) = (self.0.as_mut_ptr().cast(), self.capacity());
            // SAFETY: the bytes of the vector's numbers, borrowed alone.
            Ok(unsafe { std::slice::from_raw_parts_mut(bytes, length) })
        }
    }

    fn fake(values: usize) -> TensorData {
        let bytes = values * size_of::<f32>();
        let memory = Fake(vec![0; bytes.div_ceil(size_of::<u128>())]);
        // SAFETY: the memory is zeros, and at least as many as said.
        let bytes = unsafe { Bytes::from_controller(Box::new(memory), bytes) };
        TensorData::from_bytes(bytes, [values], DType::F32)
    }

    #[test]
    fn pinned_memory_is_filled_in_place_handed_over_as_pinned_and_used_again() {
        let left = Arc::new(Mutex::new(2));
        let given = Arc::clone(&left);
        let give = move |values: usize| {
            let mut left = given.lock().unwrap();
            let more = *left > 0;
            *left -= usize::from(more) as i32;
            more.then(|| fake(values))
        };
        let buffers = Buffers::pinned_by(2, Arc::new(give));
        let mut buffer = buffers.take(6);
        buffer.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let at = buffer.as_ptr();
        let data = buffers.lend(buffer, [1, 3, 2]);
        assert_eq!(data.bytes().property(), AllocationProperty::Pinned);
        assert_eq!(data.as_bytes().as_ptr().cast(), at);
        let tensor = Tensor::<3>::from_data(data, &Device::default());
        let sum = tensor.clone().sum().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(sum, [21.0]);
        drop(tensor);
        let again = buffers.take(4);
        assert_eq!((again.as_ptr(), *left.lock().unwrap()), (at, 1));
        // Where none is left, plain memory does.
        let (second, third) = (buffers.take(6), buffers.take(6));
        let property = |buffer| buffers.lend(buffer, [1, 3, 2]).bytes().property();
        assert_eq!(property(second), AllocationProperty::Pinned);
        assert_eq!(property(third), AllocationProperty::Native);
    }

    #[test]
    fn a_processor_has_no_pinned_memory() {
        assert!(!has_pinned(&Device::default()));
    }
}
