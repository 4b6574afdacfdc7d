//! The shuffle of NumPy's legacy generator, which decides the order of Optuna's grids.
//!
//! Only for agreeing with Optuna on the numbers of a grid's points: everything else draws from
//! `firebox_core::Stream`. MT19937: Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 1998.

const STATE: usize = 624;

struct Mersenne {
    state: [u32; STATE],
    next: usize,
}

impl Mersenne {
    fn new(seed: u32) -> Self {
        let mut state = [seed; STATE];
        for i in 1..STATE {
            let last = state[i - 1];
            state[i] = 1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: STATE }
    }

    fn word(&mut self) -> u32 {
        if self.next == STATE {
            for i in 0..STATE {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % STATE] & 0x7fff_ffff);
                let twist = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % STATE] ^ (y >> 1) ^ twist;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }
}

/// The order in which `numpy.random.RandomState(seed).shuffle` leaves the numbers below `count`.
pub(crate) fn shuffled(count: u32, seed: u32) -> Vec<u32> {
    let mut generator = Mersenne::new(seed);
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..count).rev() {
        let mask = u32::MAX >> last.leading_zeros();
        let place = loop {
            let place = generator.word() & mask;
            if place <= last {
                break place;
            }
        };
        order.swap(last as usize, place as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_numpys() {
        // numpy 2: order = list(range(n)); numpy.random.RandomState(seed).shuffle(order).
        let check = |count, seed, expected: &[u32]| assert_eq!(shuffled(count, seed), expected);
        check(0, 0, &[]);
        check(1, 5, &[0]);
        check(10, 0, &[2, 8, 4, 9, 1, 6, 7, 3, 0, 5]);
        check(12, 1337, &[5, 3, 1, 0, 4, 6, 10, 2, 9, 11, 8, 7]);
        // The 10,000th word of the reference implementation's default seed.
        let mut generator = Mersenne::new(5489);
        assert_eq!((0..10_000).map(|_| generator.word()).last(), Some(4_123_659_995));
    }
}
