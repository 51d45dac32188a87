//! From a destination to a connection: look the name up, drop the addresses that the rule does not permit, connect to one
//! of the others. The name is not looked up again, so nothing can change between check and use.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use url::Host;

use super::Error;
use super::sockets::{Permit, Socket, Sockets};
use crate::policy::Destination;

/// An address that says nothing gets company after this long (RFC 8305 recommends it).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// The addresses of a destination. A lookup blocks a thread and cannot be stopped, so it holds its permits until it ends,
/// also when nobody waits for it any more: names that hang cost a bounded number of threads and no queue.
pub(super) async fn look_up(
    to: &Destination,
    until: Instant,
    permits: [&Arc<Semaphore>; 2],
) -> Result<Vec<IpAddr>, Error> {
    let name = match &to.host {
        Host::Ipv4(address) => return Ok(vec![(*address).into()]),
        Host::Ipv6(address) => return Ok(vec![(*address).into()]),
        Host::Domain(name) => name.clone(),
    };
    let port = to.port;
    let [first, second] = permits;
    let work = async {
        let permits = [permit(first).await?, permit(second).await?];
        let looked_up = tokio::task::spawn_blocking(move || {
            let found = (name.as_str(), port).to_socket_addrs();
            drop(permits);
            found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>())
        });
        looked_up.await.map_err(|_| Error::ended())
    };
    let found = tokio::time::timeout_at(until, work).await;
    match found {
        Ok(Ok(Ok(found))) if found.is_empty() => Err(Error::Dns(format!("`{to}` has no address"))),
        Ok(Ok(Ok(found))) => Ok(found),
        Ok(Ok(Err(error))) => Err(Error::Dns(format!(
            "the name of `{to}` was not found: {error}"
        ))),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::Dns(format!(
            "the name of `{to}` was not found in time: the lookup has no answer yet"
        ))),
    }
}

/// The first of the addresses that takes a connection. A trial of an address has its own socket, and a second one beside it
/// is begun only if there is one to spare.
pub(super) async fn connect(
    to: &Destination,
    addresses: Vec<IpAddr>,
    sockets: &Sockets,
) -> Result<Socket, Error> {
    let mut left: VecDeque<_> = alternate(addresses).into();
    let mut trials = JoinSet::new();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        if !left.is_empty() {
            let permit = if trials.is_empty() {
                Some(sockets.permit().await?)
            } else {
                sockets.spare()
            };
            if let Some(permit) = permit
                && let Some(address) = left.pop_front()
            {
                trials.spawn(open(SocketAddr::new(address, to.port), permit));
            }
        }
        let ended = if left.is_empty() {
            trials.join_next().await
        } else {
            match tokio::time::timeout(NEXT_ADDRESS_AFTER, trials.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            }
        };
        match ended {
            // The others are dropped with the set.
            Some(Ok(Ok(socket))) => return Ok(socket),
            Some(Ok(Err(error))) => last = error,
            Some(Err(_)) => return Err(Error::ended()),
            None => return Err(Error::connect(&last, to)),
        }
    }
}

async fn open(address: SocketAddr, permit: Permit) -> io::Result<Socket> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(Socket::new(stream, permit))
}

async fn permit(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Error> {
    of.clone().acquire_owned().await.map_err(|_| Error::ended())
}

/// The two families in turn, beginning with the one that the system put first: one that leads nowhere delays by one step.
fn alternate(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let Some(first) = addresses.first().map(IpAddr::is_ipv6) else {
        return addresses;
    };
    let (one, other): (VecDeque<_>, VecDeque<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == first);
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let mut turns = Vec::new();
    loop {
        let before = turns.len();
        turns.extend(one.next());
        turns.extend(other.next());
        if turns.len() == before {
            return turns;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    #[test]
    fn families_take_turns() {
        let given = ["::1", "::2", "::3", "1.1.1.1"].map(|text| text.parse::<IpAddr>().unwrap());
        let turns = super::alternate(given.to_vec());
        assert_eq!(turns, [given[0], given[3], given[1], given[2]]);
        assert!(super::alternate(Vec::new()).is_empty());
    }
}
