//! How many connections one address may hold open at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// The addresses that are connected.
pub(super) struct Peers {
    most: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection, counted until it is dropped.
pub(super) struct Guest(Option<(Arc<Peers>, IpAddr)>);

impl Peers {
    pub(super) fn new(most: usize) -> Arc<Peers> {
        Arc::new(Peers { most, open: Mutex::default() })
    }

    /// Counts a connection in; `None` where its address has too many already. The loopback address stands for everybody on
    /// this machine, and for all behind a reverse proxy on it, so it is not counted.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Guest> {
        let peer = network(from);
        if peer.is_loopback() {
            return Some(Guest(None));
        }
        let mut open = self.open.lock();
        let count = open.entry(peer).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Guest(Some((Arc::clone(self), peer))))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let Some((peers, peer)) = self.0.take() else { return };
        let mut open = peers.open.lock();
        if let Some(count) = open.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&peer);
            }
        }
    }
}

/// What one machine has to itself: an IPv4 address, or a /64 network of IPv6.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (!0 << 64))),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_cannot_take_all_places() {
        let peers = Peers::new(2);
        let enter = |text: &str| peers.enter(text.parse().unwrap());
        let held = [enter("10.0.0.1"), enter("::ffff:10.0.0.1")];
        assert!(held.iter().all(Option::is_some));
        assert!(enter("10.0.0.1").is_none());
        let others = [enter("10.0.0.2"), enter("2001:db8::1"), enter("2001:db8::2:1")];
        assert!(others.iter().all(Option::is_some));
        assert!(enter("2001:db8::ffff").is_none(), "one network is one machine");
        let local: Vec<_> = (0..9).map(|_| [enter("127.0.0.1"), enter("::1"), enter("127.8.8.8")]).collect();
        assert!(local.iter().flatten().all(Option::is_some));
        drop((held, others, local));
        assert!(peers.open.lock().is_empty(), "nothing is kept of who left");
        assert!(enter("10.0.0.1").is_some());
    }
}
