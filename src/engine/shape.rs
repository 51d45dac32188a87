//! The outside of a component: what it imports and exports, read without compiling it. So a component that cannot serve is
//! refused in milliseconds, whatever its size, and one look names everything that it lacks.

use serde::Serialize;
use wasmparser::component_types::ComponentEntityType;
use wasmparser::types::TypesRef;
use wasmparser::{BinaryReaderError, Parser, Payload, ValidPayload, Validator, WasmFeatures};

use super::refusal::{Lack, Refusal, cut_off, recognise};
use super::worlds;

/// Most types, imports, exports and instances, in all modules of a component together: they are kept while it is read, in this process, at
/// up to 500 bytes for 13 of the file. A language runtime has some thousands.
const MAX_ITEMS: u64 = 200_000;

/// What a component imports and exports.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shape {
    /// What it wants of the host.
    pub imports: Vec<Item>,
    /// What it offers to the host.
    pub exports: Vec<Item>,
    /// Whether there is any code in it.
    #[serde(skip)]
    code: bool,
}

/// One import or export.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// `run`, or `piecework:handler/jobs@0.1.0`.
    pub name: String,
    /// `function`, `interface`, `type`, `component`, `module` or `value`.
    pub kind: &'static str,
    /// The functions of an interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

impl Shape {
    /// Reads the bytes of a component. What is inside of functions is not looked at.
    ///
    /// # Errors
    /// Says what the bytes are instead of a component, and what to do.
    pub fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        recognise(bytes)?;
        // All that the format knows: what the engine takes of it is the engine's to say.
        let mut validator = Validator::new_with_features(WasmFeatures::all());
        let (mut depth, mut code, mut size) = (0_usize, false, 0_u64);
        let (mut imports, mut exports) = (Vec::new(), Vec::new());
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload.map_err(|error| invalid(&error))?;
            size += declares(&payload);
            if size > MAX_ITEMS {
                return Err(too_many());
            }
            if let Payload::Version { .. } = &payload {
                depth += 1;
            } else if let Payload::End(_) = &payload {
                depth = depth.saturating_sub(1);
            } else if let Payload::ModuleSection { .. } = &payload {
                code = true;
            } else if depth == 1
                && let Payload::ComponentImportSection(section) = &payload
            {
                for import in section.clone() {
                    imports.push(import.map_err(|error| invalid(&error))?.name.name);
                }
            } else if depth == 1
                && let Payload::ComponentExportSection(section) = &payload
            {
                for export in section.clone() {
                    exports.push(export.map_err(|error| invalid(&error))?.name.name);
                }
            }
            let seen = validator
                .payload(&payload)
                .map_err(|error| invalid(&error))?;
            if let (ValidPayload::End(types), 0) = (seen, depth) {
                let types = types.as_ref();
                return Ok(Self {
                    imports: items(&imports, types, |name| {
                        types.component_item_for_import(name).map(|item| item.ty)
                    }),
                    exports: items(&exports, types, |name| {
                        types.component_item_for_export(name).map(|item| item.ty)
                    }),
                    code,
                });
            }
        }
        Err(cut_off())
    }

    /// The released world that it was built for, as `piecework:handler@0.1.0`; none when it imports nothing of one.
    pub fn world(&self) -> Option<String> {
        worlds::of(self).map(worlds::World::name)
    }

    /// The imports that this host cannot satisfy.
    pub fn lacks(&self) -> Vec<Lack> {
        self.imports.iter().filter_map(worlds::lack).collect()
    }

    /// Holds imports and exports against what is offered.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let kinds = |kind| self.exports.iter().filter(move |item| item.kind == kind);
        let types = kinds("type").count() + kinds("component").count();
        if !self.code && types > 0 && types == self.exports.len() {
            return Err(Refusal::new(
                "it is a WIT package: types alone, without code",
                "build a handler against it for the target wasm32-wasip2 and give the .wasm that comes of it",
            ));
        }
        let lacks = self.lacks();
        if !lacks.is_empty() {
            return Err(worlds::refuse(lacks));
        }
        worlds::check_exports(&self.exports)
    }
}

fn items<'a>(
    names: &[&str],
    types: TypesRef<'a>,
    find: impl Fn(&str) -> Option<ComponentEntityType>,
) -> Vec<Item> {
    names
        .iter()
        .map(|name| {
            let mut functions = Vec::new();
            let kind = match find(name) {
                Some(ComponentEntityType::Func(_)) => "function",
                Some(ComponentEntityType::Instance(id)) => {
                    let members = types.get(id).into_iter().flat_map(|inside| &inside.exports);
                    functions.extend(
                        members
                            .filter(|(_, item)| matches!(item.ty, ComponentEntityType::Func(_)))
                            .map(|(name, _)| name.clone()),
                    );
                    "interface"
                }
                Some(ComponentEntityType::Type { .. }) => "type",
                Some(ComponentEntityType::Component(_)) => "component",
                Some(ComponentEntityType::Module(_)) => "module",
                Some(ComponentEntityType::Value(_)) | None => "value",
            };
            Item {
                name: (*name).to_owned(),
                kind,
                functions,
            }
        })
        .collect()
}

/// How many things that are kept a section says it has.
fn declares(payload: &Payload<'_>) -> u64 {
    let count = if let Payload::TypeSection(section) = payload {
        section.count()
    } else if let Payload::ImportSection(section) = payload {
        section.count()
    } else if let Payload::ExportSection(section) = payload {
        section.count()
    } else if let Payload::GlobalSection(section) = payload {
        section.count()
    } else if let Payload::TagSection(section) = payload {
        section.count()
    } else if let Payload::InstanceSection(section) = payload {
        section.count()
    } else if let Payload::CoreTypeSection(section) = payload {
        section.count()
    } else if let Payload::ComponentTypeSection(section) = payload {
        section.count()
    } else if let Payload::ComponentInstanceSection(section) = payload {
        section.count()
    } else if let Payload::ComponentAliasSection(section) = payload {
        section.count()
    } else if let Payload::ComponentCanonicalSection(section) = payload {
        section.count()
    } else if let Payload::ComponentImportSection(section) = payload {
        section.count()
    } else if let Payload::ComponentExportSection(section) = payload {
        section.count()
    } else {
        0
    };
    u64::from(count)
}

fn too_many() -> Refusal {
    Refusal::new(
        format!("it declares more than {MAX_ITEMS} types, imports, exports, globals and instances"),
        "build it smaller: language runtimes have a few thousand",
    )
}

fn invalid(error: &BinaryReaderError) -> Refusal {
    let text = error.message();
    if text.contains("unexpected end") {
        return cut_off();
    }
    Refusal::new(
        format!(
            "it is no valid component: {text} (at byte {})",
            error.offset()
        ),
        "build it again; if the file was copied, compare its checksum with that of the original",
    )
}
