"""Who is alive, as this node sees it: a state machine without I/O, clocks or randomness.

Events go in (with the time, in seconds of any monotonic clock), commands and immutable views come out. It must not know
how peers are discovered or asked.

States: HEARD (somebody named the node; nobody here reached it yet) -> ALIVE (it answered) -> SUSPECT (a contact failed;
still in the view, so that placement does not move for a hiccup, but asked last) -> DEAD (it stayed silent; out of the
view). An answer makes any of them ALIVE at once. LEFT: somebody said that it leaves, and then it did not answer; as
DEAD otherwise.

It is SWIM (Das, Gupta, Motivala 2002): a few peers are probed in each tick, whatever the number of nodes; one that does
not answer is asked through others before it becomes a suspect; suspicions, deaths and refutations travel with the
probes. What travels is never believed as such: a death or goodbye that somebody told makes this node ask the peer
itself, and one failure is then enough; so nobody can talk a node out of the view that answers.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from hoard_p2p.cluster.clones import Clones
from hoard_p2p.cluster.outbox import Item, Outbox
from hoard_p2p.cluster.roster import Roster, Sample
from hoard_p2p.cluster.states import OUTSIDE, Command, Entry, IdConflict, Member, Probe, State, Timing, address_of
from hoard_p2p.cluster.suspicion import Health, suspicion_time
from hoard_p2p.cluster.weights import bounded_weights
from hoard_p2p.peer import ClusterView, NodeId, Peer, Rumour, Said, Standing, is_wildcard

__all__ = ["IdConflict", "Member", "Membership", "Probe", "State", "Timing", "bounded_weights"]

_TIMING = Timing()
MAX_BURST = 64
"""Probes of peers just heard of, in one tick."""
MAX_RETRIES = 4
"""Probes of peers that are gone, in one tick."""
MAX_ACCUSERS = 4
_RANK = {Said.ALIVE: 0, Said.SUSPECT: 1, Said.LEFT: 2, Said.DEAD: 2}


class Membership:
    """The state machine. Not thread-safe: one owner, the event loop."""

    def __init__(
        self, me: Peer, *, sample: Sample, boot: bytes = b"", timing: Timing = _TIMING, accusers_needed: int = 2
    ) -> None:
        """`boot`: the random bytes of this start, to tell a clone from an address of my own. `accusers_needed`: others
        that must suspect a peer before it is asked last here; 1 where all members are trusted."""
        self._boot = boot
        self.timing = timing
        self._roster = Roster(me, sample, accusers_needed)
        self._clones = Clones()
        self._outbox = Outbox()
        self._health = Health()
        self._refutation = 0
        self._refuted = -self.timing.refute_every

    # --- events

    def heard(self, peer: Peer, now: float, *, spread: bool = False) -> None:
        """Hearsay: discovery or another node named `peer`. Adds it as HEARD, or as another address to try; never
        changes what is known of a peer by own contact. `spread`: others may not know it yet."""
        if peer.node_id == self._roster.me.node_id:
            return
        entry = self._roster.entries.get(peer.node_id)
        if entry is None:
            if self._roster.takes(peer):
                self._roster.add(Entry(peer, State.HEARD, now, next_try=now, spread=spread))
        elif peer.incarnation > entry.peer.incarnation or (entry.state is not State.ALIVE and not entry.is_at(peer)):
            entry.candidate = peer
            entry.spread |= spread
            self._roster.watch(entry)

    def called(self, peer: Peer, now: float) -> None:
        """`peer` (so it says) called this node: hearsay, but one that was thought to be gone is tried soon."""
        self.heard(peer, now, spread=True)
        entry = self._roster.entries.get(peer.node_id)
        if entry is not None:
            self._try_soon(entry, now)

    def contact_ok(self, peer: Peer, now: float, boot: bytes = b"") -> None:
        """`peer` answered at its host and port, with this record and the boot of its process. It is ALIVE from now on;
        an ALIVE peer that answers at a second address keeps the first."""
        if peer.node_id == self._roster.me.node_id:
            if boot and self._boot and boot != self._boot:
                self._clones.note(self._roster.me, peer, now)
            return
        self._health.was_well()
        entry = self._roster.met(peer, now)
        if entry is None:
            return
        if peer.incarnation > entry.peer.incarnation or boot != entry.boot or entry.verdict is Said.DEAD:
            entry.leaving = None  # that was another start, or no more than a rumour
        self._clones.note_boot(entry, peer, boot, now)
        self._roster.watch(entry)
        entry.accusers = frozenset()
        if entry.state is State.ALIVE and peer.incarnation < entry.peer.incarnation:
            return  # the record of the later start stands
        if entry.state is State.ALIVE and not entry.is_at(peer):
            entry.other_way = peer  # a later start of it, or somebody who says so: the first has to be gone
            entry.ask_now |= peer.incarnation > entry.peer.incarnation
            return
        self._adopt(entry, peer)
        if entry.state is not State.ALIVE:
            entry.worst = 0
            self._roster.change(entry, State.ALIVE, now)
        entry.last_contact, entry.failures = now, 0
        self._introduce(entry)

    def unheard(self) -> None:
        """Others that were asked to help did not answer either: this node may be the one that is ill."""
        self._health.was_ill()

    def acquaint(self, peers: Iterable[Peer], now: float) -> None:
        """These peers answered already: for simulations, which begin with nodes that know each other."""
        self._roster.meet([peer for peer in peers if peer.node_id != self._roster.me.node_id], now)

    def missed(self, peer: Peer, now: float) -> tuple[Peer, ...]:
        """A probe of `peer` got no answer. Others to ask it through: `vouched` if one of them reaches it, else
        `contact_failed`. None if that is not worth it: `contact_failed` at once."""
        entry = self._roster.entries.get(peer.node_id)
        if entry is None or entry.state in OUTSIDE or entry.leaving is not None or not entry.is_at(peer):
            return ()
        return tuple(self._roster.some(self.timing.helpers, without=peer.node_id))

    def vouched(self, node_id: NodeId, now: float) -> None:
        """Another node reached the peer, this one did not: it lives, and is asked last."""
        entry = self._roster.entries.get(node_id)
        if entry is None or entry.state in OUTSIDE:
            return
        if entry.state is State.ALIVE:
            self._roster.change(entry, State.SUSPECT, now)
        entry.since, entry.failures = now, 0
        entry.accusers -= {self._roster.me.node_id}

    def contact_failed(self, node_id: NodeId, now: float, at: Peer | None = None) -> None:
        """A request to the node failed. `at`: the record of the probe that failed, whose address may be another one
        than the peer's: then only that address is given up."""
        entry = self._roster.entries.get(node_id)
        if entry is None:
            return
        if at is not None and not entry.is_at(at):
            if entry.candidate is not None and address_of(entry.candidate) == address_of(at):
                entry.candidate = None
            return
        entry.failures += 1
        if at is not None and entry.leaving is not None:
            self._end(entry, State.DEAD if entry.verdict is Said.DEAD else State.LEFT, now)
        elif entry.state is State.ALIVE:
            self._roster.change(entry, State.SUSPECT, now)
        if entry.other_way is not None and entry.state is State.SUSPECT:
            entry.candidate, entry.other_way = entry.other_way, None
        if at is not None and entry.state is State.SUSPECT and self._roster.me.node_id not in entry.accusers:
            self._accuse(entry, {self._roster.me.node_id}, now)

    def left(self, node_id: NodeId, incarnation: int, now: float) -> None:
        """Somebody said that the node leaves: it is probed at once and in every tick for some seconds, in which the
        first failure is enough. It may answer for a moment longer. Ignored if a later incarnation is known."""
        entry = self._roster.entries.get(node_id)
        if entry is None or incarnation < entry.peer.incarnation or entry.state in OUTSIDE or entry.leaving is not None:
            return
        self._doubt(entry, Said.LEFT, now)
        self._tell(entry, Said.LEFT)
        if entry.state is State.ALIVE:
            self._roster.change(entry, State.SUSPECT, now)

    def told(self, rumour: Rumour, now: float) -> None:
        """A rumour arrived with a probe or an answer; passed on if it is news."""
        about = rumour.peer
        entry = self._roster.entries.get(about.node_id)
        if about.node_id == self._roster.me.node_id:
            self._refute(rumour, now)
        elif entry is None or about.incarnation > entry.peer.incarnation:
            if rumour.said is Said.ALIVE and not is_wildcard(about.host):
                self.heard(about, now, spread=True)
        elif about.incarnation < entry.peer.incarnation or rumour.refutation < entry.refutation:
            return
        elif rumour.said is Said.ALIVE:
            self._told_alive(entry, rumour, now)
        elif entry.state not in OUTSIDE:
            self._told_ill(entry, rumour, now)

    def tick(self, now: float) -> list[Command]:
        """Let time pass: declares deaths, forgets the long dead, and returns what to probe now."""
        for entry in list(self._roster.watched.values()):
            self._age(entry, now)
        self._clones.expire(now - self.timing.conflict_shown)
        probes = self.due(now)
        probes += [Probe(entry.peer) for entry in self._roster.watched.values() if entry.is_doubted]
        probes += [Probe(peer) for peer in self._roster.next_of_round(self.timing.probes)]
        self._roster.unwatch_calm()
        return probes

    def due(self, now: float) -> list[Command]:
        """The part of `tick` that need not wait for it: probes of peers just heard of or said to leave, and of other
        addresses."""
        return [Probe(peer) for peer in (*self._roster.candidates(), *self._roster.to_ask_now(), *self._due(now))]

    def spread(self, nodes: int) -> list[Command]:
        """Some random peers to tell news to, while there are any."""
        return [Probe(peer) for peer in self.some(nodes)] if self._outbox else []

    def renew(self, me: Peer) -> None:
        """My own record is another from now on (another weight)."""
        self._roster.me = me
        self._roster.renew_view()
        self._say_alive()

    def by_lease(self, leased: frozenset[NodeId] | None) -> None:
        """A registry says who is a member; from now on nobody else is. None: it cannot be asked now, so those that it
        named last stay, and others may join."""
        self._roster.by_lease(leased)

    # --- news

    @property
    def refutation(self) -> int:
        """How often this node said that it is alive or has changed."""
        return self._refutation

    def tell(self, standing: Standing) -> None:
        """Pass a standing on."""
        self._outbox.put(standing)

    def news(self, to: NodeId | None = None) -> list[Item]:
        """What to send with a message to a peer."""
        return self._outbox.take(self._roster.inside, to) if self._outbox else []

    # --- what is known

    @property
    def me(self) -> Peer:
        """My own record."""
        return self._roster.me

    def patience(self, peer: Peer) -> float:
        """Seconds to wait for the answer to a probe: more if this node misses many answers."""
        entry = self._roster.entries.get(peer.node_id)
        is_well = entry is not None and entry.state is State.ALIVE and entry.leaving is None
        return (self.timing.probe_time if is_well else self.timing.doubt_time) * self._health.slack

    def relay_patience(self) -> float:
        """The same for what others found out."""
        return self.timing.relay_time * self._health.slack

    def view(self) -> ClusterView:
        """Me and the peers that are ALIVE or SUSPECT, with bounded weights. The same object until something changes."""
        return self._roster.view()

    def suspects(self) -> frozenset[NodeId]:
        """Those of the view that should be asked last."""
        return self._roster.suspects()

    def members(self) -> tuple[Member, ...]:
        """Every peer known (not me), by node id."""
        return self._roster.members()

    def known(self) -> Collection[NodeId]:
        """Ids of all peers that are known, in whatever state."""
        return self._roster.entries.keys()

    def state_of(self, node_id: NodeId) -> State | None:
        """None: it is not known."""
        return self._roster.state_of(node_id)

    def some(self, count: int) -> list[Peer]:
        """Random peers of the view that are not suspected."""
        return self._roster.some(count)

    def incarnation_of(self, node_id: NodeId) -> int:
        return self._roster.incarnation_of(node_id)

    def conflicts(self) -> tuple[IdConflict, ...]:
        """Node ids that two running nodes use, as far as seen in the last minute."""
        return self._clones.seen()

    # --- rumours

    def _told_alive(self, entry: Entry, rumour: Rumour, now: float) -> None:
        if rumour.refutation == entry.refutation:
            return
        self._begin_anew(entry, rumour.refutation)
        record = replace(rumour.peer, host=entry.peer.host, port=entry.peer.port)
        entry.ask_now |= record != entry.peer and entry.state not in OUTSIDE
        self._try_soon(entry, now)
        self._roster.watch(entry)
        self._outbox.put(replace(rumour, peer=record))

    def _told_ill(self, entry: Entry, rumour: Rumour, now: float) -> None:
        """Somebody said that a peer of the view is suspect, dead or gone."""
        if rumour.refutation > entry.refutation:
            self._begin_anew(entry, rumour.refutation)
        if rumour.said is Said.SUSPECT:
            # mine is told by nobody but me
            self._accuse(entry, {each for each in rumour.accusers if each in self._roster.entries}, now)
        elif entry.worst >= _RANK[rumour.said]:
            return
        elif rumour.said is Said.LEFT:
            self.left(entry.peer.node_id, rumour.peer.incarnation, now)
        elif entry.leaving is None and not self._is_fresh(entry, now):
            self._tell(entry, Said.DEAD, rumour.accusers)
            self._told_dead(entry, now)

    def _told_dead(self, entry: Entry, now: float) -> None:
        """A death needs a second witness: this node got no answer either, or asks now."""
        if self._roster.me.node_id in entry.accusers:
            self._end(entry, State.DEAD, now)
        else:
            self._doubt(entry, Said.DEAD, now)

    def _try_soon(self, entry: Entry, now: float) -> None:
        """There is a sign that a peer that is gone is back. Not at once, since it may be a false one, again and again:
        as when a node can call and not be called."""
        if entry.state in OUTSIDE:
            entry.next_try = min(entry.next_try, now + self.timing.retry_called)

    def _is_fresh(self, entry: Entry, now: float) -> bool:
        """Whether a peer answered a moment ago."""
        return entry.last_contact is not None and now - entry.last_contact < self.timing.fresh

    def _begin_anew(self, entry: Entry, refutation: int) -> None:
        """What was said of a peer before it answered to it counts no more."""
        entry.refutation, entry.worst = refutation, 0
        entry.accusers &= {self._roster.me.node_id}

    def _accuse(self, entry: Entry, accusers: Collection[NodeId], now: float) -> None:
        """Note who suspects a peer; the first few are told to all."""
        known = entry.accusers
        if len(known) >= MAX_ACCUSERS or known.issuperset(accusers):
            return
        entry.accusers = known | frozenset(sorted(accusers)[:MAX_ACCUSERS])
        entry.accused = now
        self._roster.watch(entry)
        if entry.worst <= _RANK[Said.SUSPECT]:
            self._tell(entry, Said.SUSPECT, entry.accusers)

    def _refute(self, rumour: Rumour, now: float) -> None:
        """I am told of myself: whoever says that I am ill learns otherwise."""
        is_current = rumour.peer.incarnation == self._roster.me.incarnation and rumour.refutation >= self._refutation
        if is_current and rumour.said is not Said.ALIVE and now - self._refuted >= self.timing.refute_every:
            self._refutation, self._refuted = rumour.refutation, now
            self._health.was_ill()
            self._say_alive()

    def _say_alive(self) -> None:
        self._refutation += 1
        self._outbox.put(Rumour(self._roster.me, Said.ALIVE, self._refutation))

    def _introduce(self, entry: Entry) -> None:
        """A peer that others may not know answered."""
        if entry.spread:
            entry.spread = False
            self._tell(entry, Said.ALIVE)

    def _tell(self, entry: Entry, said: Said, accusers: Collection[NodeId] = ()) -> None:
        entry.worst = _RANK[said]
        self._outbox.put(Rumour(entry.peer, said, entry.refutation, tuple(sorted(accusers)[:MAX_ACCUSERS])))

    # --- steps

    def _adopt(self, entry: Entry, peer: Peer) -> None:
        if entry.candidate is not None and address_of(entry.candidate) == address_of(peer):
            entry.candidate = None
        if peer.incarnation > entry.peer.incarnation:
            entry.refutation, entry.spread = 0, True
        if peer != entry.peer:
            entry.peer = peer
            self._roster.renew_view()

    def _doubt(self, entry: Entry, verdict: Said, now: float) -> None:
        entry.leaving, entry.verdict, entry.ask_now = now, verdict, True
        self._roster.watch(entry)

    def _end(self, entry: Entry, state: State, now: float) -> None:
        """The peer is gone: out of the view, tried again ever less often."""
        entry.leaving, entry.accusers, entry.ask_now = None, frozenset(), False
        self._roster.change(entry, state, now)
        entry.next_try = now + self.timing.backoff(entry.state, entry.failures)

    def _age(self, entry: Entry, now: float) -> None:
        timing, age = self.timing, now - entry.since
        if entry.leaving is not None and now - entry.leaving >= timing.leave_believed:
            entry.leaving = None
        if entry.state is State.SUSPECT and entry.failures >= timing.dead_failures:
            others = len(entry.accusers - {self._roster.me.node_id})
            if age >= suspicion_time(timing, self._roster.inside, others, self._health.slack):
                accusers = entry.accusers
                self._end(entry, State.DEAD, now)
                self._tell(entry, Said.DEAD, accusers)
        elif entry.state is State.ALIVE and entry.accusers and now - entry.accused > 4 * timing.suspicion:
            entry.accusers = frozenset()
        elif entry.state in OUTSIDE and age >= timing.forgotten_after(entry.state):
            self._roster.drop(entry)

    def _due(self, now: float) -> Iterator[Peer]:
        """Peers outside the view whose time to be tried again has come: those never met first, and few of the gone."""
        due = [entry for entry in self._roster.watched.values() if entry.state in OUTSIDE and entry.next_try <= now]
        new = [entry for entry in due if not entry.failures][:MAX_BURST]
        old = sorted((entry for entry in due if entry.failures), key=lambda entry: entry.next_try)[:MAX_RETRIES]
        for entry in (*new, *old):
            entry.next_try = now + self.timing.backoff(entry.state, entry.failures)
            yield entry.peer
