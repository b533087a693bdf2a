//! The kernels: their sources, the images made ahead, and the compiler for when there are none.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, process};

use cudarc::nvrtc::{self, CompileOptions, Ptx};
use sha2::{Digest, Sha256};

use super::DeviceError;
use super::launch::has_compiler;

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// One file of kernels.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: &'static str,
    text: &'static str,
    pub(super) kernels: &'static [&'static str],
}

macro_rules! source {
    ($name:literal, $($kernel:literal),+) => {
        Source {
            name: $name,
            text: include_str!(concat!("../../cu/", $name, ".cu")),
            kernels: &[$($kernel),+],
        }
    };
}

pub(super) const SOURCES: &[Source] = &[
    source!("attend_bulk", "attend_bulk_128"),
    source!(
        "attend_chunk",
        "attend_chunk_64_1",
        "attend_chunk_64_2",
        "attend_chunk_64_4",
        "attend_chunk_128_1",
        "attend_chunk_128_2"
    ),
    source!(
        "attend_few",
        "attend_few_64_1",
        "attend_few_64_2",
        "attend_few_64_4",
        "attend_few_128_1",
        "attend_few_128_2"
    ),
    source!("attend_many", "attend_many_64", "attend_many_128"),
    source!("attend_ring", "lay_records", "attend_ring_64", "attend_ring_128"),
    source!("attend_wide", "attend_wide_64", "attend_wide_128"),
    source!("collective", "reduce_few", "reduce_many"),
    source!(
        "draft",
        "draft_input",
        "draft_guess",
        "draft_guess_slices",
        "keep_states",
        "accept_and_defer",
        "gather_deferred",
        "keep_deferred"
    ),
    source!("embed", "embed"),
    source!(
        "matmul_ahead",
        "matmul_ahead_8",
        "matmul_ahead_16",
        "matmul_ahead_32",
        "matmul_ahead_64",
        "matmul_stream_8",
        "matmul_stream_16",
        "matmul_stream_32",
        "matmul_stream_64",
        "matmul_ahead_fp8_8",
        "matmul_ahead_fp8_16",
        "matmul_ahead_fp8_32",
        "matmul_ahead_fp8_64",
        "matmul_stream_fp8_8",
        "matmul_stream_fp8_16",
        "matmul_stream_fp8_32",
        "matmul_stream_fp8_64"
    ),
    source!(
        "matmul_broad",
        "matmul_broad_128",
        "matmul_broad_192",
        "matmul_broad_256",
        "matmul_broad_all",
        "matmul_broad_pair",
        "matmul_broad_fp8_128",
        "matmul_broad_fp8_192",
        "matmul_broad_fp8_256",
        "matmul_broad_fp8_all",
        "matmul_broad_fp8_pair"
    ),
    source!("layers", "layers_64_1", "layers_64_2", "layers_128_1", "layers_128_2"),
    source!("layers_small", "layers_small"),
    source!("layers_small_wide", "layers_small_wide"),
    source!(
        "matmul_few",
        "matmul_few8_plain",
        "matmul_few16_plain",
        "matmul_few16x2_plain",
        "matmul_few32_plain",
        "matmul_few64_plain",
        "matmul_few8_norm_plain",
        "matmul_few16_norm_plain",
        "matmul_few16x2_norm_plain",
        "matmul_few32_norm_plain",
        "matmul_few64_norm_plain",
        "matmul_few8_norm_gated",
        "matmul_few16_norm_gated",
        "matmul_few16x2_norm_gated",
        "matmul_few32_norm_gated",
        "matmul_few32x2_norm_gated",
        "matmul_few64_norm_gated",
        "matmul_few64x2_norm_gated",
        "matmul_few8_residual",
        "matmul_few8deep_norm_gated",
        "matmul_few8deep_residual",
        "matmul_few16_residual",
        "matmul_few16x2_residual",
        "matmul_few32_residual",
        "matmul_few32dense_residual",
        "matmul_few64_residual",
        "matmul_few8_fp8_plain",
        "matmul_few16_fp8_plain",
        "matmul_few16x2_fp8_plain",
        "matmul_few32_fp8_plain",
        "matmul_few64_fp8_plain",
        "matmul_few8_fp8_norm_plain",
        "matmul_few16_fp8_norm_plain",
        "matmul_few16x2_fp8_norm_plain",
        "matmul_few32_fp8_norm_plain",
        "matmul_few64_fp8_norm_plain",
        "matmul_few8_fp8_norm_gated",
        "matmul_few16_fp8_norm_gated",
        "matmul_few16x2_fp8_norm_gated",
        "matmul_few32_fp8_norm_gated",
        "matmul_few64_fp8_norm_gated",
        "matmul_few8_fp8_residual",
        "matmul_few8deep_fp8_plain",
        "matmul_few8deep_fp8_norm_plain",
        "matmul_few8deep_fp8_norm_gated",
        "matmul_few8deep_fp8_residual",
        "matmul_few16_fp8_residual",
        "matmul_few16x2_fp8_residual",
        "matmul_few32_fp8_residual",
        "matmul_few64_fp8_residual"
    ),
    source!(
        "matmul_many",
        "matmul_many32_plain",
        "matmul_many32_gated",
        "matmul_many32_residual",
        "matmul_many64_plain",
        "matmul_many64_gated",
        "matmul_many64_residual",
        "matmul_split32_plain",
        "matmul_split32_gated",
        "matmul_split32_residual",
        "matmul_split64_plain",
        "matmul_split64_gated",
        "matmul_split64_residual",
        "matmul_many32_fp8_plain",
        "matmul_many32_fp8_gated",
        "matmul_many32_fp8_residual",
        "matmul_many64_fp8_plain",
        "matmul_many64_fp8_gated",
        "matmul_many64_fp8_residual",
        "matmul_split32_fp8_plain",
        "matmul_split32_fp8_gated",
        "matmul_split32_fp8_residual",
        "matmul_split64_fp8_plain",
        "matmul_split64_fp8_gated",
        "matmul_split64_fp8_residual",
        "norm_scales"
    ),
    source!(
        "matmul_tall",
        "matmul_tall",
        "matmul_tall_all",
        "matmul_tall_half",
        "matmul_tall_fp8",
        "matmul_tall_fp8_all"
    ),
    source!(
        "matmul_wide",
        "matmul_wide_16",
        "matmul_wide_32",
        "matmul_wide_64",
        "matmul_wide_128",
        "matmul_wide_fp8_16",
        "matmul_wide_fp8_32",
        "matmul_wide_fp8_64",
        "matmul_wide_fp8_128"
    ),
    source!("rope", "rope_64", "rope_128"),
    source!("rows", "lay_step", "accept", "gather_rows"),
    source!("sample", "sample", "sample_slices"),
];

