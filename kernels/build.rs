//! Compiles the kernels ahead for the architectures listed here when `nvcc` is at hand (`NVCC`,
//! `CUDA_HOME`, `PATH`); without it the sources are embedded alone and are compiled at first start.

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
    for name in ["NVCC", "CUDA_HOME", "PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut sources: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("kernels/cu is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|it| it == "cu"))
        .collect();
    sources.sort();

    let mut images = String::new();
    if let Some(nvcc) = find_nvcc() {
        let jobs: Vec<(&Path, &str)> = sources
            .iter()
            .flat_map(|source| ARCHITECTURES.iter().map(move |it| (source.as_path(), *it)))
            .collect();
        let queue = Mutex::new(jobs.iter());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().expect("no job panics under the lock").next();
                        let Some((source, architecture)) = next else { return };
                        let name = source.file_stem().expect("a file").to_string_lossy();
                        let image = out.join(format!("{name}.{architecture}.cubin"));
                        compile(&nvcc, source, architecture, &image);
                    }
                });
            }
        });
        for (source, architecture) in &jobs {
            let name = source.file_stem().expect("a file").to_string_lossy();
            let image = out.join(format!("{name}.{architecture}.cubin"));
            let image = image.display();
            images += &format!("({name:?}, {architecture:?}, include_bytes!({image:?})),\n");
        }
    }
    let table = format!("pub(super) const IMAGES: &[(&str, &str, &[u8])] = &[\n{images}];\n");
    fs::write(out.join("images.rs"), table).expect("the build folder is writable");
}
