//! What the HTTP policy must hold for any input, however it is spelled: no private address behind a public rule, no URL
//! that two readers understand differently. `PROPTEST_CASES` sets how many cases each property tries.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use piecework::policy::{AddressKind, Policy, Rule, Target, address_kind, destination};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use url::Host;

use AddressKind::{Metadata, Private, Public, Unusable};

/// What an address is: the longest prefix counts. Written from the registries, not from the code under test.
const V4: [(AddressKind, &str); 4] = [
    (Public, "0.0.0.0/0"),
    (
        Private,
        "127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10",
    ),
    (
        Metadata,
        "169.254.0.0/16 100.100.100.200/32 192.0.0.192/32 168.63.129.16/32",
    ),
    (
        Unusable,
        "0.0.0.0/8 192.0.0.0/24 192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 198.18.0.0/15 192.88.99.0/24 224.0.0.0/4 \
         240.0.0.0/4 255.255.255.255/32",
    ),
];

const V6: [(AddressKind, &str); 4] = [
    (
        Public,
        "2000::/3 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 2001::/32 2002::/16",
    ),
    (Private, "::1/128 fc00::/7 fec0::/10"),
    (
        Metadata,
        "fe80::/10 fd00:ec2::254/128 fd00:ec2::23/128 fd20:ce::254/128 fd00:c1::a9fe:a9fe/128 fd00:a9fe:a9fe::1/128 \
         fd00:42::42/128",
    ),
    (
        Unusable,
        "::/0 100::/64 2001::/23 2001:2::/48 2001:10::/28 2001:20::/28 2001:db8::/32 3fff::/20 5f00::/16 ff00::/8",
    ),
];

/// Where a form of IPv6 holds IPv4 addresses: prefix, how many bits lie to the right, whether inverted.
const CARRIERS: [(&str, u32, bool); 6] = [
    ("::ffff:0:0/96", 0, false),
    ("64:ff9b::/96", 0, false),
    ("64:ff9b:1::/48", 0, false),
    ("2001::/32", 64, false),
    ("2001::/32", 0, true),
    ("2002::/16", 80, false),
];

fn cidr(text: &str) -> (u128, u32) {
    let (address, length) = text.split_once('/').unwrap();
    let length: u32 = length.parse().unwrap();
    match address.parse().unwrap() {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), length),
        IpAddr::V6(v6) => (u128::from(v6), length),
    }
}

