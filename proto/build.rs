//! Compiles the .proto files with protox, a protobuf compiler in Rust, so that no `protoc` has to be installed.
use std::error::Error;

const FILES: &[&str] = &[
    "universe/workload/v1/workload.proto",
    "universe/workload/v1/workload_rule.proto",
    "universe/admin/workload/v1/admin_workload_rule.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=universe");
    let descriptors = protox::compile(FILES, ["."])?;
    // Beside the code, for reflection.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("universe.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
