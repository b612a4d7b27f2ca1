//! Compiles the kubelet's interfaces with protox, a protobuf compiler in Rust, so that no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["proto/registration.proto", "proto/dra.proto", "proto/health.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // The tests call the plugin as the kubelet does.
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
