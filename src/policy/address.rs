//! What an IP address is, from the registries of special addresses (RFC 6890 and later). An IPv6 address that carries an
//! IPv4 address is never more open than the one inside: a translator or a tunnel would deliver there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use AddressKind::{Metadata, Private, Public, Unusable};

/// What an address is; each kind is less open than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressKind {
    /// On the internet.
    Public,
    /// Of this machine or an inner network: loopback, RFC 1918, carrier NAT, unique-local.
    Private,
    /// Link-local, where clouds give credentials to whoever asks, and the other addresses known for that.
    Metadata,
    /// Nothing that a connection could go to: multicast, documentation, reserved and the like.
    Unusable,
}

impl AddressKind {
    /// One word for messages: `public`, `private`, `metadata`, `unusable`.
    pub fn name(self) -> &'static str {
        match self {
            Public => "public",
            Private => "private",
            Metadata => "metadata",
            Unusable => "unusable",
        }
    }
}

/// Single IPv4 addresses outside 169.254/16 at which clouds serve metadata or take orders.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle, classic
    Ipv4Addr::new(168, 63, 129, 16),   // Azure
];

/// The same in IPv6, outside `fe80::/10`.
const METADATA_V6: [Ipv6Addr; 6] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // AWS
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // AWS, credentials of pods
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // Oracle
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), // Linode
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),   // Scaleway
];

/// What an address is.
pub fn address_kind(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    }
}

fn v4(address: Ipv4Addr) -> AddressKind {
    if METADATA_V4.contains(&address) {
        return Metadata;
    }
    match address.octets() {
        [169, 254, ..] => Metadata,
        [127, ..] | [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Private,
        [100, 64..=127, ..] => Private, // carrier NAT
        [0, ..] => Unusable,            // this network
        [192, 0, 0, _] => Unusable,     // protocol assignments
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Unusable, // documentation
        [192, 88, 99, _] => Unusable,   // relays of 6to4
        [198, 18..=19, ..] => Unusable, // benchmarks
        [224..=255, ..] => Unusable,    // multicast, reserved, broadcast
        _ => Public,
    }
}

fn v6(address: Ipv6Addr) -> AddressKind {
    let [.., a, b, c, d] = address.octets();
    let last = v4(Ipv4Addr::new(a, b, c, d));
    match address.segments() {
        // Mapped, and the two prefixes of NAT64: they are the IPv4 address.
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => last,
        [0x64, 0xff9b, 1, ..] => last.max(shorter_nat64(address.octets())),
        // Tunnels: no more open than what carries, and what is carried.
        [.., 0x0000 | 0x0100 | 0x0200 | 0x0300, 0x5efe, _, _] => plain_v6(address).max(last), // ISATAP
        _ => plain_v6(address),
    }
}

/// All but the forms that hold an IPv4 address in their last 32 bits.
fn plain_v6(address: Ipv6Addr) -> AddressKind {
    if METADATA_V6.contains(&address) {
        return Metadata;
    }
    let octets = address.octets();
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Private,
        [0xfc00..=0xfdff, ..] => Private,  // unique-local
        [0xfe80..=0xfebf, ..] => Metadata, // link-local
        [0xfec0..=0xfeff, ..] => Private,  // site-local
        [0x2001, 0, ..] => teredo(octets),
        [0x2001, 0..=0x1ff, ..] => Unusable, // protocol assignments: benchmarks, ORCHID
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Unusable, // documentation
        [0x2002, ..] => v4(inner(octets, [2, 3, 4, 5])), // 6to4
        [0x2000..=0x3fff, ..] => Public,
        // What is not given out: unspecified, v4-compatible, discard, 5f00::/16, multicast and all the rest.
        _ => Unusable,
    }
}

/// Teredo: bits 32 to 63 are its server, the last 32 its client, inverted.
fn teredo(octets: [u8; 16]) -> AddressKind {
    let server = inner(octets, [4, 5, 6, 7]);
    let client = inner(octets.map(|octet| !octet), [12, 13, 14, 15]);
    v4(server).max(v4(client))
}

