//! Which components may serve, as far as that is said in the settings: `[trust]`, and the pins of single plugins.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Config;

/// `[trust]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trust {
    /// Only components with a good signature serve.
    pub require_signature: bool,
    /// Whose signatures are good; with several any one will do.
    pub keys: Vec<Key>,
}

/// A minisign public key: the second line of a `.pub` file.
#[derive(Clone)]
pub struct Key {
    text: String,
    key: minisign_verify::PublicKey,
}

/// The SHA-256 of the components that may serve as a plugin: one, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins(pub Vec<[u8; 32]>);

/// What is said of the components of one plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustRules {
    /// The only ones that may serve.
    pub pins: Option<Pins>,
    /// Where the pins stand, for people.
    pub pins_at: String,
    /// Only signed ones may serve.
    pub require_signature: bool,
    /// Where that is said.
    pub require_at: String,
    /// Whose signatures are good. With any, a signature that is there must be good.
    pub keys: Vec<Key>,
    /// Where the keys stand.
    pub keys_at: String,
}

impl Config {
    /// A component without a section that serves a job type of one is held against the pins of that: else a pin of `[plugins.a]` with
    /// `job_types = ["mail"]` would keep nobody from serving `mail` as `mail.wasm`.
    pub(super) fn trust_rules(&self, name: &str) -> TrustRules {
        let name = match self.plugins.contains_key(name) {
            true => name,
            false => self.plugin_of(name),
        };
        let pins = self.plugins.get(name).and_then(|own| own.sha256.clone());
        let place = |key| self.source.place(&["trust", key]);
        TrustRules {
            pins,
            pins_at: self.source.place(&["plugins", name, "sha256"]),
            require_signature: self.trust.require_signature,
            require_at: place("require_signature"),
            keys: self.trust.keys.clone(),
            keys_at: place("keys"),
        }
    }
}

impl Key {
    /// The key itself.
    pub fn key(&self) -> &minisign_verify::PublicKey {
        &self.key
    }
}

impl std::str::FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let key = minisign_verify::PublicKey::from_base64(text);
        // Never with the text: it may be the secret key.
        let key = key.map_err(|_| {
            "this is no minisign public key: that is the second line of the .pub file, which has 56 characters and begins with RW"
        })?;
        Ok(Self {
            text: text.to_owned(),
            key,
        })
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Pins {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hex = |pin: &[u8; 32]| pin.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.collect_seq(self.0.iter().map(hex as fn(&_) -> String))
    }
}

impl<'de> Deserialize<'de> for Pins {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Pins;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a SHA-256 in 64 hexadecimal digits, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pins, E> {
                Ok(Pins(vec![pin(text).map_err(E::custom)?]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Pins, A::Error> {
                let mut pins = Vec::new();
                while let Some(text) = list.next_element::<String>()? {
                    pins.push(pin(&text).map_err(de::Error::custom)?);
                }
                if pins.is_empty() {
                    return Err(de::Error::custom(
                        "the list of SHA-256 is empty, so nothing could serve: name one, or leave the key out",
                    ));
                }
                Ok(Pins(pins))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

fn pin(text: &str) -> Result<[u8; 32], String> {
    let wrong = || {
        format!(
            "`{text}` is no SHA-256 in 64 hexadecimal digits, such as `sha256sum NAME.wasm` prints"
        )
    };
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let mut pin = [0; 32];
    for (at, byte) in pin.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(pin)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("runner.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn pins_are_one_or_a_list_of_digests() {
        let digest = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";
        let rules = |text: &str| parse(text).unwrap().plugin("mail").trust;
        let one = rules(&format!("[plugins.mail]\nsha256 = '{digest}'\n"));
        assert_eq!(one.pins.as_ref().unwrap().0[0][..3], [1, 0x23, 0x45]);
        assert_eq!(
            one.pins_at,
            "`sha256` under `[plugins.mail]` (runner.toml line 2)"
        );
        let two = format!(
            "[plugins.mail]\nsha256 = ['{digest}', '{}']\n",
            "0".repeat(64)
        );
        assert_eq!(rules(&two).pins.unwrap().0[1], [0; 32]);
        assert_eq!(rules("").pins, None);
        // And back: `sha256sum` prints small letters.
        let written = toml::to_string(&parse(&two).unwrap()).unwrap();
        assert!(written.contains(&digest.to_lowercase()), "{written}");
        for bad in [
            "'abc'",
            "[]",
            &format!("'{}'", "é".repeat(32)),
            "7",
            "['g']",
        ] {
            let error = parse(&format!("[plugins.mail]\n\nsha256 = {bad}\n")).unwrap_err();
            assert!(error.starts_with("`runner.toml` line 3: "), "{error}");
            assert!(error.contains("SHA-256"), "{error}");
        }
    }

    #[test]
    fn keys_are_read_with_the_settings_and_never_shown_when_wrong() {
        let good = minisign::KeyPair::generate_unencrypted_keypair().unwrap();
        let good = good.pk.to_base64();
        let config = parse(&format!(
            "[trust]\nkeys = ['{good}']\nrequire_signature = true\n"
        ));
        assert_eq!(config.unwrap().trust.keys.len(), 1);
        let secret = "RWRTY0IyEf9rE7zGPL1xqkXuLq7";
        for bad in [
            secret,
            "",
            &good[1..],
            &format!("untrusted comment: x\\n{good}"),
        ] {
            let error = parse(&format!("[trust]\nkeys = [\n  \"{good}\",\n  \"{bad}\"]\n"));
            let error = error.unwrap_err();
            assert!(error.contains("no minisign public key"), "{error}");
            assert!(error.starts_with("`runner.toml` line "), "{error}");
            assert!(!error.contains(secret), "{error}");
        }
        let error = parse("[trust]\n\nrequire_signature = true\n").unwrap_err();
        assert!(
            error.starts_with("`runner.toml` line 3: `trust.require_signature`"),
            "{error}"
        );
    }
}