const HEADERS: &[(&str, &str)] = &[
    ("ahead.cuh", include_str!("../../cu/ahead.cuh")),
    ("attend_chunk.cuh", include_str!("../../cu/attend_chunk.cuh")),
    ("attend.cuh", include_str!("../../cu/attend.cuh")),
    ("attend_few.cuh", include_str!("../../cu/attend_few.cuh")),
    ("attend_many.cuh", include_str!("../../cu/attend_many.cuh")),
    ("attend_ring.cuh", include_str!("../../cu/attend_ring.cuh")),
    ("base.cuh", include_str!("../../cu/base.cuh")),
    ("broad.cuh", include_str!("../../cu/broad.cuh")),
    ("bulk.cuh", include_str!("../../cu/bulk.cuh")),
    ("choose.cuh", include_str!("../../cu/choose.cuh")),
    ("collective.cuh", include_str!("../../cu/collective.cuh")),
    ("ends.cuh", include_str!("../../cu/ends.cuh")),
    ("filter.cuh", include_str!("../../cu/filter.cuh")),
    ("layers.cuh", include_str!("../../cu/layers.cuh")),
    ("layers_attend.cuh", include_str!("../../cu/layers_attend.cuh")),
    ("layers_clusters.cuh", include_str!("../../cu/layers_clusters.cuh")),
    ("layers_near.cuh", include_str!("../../cu/layers_near.cuh")),
    ("layers_seats.cuh", include_str!("../../cu/layers_seats.cuh")),
    ("layers_small.cuh", include_str!("../../cu/layers_small.cuh")),
    ("layers_stream.cuh", include_str!("../../cu/layers_stream.cuh")),
    ("matmul.cuh", include_str!("../../cu/matmul.cuh")),
    ("rope.cuh", include_str!("../../cu/rope.cuh")),
    ("rows.cuh", include_str!("../../cu/rows.cuh")),
    ("sample.cuh", include_str!("../../cu/sample.cuh")),
    ("together.cuh", include_str!("../../cu/together.cuh")),
    ("wgmma.cuh", include_str!("../../cu/wgmma.cuh")),
];

