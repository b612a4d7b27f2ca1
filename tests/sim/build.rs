//! Compiles the entropy of the simulation and links it into the program, and not into the library.

fn main() {
    println!("cargo::rerun-if-changed=entropy.c");
    for object in cc::Build::new().file("entropy.c").compile_intermediates() {
        println!("cargo::rustc-link-arg-bins={}", object.display());
    }
}
