//! The templates, SDKs and the world are part of the program (`src/scaffold.rs`): a new file in them builds it anew, which the
//! macro that embeds them cannot ask for.

fn main() {
    for folder in ["templates", "sdk", "wit"] {
        println!("cargo::rerun-if-changed={folder}");
    }
}
