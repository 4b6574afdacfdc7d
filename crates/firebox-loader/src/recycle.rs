//! Buffers of batches, used again once the tensor that was made of one is gone.
//!
//! A batch of megabytes that is allocated anew costs a page fault for every 4 KiB, which takes longer
//! than filling it.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Bytes, DType, TensorData};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

/// Buffers that nobody uses.
#[derive(Clone, Debug)]
pub(crate) struct Buffers(Arc<Shelf>);

#[derive(Debug)]
struct Shelf {
    idle: Mutex<Vec<Vec<f32>>>,
    most: usize,
}

impl Buffers {
    /// Keeps up to this many.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Shelf { idle: Mutex::default(), most }))
    }

    /// An empty buffer with room for this many values.
    pub(crate) fn take(&self, values: usize) -> Vec<f32> {
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = idle.unwrap_or_default();
        buffer.clear();
        buffer.reserve(values);
        buffer
    }

    /// Values as a tensor's data, whose memory comes back here.
    pub(crate) fn lend(&self, values: Vec<f32>, shape: [usize; 3]) -> TensorData {
        let length = size_of_val(values.as_slice());
        let lent = Lent { values, home: Arc::clone(&self.0) };
        // SAFETY: the controller's memory is at least `length` bytes of initialised numbers.
        let bytes = unsafe { Bytes::from_controller(Box::new(lent), length) };
        TensorData::from_bytes(bytes, shape, DType::F32)
    }
}

/// A buffer in use.
struct Lent {
    values: Vec<f32>,
    home: Arc<Shelf>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut idle = self.home.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.home.most {
            idle.push(std::mem::take(&mut self.values));
        }
    }
}

impl AllocationController for Lent {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Native
    }

    fn capacity(&self) -> usize {
        size_of_val(self.values.as_slice())
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes = self.values.as_ptr().cast();
        // SAFETY: the bytes of the vector's numbers, borrowed as long as the vector.
        Ok(unsafe { std::slice::from_raw_parts(bytes, self.capacity()) })
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let (bytes, length) = (self.values.as_mut_ptr().cast(), self.capacity());
        // SAFETY: as above, borrowed alone; the caller writes initialised bytes, and any are an f32.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes, length) })
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
        values.extend([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
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
        let lent: Vec<_> = (0..3).map(|_| buffers.lend(vec![0.0; 6], [1, 3, 2])).collect();
        drop(lent);
        assert_eq!(buffers.0.idle.lock().unwrap().len(), 1);
    }
}