/// The prefix for local NAT64 is a /48, in which an operator may choose a /48, /56, /64 or /96, and the shorter ones hold
/// the address elsewhere (RFC 6052, section 2.2). What is private there is private; what is unusable there is only a sign
/// that the form is another.
fn shorter_nat64(octets: [u8; 16]) -> AddressKind {
    [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12]]
        .into_iter()
        .map(|at| v4(inner(octets, at)))
        .filter(|kind| *kind != Unusable)
        .max()
        .unwrap_or(Public)
}

fn inner(octets: [u8; 16], at: [usize; 4]) -> Ipv4Addr {
    Ipv4Addr::from(at.map(|index| octets[index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(table: &[(AddressKind, &[&str])]) {
        for (kind, addresses) in table {
            for address in *addresses {
                assert_eq!(address_kind(address.parse().unwrap()), *kind, "{address}");
            }
        }
    }

    #[test]
    fn ipv4_addresses_have_their_kind_up_to_the_edges() {
        check(&[
            (
                Public,
                &[
                    "1.0.0.0",
                    "8.8.8.8",
                    "9.255.255.255",
                    "11.0.0.0",
                    "100.63.255.255",
                    "100.128.0.0",
                    "126.255.255.255",
                    "128.0.0.0",
                    "169.253.255.255",
                    "169.255.0.0",
                    "172.15.255.255",
                    "172.32.0.0",
                    "192.0.1.0",
                    "192.88.98.255",
                    "192.88.100.0",
                    "192.167.255.255",
                    "192.169.0.0",
                    "198.17.255.255",
                    "198.20.0.0",
                    "198.51.99.255",
                    "203.0.114.0",
                    "223.255.255.255",
                    "168.63.129.15",
                    "168.63.129.17",
                ],
            ),
            (
                Private,
                &[
                    "127.0.0.1",
                    "127.255.255.255",
                    "10.0.0.0",
                    "10.255.255.255",
                    "172.16.0.0",
                    "172.31.255.255",
                    "192.168.0.0",
                    "192.168.255.255",
                    "100.64.0.0",
                    "100.127.255.255",
                    "100.100.100.199",
                    "100.100.100.201",
                ],
            ),
            (
                Metadata,
                &[
                    "169.254.0.0",
                    "169.254.169.254",
                    "169.254.255.255",
                    "100.100.100.200",
                    "192.0.0.192",
                    "168.63.129.16",
                ],
            ),
            (
                Unusable,
                &[
                    "0.0.0.0",
                    "0.255.255.255",
                    "192.0.0.0",
                    "192.0.0.9",
                    "192.0.0.255",
                    "192.0.2.0",
                    "192.0.2.255",
                    "192.88.99.1",
                    "198.18.0.0",
                    "198.19.255.255",
                    "198.51.100.7",
                    "203.0.113.9",
                    "224.0.0.0",
                    "239.255.255.255",
                    "240.0.0.0",
                    "255.255.255.255",
                ],
            ),
        ]);
    }

    #[test]
    fn ipv6_addresses_have_their_kind_up_to_the_edges() {
        check(&[
            (
                Public,
                &[
                    "2000::",
                    "2001:200::1",
                    "2001:4860:4860::8888",
                    "2001:db7:ffff::",
                    "2001:db9::",
                    "2003::1",
                    "2606:4700::1111",
                    "3ffe::1",
                    "3fff:1000::",
                    "2a00:1450::5efd:a00:1",
                ],
            ),
            (
                Private,
                &[
                    "::1",
                    "fc00::",
                    "fd00::5",
                    "fdff:ffff::",
                    "fec0::",
                    "feff:ffff::1",
                ],
            ),
            (
                Metadata,
                &[
                    "fe80::",
                    "fe80::1",
                    "febf:ffff::",
                    "fd00:ec2::254",
                    "fd00:ec2::23",
                    "fd20:ce::254",
                    "fd00:c1::a9fe:a9fe",
                    "fd00:a9fe:a9fe::1",
                    "fd00:42::42",
                ],
            ),
            (
                Unusable,
                &[
                    "::",
                    "::2",
                    "::8.8.8.8",
                    "::127.0.0.1",
                    "::fffe:8.8.8.8",
                    "::ffff:0:8.8.8.8",
                    "64:ff9a::1",
                    "64:ff9b:0:1::8.8.8.8",
                    "64:ff9b:2::8.8.8.8",
                    "100::1",
                    "1fff:ffff::",
                    "2001:1::1",
                    "2001:2::1",
                    "2001:10::1",
                    "2001:20::1",
                    "2001:2f:ffff::",
                    "2001:1ff::",
                    "2001:db8::1",
                    "2001:db8:ffff::",
                    "3fff::",
                    "3fff:fff:ffff::",
                    "4000::",
                    "5f00::1",
                    "fbff:ffff::",
                    "fe00::",
                    "fe7f:ffff::",
                    "ff00::",
                    "ff02::1",
                    "ffff::",
                ],
            ),
        ]);
    }

    #[test]
    fn an_ipv4_address_inside_is_not_opened_by_its_cover() {
        check(&[
            (
                Public,
                &[
                    "::ffff:8.8.8.8",
                    "64:ff9b::8.8.8.8",
                    "64:ff9b:1::8.8.8.8",
                    "64:ff9b:1:abcd::8.8.8.8",
                    "2002:808:808::1",
                    // Server 8.8.8.8, client 8.8.4.4.
                    "2001:0:808:808::f7f7:fbfb",
                    "2606:4700::5efe:8.8.8.8",
                    "2606:4700::200:5efe:8.8.8.8",
                ],
            ),
            (
                Private,
                &[
                    "::ffff:127.0.0.1",
                    "::ffff:10.0.0.1",
                    "64:ff9b::192.168.0.1",
                    "64:ff9b:1::10.0.0.1",
                    // A /48, a /56 and a /64 of the local prefix with a private address, a public one behind it.
                    "64:ff9b:1:a00:0:100:808:808",
                    "64:ff9b:1:ffc0:a8:1:808:808",
                    "64:ff9b:1:ffff:a:0:108:808",
                    "2002:a00:1::1",
                    "2002:7f00:1::1",
                    // Server 10.0.0.1; client 10.0.0.1.
                    "2001:0:a00:1::f7f7:fbfb",
                    "2001:0:808:808::f5ff:fffe",
                    "2606:4700::5efe:10.0.0.1",
                    "2606:4700::200:5efe:10.0.0.1",
                    "2606:4700::100:5efe:10.0.0.1",
                    "fd00::5efe:8.8.8.8",
                ],
            ),
            (
                Metadata,
                &[
                    "::ffff:169.254.169.254",
                    "64:ff9b::a9fe:a9fe",
                    "64:ff9b:1::100.100.100.200",
                    "2002:a9fe:a9fe::",
                    "2001:0:a9fe:a9fe::f5ff:fffe",
                    "2001:0:a00:1::5601:5601",
                    "fd00::5efe:169.254.169.254",
                    "fe80::5efe:8.8.8.8",
                    "2002:a00:1::5efe:169.254.169.254",
                ],
            ),
            (
                Unusable,
                &[
                    "::ffff:0.0.0.0",
                    "::ffff:224.0.0.1",
                    "64:ff9b::",
                    "64:ff9b:1::255.255.255.255",
                    "2002::1",
                    "2002:c000:201::",
                    "2001:0:808:808::",
                    "2606:4700::5efe:0.0.0.1",
                ],
            ),
        ]);
    }

    #[test]
    fn kinds_are_ordered_from_open_to_closed() {
        assert!(Public < Private && Private < Metadata && Metadata < Unusable);
        let names = [Public, Private, Metadata, Unusable].map(AddressKind::name);
        assert_eq!(names, ["public", "private", "metadata", "unusable"]);
    }
}