/// Whether any image was made when the crate was built.
pub(super) fn has_images() -> bool {
    !IMAGES.is_empty()
}

/// The image made ahead that runs on `capability`: the newest of its generation. Those with an
/// `a` run on exactly what they name.
fn image(name: &str, capability: (u32, u32)) -> Option<&'static [u8]> {
    let of_name = IMAGES.iter().filter(|(it, _, _)| *it == name);
    let found =
        of_name.filter_map(|(_, made_for, image)| Some((fits(made_for, capability)?, image)));
    found.max_by_key(|(minor, _)| *minor).map(|(_, image)| *image)
}

/// How new an image made for this architecture is within its generation, if it runs.
fn fits(architecture: &str, capability: (u32, u32)) -> Option<u32> {
    let exact = architecture.ends_with('a');
    let number: u32 = architecture.trim_end_matches('a').parse().ok()?;
    let (major, minor) = (number / 10, number % 10);
    let runs = major == capability.0 && minor <= capability.1;
    (runs && (!exact || minor == capability.1)).then_some(minor)
}

/// What the compiler is asked for on `capability`.
fn target(capability: (u32, u32)) -> String {
    let (major, minor) = capability;
    // Hopper's own instructions are under the name with an `a`.
    let suffix = if capability == (9, 0) { "a" } else { "" };
    format!("compute_{major}{minor}{suffix}")
}

/// The source with its headers in their places, each once.
fn whole(text: &str, seen: &mut Vec<&'static str>) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let header = line.strip_prefix("#include \"").and_then(|it| it.strip_suffix('"'));
        let known = header.and_then(|name| HEADERS.iter().find(|(it, _)| *it == name));
        match known {
            Some((name, _)) if seen.contains(name) => {}
            Some((name, text)) => {
                seen.push(name);
                out += &whole(text, seen);
            }
            None if line == "#pragma once" => {}
            None => out += line,
        }
        out.push('\n');
    }
    out
}

impl Source {
    /// What the driver loads on a card of this capability. Without an image made ahead the source
    /// is compiled, and what came of it kept in `cache` under its hash.
    pub(super) fn load(
        &self,
        capability: (u32, u32),
        cache: Option<&Path>,
    ) -> Result<Ptx, DeviceError> {
        if let Some(image) = image(self.name, capability) {
            return Ok(Ptx::from_binary(image.to_vec()));
        }
        let target = target(capability);
        let text = whole(self.text, &mut Vec::new());
        let kept = cache.map(|folder| folder.join(file_name(self.name, &text, &target)));
        if let Some(known) = kept.as_deref().and_then(|path| fs::read_to_string(path).ok()) {
            return Ok(Ptx::from_src(known));
        }
        if !has_compiler() {
            return Err(DeviceError::NoKernels { target });
        }
        let options = vec![format!("--gpu-architecture={target}"), "--std=c++17".to_owned()];
        let options = CompileOptions { options, ..Default::default() };
        let ptx = nvrtc::compile_ptx_with_opts(text, options)
            .map_err(|error| DeviceError::Failed(format!("kernel {}: {error:?}", self.name)))?;
        if let Some(path) = kept {
            keep(&path, &ptx.to_src());
        }
        Ok(ptx)
    }
}

fn file_name(name: &str, text: &str, target: &str) -> PathBuf {
    format!("{name}.{target}.{}.ptx", digest(text)).into()
}

fn digest(text: &str) -> String {
    let mut hash = String::new();
    for byte in &Sha256::digest(text)[..16] {
        write!(hash, "{byte:02x}").expect("a string takes all");
    }
    hash
}

/// Equal for programs with the same kernels, whose weights are therefore laid out alike.
pub fn version() -> String {
    digest(&SOURCES.iter().map(|it| whole(it.text, &mut Vec::new())).collect::<String>())
}

/// Writes beside and renames, so that no other start reads half a file. A folder that cannot be
/// written costs the next start its compile time, nothing else.
fn keep(path: &Path, text: &str) {
    let beside = path.with_extension(format!("ptx.{}", process::id()));
    let folder_is_there = path.parent().is_none_or(|folder| fs::create_dir_all(folder).is_ok());
    if folder_is_there && fs::write(&beside, text).is_ok() && fs::rename(&beside, path).is_err() {
        drop(fs::remove_file(&beside));
    }
}

#[cfg(test)]
mod tests;
