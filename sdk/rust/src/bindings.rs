//! The world, as wit-bindgen makes it of `wit/`.
#![allow(missing_docs, reason = "the comments are in wit/world.wit")]

wit_bindgen::generate!({
    path: "wit",
    world: "handler",
    generate_all,
    pub_export_macro: true,
});
