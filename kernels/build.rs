//! Compiles the kernels ahead for the architectures listed here, or in `CUDA_ARCHITECTURES`, when
//! `nvcc` is at hand (`NVCC`, `CUDA_HOME`, `PATH`); without it the sources are embedded alone, and
//! compiled at first start.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

/// Ampere and Ada run the first, Hopper the second, Blackwell the others.
const ARCHITECTURES: &[&str] = &["80", "90a", "100", "120"];

fn find_nvcc() -> Option<PathBuf> {
    if let Some(path) = env::var_os("NVCC") {
        return Some(path.into());
    }
    let home = env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = home.into_iter().chain(env::split_paths(&path));
    folders.map(|folder| folder.join("nvcc")).find(|it| it.is_file())
}

fn architectures() -> Vec<String> {
    match env::var_os("CUDA_ARCHITECTURES") {
        Some(some) => some.to_string_lossy().split(',').map(str::to_owned).collect(),
        None => ARCHITECTURES.iter().map(|it| (*it).to_owned()).collect(),
    }
}

/// What an image is made of: its source and all headers, by the compiler that is there.
fn key(nvcc: &Path, source: &Path, headers: &[PathBuf]) -> String {
    let mut hasher = DefaultHasher::new();
    nvcc.hash(&mut hasher);
    for path in headers.iter().map(PathBuf::as_path).chain([source]) {
        fs::read(path).expect("it was just listed").hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

fn compile(nvcc: &Path, source: &Path, architecture: &str, image: &Path) {
    let target = format!("arch=compute_{architecture},code=sm_{architecture}");
    let output = Command::new(nvcc)
        .args(["-std=c++17", "-O3", "-cubin", "-gencode", &target, "-o"])
        .args([image, source])
        .output()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", nvcc.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} for {architecture}:\n{errors}", source.display());
}

fn main() {
    let folder =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("cu");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for name in ["NVCC", "CUDA_HOME", "CUDA_ARCHITECTURES", "PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("kernels/cu is there")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    let is = |extension: &str, path: &PathBuf| path.extension().is_some_and(|it| it == extension);
    let sources: Vec<PathBuf> = files.iter().filter(|it| is("cu", it)).cloned().collect();
    let headers: Vec<PathBuf> = files.iter().filter(|it| is("cuh", it)).cloned().collect();

    let mut images = String::new();
    if let Some(nvcc) = find_nvcc() {
        let architectures = architectures();
        let mut jobs = Vec::new();
        for source in &sources {
            let name = source.file_stem().expect("a file").to_string_lossy();
            let key = key(&nvcc, source, &headers);
            for architecture in &architectures {
                let image = out.join(format!("{name}.{architecture}.{key}.cubin"));
                let path = image.display();
                images += &format!("({name:?}, {architecture:?}, include_bytes!({path:?})),\n");
                jobs.push((source, architecture, image));
            }
        }
        // One that is there was made of the same.
        jobs.retain(|(_, _, image)| !image.is_file());
        let queue = Mutex::new(jobs.iter());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().expect("no job panics under the lock").next();
                        let Some((source, architecture, image)) = next else { return };
                        let beside = image.with_extension("part");
                        compile(&nvcc, source, architecture, &beside);
                        fs::rename(&beside, image).expect("the build folder is writable");
                    }
                });
            }
        });
    }
    let table = format!("pub(super) const IMAGES: &[(&str, &str, &[u8])] = &[\n{images}];\n");
    fs::write(out.join("images.rs"), table).expect("the build folder is writable");
}
