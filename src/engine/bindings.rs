//! The world `piecework:handler@0.1.0` as Rust. Released worlds stay linked for ever; each newer one gets a file beside this.

wasmtime::component::bindgen!({
    path: "wit",
    world: "handler",
    imports: {
        "piecework:handler/http.send": async | trappable,
        "piecework:handler/checkpoint": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});
