//! Which vector instructions the machine has, found at run time.

/// A set of vector instructions that this machine has: a value is the proof.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Instructions(Level);

/// From the least to the most.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// What every machine has.
    pub const PORTABLE: Self = Self(Level::Portable);

    /// The most that this machine has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                return Self(Level::Avx512);
            }
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                return Self(Level::Avx2);
            }
        }
        Self::PORTABLE
    }

    /// Everything this machine can run, for tests that compare.
    pub fn available() -> Vec<Self> {
        let all = [
            Level::Portable,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512,
        ];
        let most = Self::detect();
        all.into_iter().map(Self).filter(|it| *it <= most).collect()
    }

    pub(super) const fn level(self) -> Level {
        self.0
    }
}