/// The networks of a table.
fn nets(table: &[(AddressKind, &'static str)]) -> Vec<(AddressKind, u128, u32)> {
    let all = table
        .iter()
        .flat_map(|(kind, nets)| nets.split_whitespace().map(|net| (*kind, cidr(net))));
    all.map(|(kind, (base, length))| (kind, base, length))
        .collect()
}

static NETS_V4: LazyLock<Vec<(AddressKind, u128, u32)>> = LazyLock::new(|| nets(&V4));
static NETS_V6: LazyLock<Vec<(AddressKind, u128, u32)>> = LazyLock::new(|| nets(&V6));

fn shares(address: u128, bits: u32, base: u128, length: u32) -> bool {
    (address ^ base).checked_shr(bits - length).unwrap_or(0) == 0
}

fn within(address: u128, net: &str) -> bool {
    let (base, length) = cidr(net);
    shares(address, 128, base, length)
}

fn longest(address: u128, bits: u32, nets: &[(AddressKind, u128, u32)]) -> AddressKind {
    let inside = nets
        .iter()
        .filter(|(_, base, length)| shares(address, bits, *base, *length));
    inside.max_by_key(|(_, _, length)| *length).unwrap().0
}

fn oracle_v4(address: u32) -> AddressKind {
    longest(u128::from(address), 32, &NETS_V4)
}

fn low_32(bits: u128) -> u32 {
    u32::try_from(bits & 0xffff_ffff).unwrap()
}

fn oracle(address: IpAddr) -> AddressKind {
    let bits = match address {
        IpAddr::V4(address) => return oracle_v4(address.into()),
        IpAddr::V6(address) => u128::from(address),
    };
    let mut kind = longest(bits, 128, &NETS_V6);
    for (net, shift, inverted) in CARRIERS {
        if within(bits, net) {
            let inner = low_32(bits >> shift);
            kind = kind.max(oracle_v4(if inverted { !inner } else { inner }));
        }
    }
    // ISATAP: two bits of the interface id are free.
    if (bits >> 32) & 0xfcff_ffff == 0x5efe {
        kind = kind.max(oracle_v4(low_32(bits)));
    }
    if within(bits, "64:ff9b:1::/48") {
        // RFC 6052 leaves bits 64 to 71 out: cut them away, then the address lies at bit 48, 56 or 64.
        let cut = (bits >> 64 << 64) | ((bits << 8) & u128::from(u64::MAX));
        for at in [48, 56, 64] {
            let inner = oracle_v4(low_32(cut >> (96 - at)));
            if inner != Unusable {
                kind = kind.max(inner);
            }
        }
    }
    kind
}

fn config() -> Config {
    Config {
        failure_persistence: None,
        // About a tenth is rejected: no fixed number must end a long run.
        max_local_rejects: u32::MAX,
        ..Config::default()
    }
}

fn rule(to: &str, private: bool) -> Rule {
    Rule {
        to: to.parse().unwrap(),
        methods: None,
        private,
        idempotency_key: false,
    }
}

/// An address in one of these networks, its edges as often as what lies between, or just outside.
fn address_in(nets: Vec<(AddressKind, u128, u32)>, bits: u32) -> impl Strategy<Value = u128> {
    let random = prop_oneof![2 => any::<u128>(), 1 => Just(0), 1 => Just(u128::MAX)];
    (select(nets), random, any::<bool>(), 0..8_u32).prop_map(
        move |((_, base, length), random, step, flip)| {
            let free = 128_u32 - bits + length;
            let host = if free == 128 {
                0
            } else {
                random << free >> free
            };
            let inside = base | host;
            // One step out of the network, or one flipped bit of its prefix, is where a mask of wrong length shows.
            let moved = match (step, flip) {
                (true, 0) => inside.wrapping_add(1),
                (true, 1) => inside.wrapping_sub(1),
                (true, 2) if length > 0 => inside ^ (1 << (bits - length)),
                _ => inside,
            };
            if bits == 32 {
                u128::from(low_32(moved))
            } else {
                moved
            }
        },
    )
}

fn closed_v4() -> impl Strategy<Value = Ipv4Addr> {
    address_in(NETS_V4[1..].to_vec(), 32)
        .prop_map(|bits| Ipv4Addr::from(low_32(bits)))
        .prop_filter("public", |address| oracle_v4((*address).into()) != Public)
}

/// An IPv6 address that carries this one, the rest of it random.
fn carried(v4: Ipv4Addr) -> impl Strategy<Value = Ipv6Addr> {
    let inner = u128::from(u32::from(v4));
    (0..12_usize, any::<u128>(), select(vec![0_u128, 1, 2, 3])).prop_map(
        move |(form, random, ug)| {
            let low = |bits: u32| random & ((1 << bits) - 1);
            Ipv6Addr::from(match form {
                0 => (0xffff << 32) | inner,
                // 0.0.0.1 would be `::1`, which is something else.
                1 if inner != 1 => inner,
                1 | 2 => (0x0064_ff9b << 96) | inner,
                3 => (0x0064_ff9b_0001 << 80) | inner,
                4 => (0x0064_ff9b_0001 << 80) | (low(80) >> 32 << 32) | inner,
                5 => (0x2002 << 112) | (inner << 80) | low(80),
                6 => (0x2001_0000 << 96) | (inner << 64) | low(64),
                7 => (0x2001_0000 << 96) | (low(96) >> 32 << 32) | (inner ^ 0xffff_ffff),
                // The local NAT64 with a /48, /56 or /64: the address leaves out bits 64 to 71. There an unusable one does
                // not count, since it is only a sign of another form.
                8..=10 if oracle_v4(v4.into()) != Unusable => {
                    let at = [48, 56, 64][form - 8];
                    let cut = (inner << (88 - at)) | low(88 - at);
                    (0x0064_ff9b_0001 << 80) | (cut >> 56 << 64) | (cut & ((1 << 56) - 1))
                }
                _ => (random >> 64 << 64) | (ug << 56) | (0x5efe << 32) | inner,
            })
        },
    )
}

/// A host that names this address, and whether it must be taken for it.
fn spelled(v4: Ipv4Addr) -> impl Strategy<Value = (String, bool)> {
    prop_oneof![3 => spelled_v4(v4), 2 => spelled_v6(v4)]
}

/// One to four numbers, each decimal, octal or hexadecimal, its characters in any width.
fn spelled_v4(v4: Ipv4Addr) -> impl Strategy<Value = (String, bool)> {
    let bits = u32::from(v4);
    let number = (0..3, 0..4_usize, any::<bool>());
    (
        proptest::collection::vec(number, 1..=4),
        words("  . 。 .."),
        proptest::collection::vec(0..12, 48),
        proptest::bool::weighted(0.2),
    )
        .prop_map(move |(numbers, end, widths, encode)| {
            let last = numbers.len() - 1;
            let parts: Vec<String> = numbers
                .iter()
                .enumerate()
                .map(|(index, (radix, zeros, upper))| {
                    let shift = 8 * u32::try_from(3 - index).unwrap();
                    let value = if index == last {
                        bits & u32::MAX
                            .checked_shr(8 * u32::try_from(last).unwrap())
                            .unwrap_or(0)
                    } else {
                        (bits >> shift) & 0xff
                    };
                    let zeros = "0".repeat(*zeros);
                    match (radix, upper) {
                        (0, _) => value.to_string(),
                        (1, _) => format!("0{zeros}{value:o}"),
                        (_, true) => format!("0X{zeros}{value:X}"),
                        (_, false) => format!("0x{zeros}{value:x}"),
                    }
                })
                .collect();
            let mut percent = false;
            let host: String = parts
                .join(".")
                .chars()
                .zip(widths.into_iter().chain(std::iter::repeat(11)))
                .map(|(c, width)| match (c, width) {
                    ('.', 0) => "。".to_owned(),
                    ('.', 1) => "．".to_owned(),
                    (_, 0 | 1) => char::from_u32(u32::from(c) + 0xfee0).unwrap().to_string(),
                    (_, 2) if c.is_ascii_digit() && c != '0' => {
                        char::from_u32(u32::from(c) - u32::from('1') + 0x2460)
                            .unwrap()
                            .to_string()
                    }
                    (_, 3..6) if encode => {
                        percent = true;
                        format!("%{:02X}", u32::from(c))
                    }
                    _ => c.to_string(),
                })
                .collect();
            (host + end, !percent && end != "..")
        })
}

/// The forms that hold an IPv4 address, compressed, in full, and with the dotted quad.
fn spelled_v6(v4: Ipv4Addr) -> impl Strategy<Value = (String, bool)> {
    (carried(v4), 0..5).prop_map(move |(address, form)| {
        let groups = address.segments().map(|group| format!("{group:04x}"));
        let text = match form {
            0 => address.to_string(),
            1 => groups.join(":"),
            2 => groups.join(":").to_uppercase(),
            3 => {
                let [.., a, b, c, d] = address.octets();
                format!("{}:{a}.{b}.{c}.{d}", groups[..6].join(":"))
            }
            _ => return (format!("[{address}%25eth0]"), false),
        };
        (format!("[{text}]"), true)
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn kinds_agree_with_the_registries(
        v4 in address_in(NETS_V4.clone(), 32),
        v6 in prop_oneof![address_in(NETS_V6.clone(), 128), any::<u128>()],
        carried in any::<u32>().prop_flat_map(|bits| carried(bits.into())),
    ) {
        let v4 = IpAddr::from(Ipv4Addr::from(low_32(v4)));
        for address in [v4, Ipv6Addr::from(v6).into(), carried.into()] {
            prop_assert_eq!(address_kind(address), oracle(address), "{}", address);
        }
    }

    #[test]
    fn no_spelling_of_a_closed_address_passes_a_public_rule(
        (v4, (host, plain)) in closed_v4().prop_flat_map(|v4| (Just(v4), spelled(v4))),
        scheme in words("http https HTTP"),
        tail in words(" / :8080/x ?q #f :80"),
    ) {
        let url = format!("{scheme}://{host}{tail}");
        let Ok((parsed, to)) = destination(&url) else {
            prop_assert!(!plain, "`{}` is refused", url);
            return Ok(());
        };
        let named = match &to.host {
            Host::Ipv4(address) => IpAddr::V4(*address),
            Host::Ipv6(address) => IpAddr::V6(*address),
            Host::Domain(name) => return Err(TestCaseError::fail(format!("`{url}` is the name {name}"))),
        };
        prop_assert!(parsed.host().is_some_and(|host| host == to.host));
        if let IpAddr::V4(named) = named {
            prop_assert_eq!(named, v4);
        }
        let kind = oracle(named);
        prop_assert!(kind >= oracle(v4.into()), "{} is {:?}", url, kind);
        for target in ["*".to_owned(), to.to_string()] {
            for address in [named, named.to_canonical(), v4.into()] {
                prop_assert!(rule(&target, false).permits(&to, address).is_err(), "{} to {}", url, address);
            }
        }
        prop_assert_eq!(rule("*", true).permits(&to, named).is_ok(), kind == Private);
        let named_by_rule = rule(&to.to_string(), true).permits(&to, named).is_ok();
        prop_assert_eq!(named_by_rule, kind == Private || kind == Metadata);
    }

    #[test]
    fn no_ipv6_address_opens_the_ipv4_address_inside(
        (v4, v6) in closed_v4().prop_flat_map(|v4| (Just(v4), carried(v4))),
    ) {
        let kind = address_kind(v6.into());
        prop_assert!(kind >= oracle(v4.into()), "{} carries {} and is {:?}", v6, v4, kind);
        prop_assert!(kind != Public);
    }

    #[test]
    fn targets_are_read_as_they_are_shown(text in target()) {
        let target: Target = text.parse().map_err(|e| TestCaseError::fail(format!("`{text}`: {e}")))?;
        prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target.clone()));
        if !text.contains('*') {
            let (_, to) = destination(&text).unwrap();
            prop_assert!(target.matches(&to));
            prop_assert_eq!(target.to_string(), to.to_string());
        }
        let policy = Policy(vec![rule(&text, false), rule(&text, true)]);
        let file = BTreeMap::from([("allow", policy.clone())]);
        let written = toml::to_string(&file).unwrap();
        let read: File = toml::from_str(&written).unwrap();
        prop_assert_eq!(&read["allow"], &policy);
    }

    #[test]
    fn a_wildcard_covers_whole_labels_only(
        suffix in "[a-z][a-z0-9]{0,8}(\\.[a-z]{2,6}){1,2}",
        // No two hyphens in a row: `xn--` would have to be punycode.
        start in "[a-z0-9_](-?[a-z0-9]){0,6}(\\.[a-z0-9]{1,3}){0,2}",
        end in "[a-z]{2,5}(\\.[a-z]{2,5}){0,2}",
    ) {
        let target: Target = format!("https://*.{suffix}").parse().unwrap();
        let covers = |host: &str| target.matches(&destination(&format!("https://{host}/")).unwrap().1);
        let below = format!("{start}.{suffix}");
        let upper = below.to_uppercase();
        let dotted = format!("{below}.");
        for host in [&below, &upper, &dotted] {
            prop_assert!(covers(host), "{}", host);
        }
        for host in [
            suffix.clone(),
            format!("{suffix}."),
            format!("{start}{suffix}"),
            format!("{start}-{suffix}"),
            format!("{suffix}.{end}x.invalid"),
            format!("{below}.{end}x.invalid"),
            format!("{start}.x{suffix}"),
        ] {
            prop_assert!(!covers(&host), "{}", host);
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(
        any in any::<String>(),
        near in proptest::collection::vec(piece(), 0..12),
        method in any::<String>(),
    ) {
        let near = near.concat();
        for text in [&any, &near, &format!("https://{any}"), &format!("https://*.{near}")] {
            if let Ok((parsed, to)) = destination(text) {
                prop_assert!(!parsed.as_str().contains('@') || parsed.username().is_empty());
                let _ = Policy(vec![rule("*", true)]).find(&method, &to);
                // What is sent is understood like what was written.
                prop_assert_eq!(destination(parsed.as_str()), Ok((parsed, to)));
            }
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
            let quoted = toml::Value::String(text.clone());
            let _ = toml::from_str::<File>(&format!("allow = [{quoted}, {{ to = '*', methods = [{quoted}] }}]"));
            let _ = toml::from_str::<File>(&format!("allow = [{text}]"));
        }
    }
}

/// As in the settings.
type File = BTreeMap<String, Policy>;

/// A target that is right, in many spellings.
fn target() -> impl Strategy<Value = String> {
    let name = "[a-zA-Z0-9_]{1,8}(-[a-z0-9]{1,4})?(\\.[a-z][a-z0-9]{1,6}){1,3}\\.?";
    let host = prop_oneof![
        Just("*".to_owned()),
        name,
        name.prop_map(|name| format!("*.{name}")),
        "(bücher|ＥＸＡＭＰＬＥ|straße|xn--bcher-kva)\\.(example|рф)",
        any::<Ipv4Addr>()
            .prop_flat_map(spelled_v4)
            .prop_filter("refused", |(_, plain)| *plain)
            .prop_map(|(host, _)| host),
        any::<Ipv6Addr>().prop_map(|address| format!("[{address}]")),
    ];
    let port = prop_oneof![
        Just(String::new()),
        Just(":*".to_owned()),
        (1..=u16::MAX).prop_map(|port| format!(":{port}"))
    ];
    let whole = (words("https http HTTPS"), host, port)
        .prop_map(|(scheme, host, port)| format!("{scheme}://{host}{port}"));
    prop_oneof![1 => Just("*".to_owned()), 19 => whole]
}

/// One of these words; a space in front adds the empty one.
fn words(text: &'static str) -> impl Strategy<Value = &'static str> {
    select(text.split(' ').collect::<Vec<_>>())
}

/// A piece of a URL, or of what only looks like one.
fn piece() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        words(
            "https http ftp : / // :// \\ @ ? # . .. * *. [ ] :: % %2e %40 %00 :443 :0 :99999 - _ ~ 1 a"
        ),
        words(
            "0x 0x7f 127.0.0.1 ::1 ffff example .com COM api.example.com xn-- xn--bcher-kva bücher"
        ),
        words("。 ＠ ／ ß ℀ 𝟏 é e\u{301} א \u{ad} \u{200d} \u{202e} \t \n \0 \u{a0}"),
        Just(" "),
    ]
}

/// URLs of which some are covered by the allow list below, and many nearly.
fn odd_url() -> impl Strategy<Value = String> {
    let scheme = prop_oneof![
        12 => Just("https://"),
        5 => words("HTTPS:// http:// https:/ https: https:/// https:\\\\ \thttps:// https://https://"),
    ];
    let user = prop_oneof![
        12 => Just(""),
        3 => words("@ u@ :pw@ api.example.com@ a.example.com:443@ evil.org#@ evil.org?@ evil.org\\@ evil.org/@"),
    ];
    let start = prop_oneof![
        1 => words("a. api. b.c."),
        1 => words(" a. api. API. b.c. bücher. ａ. a。 xn--bcher-kva. evil- evil evil.org. a.. %61. -. _x. 1. 0x7f. ."),
    ];
    let middle = prop_oneof![
        8 => Just("example.com"),
        2 => words("EXAMPLE.com example.COM. example。com ｅxample.com exam\u{ad}ple.com example%2ecom example.com.."),
        2 => words("example.com.evil.org example.comevil.org example.com%2f.evil.org example.com／.evil.org"),
        1 => words("example.com\\.evil.org example.org 127.0.0.1"),
    ];
    let port = prop_oneof![
        8 => Just(""),
        4 => words(":443 :8443 :0 : :99999 :80 :0443 :443@evil.org :443:443"),
    ];
    let tail = prop_oneof![
        words(" / /x /@evil.org ?@evil.org #@evil.org /x?y#z \\@evil.org /..//../x //evil.org/ /ü"),
        words("/%2e%2e/%00 ?https://evil.org /a\\b /\u{a0} \n /a:b@c ?/@ #/"),
    ];
    let stray = proptest::option::weighted(0.3, (any::<prop::sample::Index>(), piece()));
    (scheme, user, start, middle, port, tail, stray).prop_map(
        |(scheme, user, start, middle, port, tail, stray)| {
            let mut url = [scheme, user, start, middle, port, tail].concat();
            if let Some((index, piece)) = stray {
                let places: Vec<usize> = url.char_indices().map(|(at, _)| at).collect();
                url.insert_str(places[index.index(places.len())], piece);
            }
            url
        },
    )
}

/// Full width, other dots, soft hyphens and capitals, undone by hand.
fn plain(host: &str) -> String {
    let host: String = host
        .chars()
        .filter(|c| *c != '\u{ad}')
        .map(|c| match c {
            '。' | '．' | '｡' => '.',
            '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap(),
            _ => c,
        })
        .flat_map(char::to_lowercase)
        .collect();
    host.strip_suffix('.').unwrap_or(&host).to_owned()
}

#[test]
fn a_covered_url_goes_where_the_plainest_reader_sees_it_go() {
    let policy = Policy(vec![
        rule("https://*.example.com", false),
        rule("https://api.example.com:8443", false),
    ]);
    let (tried, covered) = (Cell::new(0_u32), Cell::new(0_u32));
    let mut runner = TestRunner::new(config());
    let result = runner.run(&odd_url(), |url| {
        tried.set(tried.get() + 1);
        let Ok((parsed, to)) = destination(&url) else {
            return Ok(());
        };
        if policy.find("GET", &to).is_err() {
            return Ok(());
        }
        covered.set(covered.get() + 1);
        let (scheme, rest) = url.split_once("://").unwrap();
        prop_assert!(scheme.eq_ignore_ascii_case("https"), "{}", url);
        let authority = rest.split(['/', '?', '#']).next().unwrap();
        prop_assert!(!authority.contains(['@', '\\', '%', '[']), "{}", url);
        let (host, port) = authority.split_once(':').unwrap_or((authority, "443"));
        let (host, port) = (plain(host), port.parse::<u16>().unwrap());
        let fits = match port {
            443 => host.ends_with(".example.com") && host.len() > ".example.com".len(),
            8443 => host == "api.example.com",
            _ => false,
        };
        prop_assert!(fits, "`{}` goes to {} {}", url, host, port);
        prop_assert_eq!(to.port, port);
        let Host::Domain(name) = &to.host else {
            return Err(TestCaseError::fail(format!("`{url}` goes to an address")));
        };
        prop_assert!(
            !host.is_ascii() || *name == host,
            "`{}` goes to {}",
            url,
            name
        );
        prop_assert_eq!(parsed.host_str(), Some(name.as_str()));
        prop_assert_eq!(parsed.scheme(), "https");
        prop_assert_eq!(parsed.port_or_known_default(), Some(port));
        prop_assert!(
            parsed.username().is_empty()
                && parsed.password().is_none()
                && parsed.fragment().is_none()
        );
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (tried, covered) = (tried.get(), covered.get());
    assert!(
        tried < 256 || covered * 40 >= tried,
        "only {covered} of {tried} URLs were covered: the property says little"
    );
}
