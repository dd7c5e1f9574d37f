"""Sessions: how two nodes with one key prove each message to each other. Pure but for drawing random bytes.

A session is made by a handshake to which both sides add 32 random bytes and their ids, and is used for one exchange at
a time, in order: each request and each answer carries a keyed hash over the session, the direction, its number, and all
that matters of it. So nothing can be changed, repeated, reordered or played to another node without being noticed; no
clocks and no memory of old numbers are needed. docs/wire.md, "Sessions", has the bytes.
"""

import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from blake3 import blake3

from hoard_p2p.errors import BadRequest, PeerUnavailable
from hoard_p2p.ids import Bytes
from hoard_p2p.peer import NODE_ID_SIZE, NodeId
from hoard_p2p.transfer.keys import FINGERPRINT_SIZE, ClusterKey, KeyRing

HEADER = "Hoard-Proof"
PATH = "/v1/session"
VERSION = 1
RANDOM_SIZE = 32
SESSION_ID_SIZE = 16
MAC_SIZE = 32
OFFER_SIZE = 1 + RANDOM_SIZE + NODE_ID_SIZE + FINGERPRINT_SIZE
GRANT_SIZE = SESSION_ID_SIZE + RANDOM_SIZE + NODE_ID_SIZE + MAC_SIZE
STAY_OUT = 401
"""The HTTP status of an answer to what is not proven."""
SELF_PROVING = "-"
"""The mark of a body that is not hashed as a whole, since its parts prove themselves as they arrive."""
_CONTEXT = "hoard 2026-11-30 session key v1"
_REQUEST = re.compile(r"([0-9a-f]{32}) (\d{1,15}) ([0-9a-f]{64}) ([0-9a-f]{64})")
_ANSWER = re.compile(r"(\d{1,15}) ([0-9a-f]{64}|-) ([0-9a-f]{64})")


class Unproven(PeerUnavailable):
    """A message is not from whom it should be, or not the one that was sent."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a caller opens with: its random bytes, its id, and the fingerprint of the key it signs with."""

    random: bytes
    node: NodeId
    fingerprint: bytes

    @classmethod
    def draw(cls, ring: KeyRing) -> "Offer":
        return cls(secrets.token_bytes(RANDOM_SIZE), ring.me, ring.keys[0].fingerprint)

    def encode(self) -> bytes:
        return bytes([VERSION]) + self.random + self.node + self.fingerprint

    @classmethod
    def decode(cls, body: bytes) -> "Offer":
        """Raises BadRequest."""
        if len(body) != OFFER_SIZE or body[0] != VERSION:
            raise BadRequest(f"an offer has {OFFER_SIZE} bytes and begins with version {VERSION}")
        node = 1 + RANDOM_SIZE
        return cls(body[1:node], NodeId(body[node : node + NODE_ID_SIZE]), body[node + NODE_ID_SIZE :])


@dataclass(frozen=True, slots=True)
class Grant:
    """What the other side answers: the name of the session, its random bytes, its id, and proof that it has the key."""

    session: bytes
    random: bytes
    node: NodeId
    proof: bytes = b""

    @classmethod
    def draw(cls, me: NodeId) -> "Grant":
        return cls(secrets.token_bytes(SESSION_ID_SIZE), secrets.token_bytes(RANDOM_SIZE), me)

    def encode(self) -> bytes:
        return self.session + self.random + self.node + self.proof

    @classmethod
    def decode(cls, body: bytes) -> "Grant":
        """Raises Unproven."""
        if len(body) != GRANT_SIZE:
            raise Unproven(f"an answer of {len(body)} bytes to the offer of a session, {GRANT_SIZE} are expected")
        random, node = SESSION_ID_SIZE, SESSION_ID_SIZE + RANDOM_SIZE
        proof = node + NODE_ID_SIZE
        return cls(body[:random], body[random:node], NodeId(body[node:proof]), body[proof:])


def session_key(key: ClusterKey, offer: Offer, grant: Grant) -> bytes:
    """What only holders of `key` can tell, and no other session has: each side drew a part of it."""
    return key.derive(_CONTEXT, offer.random + grant.random + offer.node + grant.node + grant.session)


def granted(key: ClusterKey, offer: Offer, me: NodeId) -> tuple[bytes, Grant]:
    """The key of a new session and the proven grant, for the side that was made an offer."""
    grant = Grant.draw(me)
    secret = session_key(key, offer, grant)
    return secret, Grant(grant.session, grant.random, grant.node, _mac(secret, b"grant", offer.encode()))


class Session:
    """The caller's side of one session. Requests may be sent ahead of answers; answers come in order."""

    __slots__ = ("_answered", "_secret", "_sent", "_session", "idle_since", "node")

    def __init__(self, ring: KeyRing, offer: Offer, grant: Grant, expected: NodeId) -> None:
        """`expected`: the node that was meant, empty: whoever has the key. Raises Unproven."""
        secret = session_key(ring.keys[0], offer, grant)
        if not hmac.compare_digest(grant.proof, _mac(secret, b"grant", offer.encode())):
            raise Unproven("it does not have our key, or somebody between us changes what is said")
        if expected and grant.node != expected:
            raise Unproven(f"node {grant.node.hex()[:12]} answers there instead of {expected.hex()[:12]}")
        self.node = grant.node
        self.idle_since = 0.0
        self._secret = secret
        self._session = grant.session
        self._sent = self._answered = 0

    def sign(self, method: str, path: str, body: Bytes) -> str:
        """The header value of the next request."""
        mark = blake3(body).hexdigest()
        mac = _mac(self._secret, *_request(self._session, self._sent, method, path), mark.encode())
        text = f"{self._session.hex()} {self._sent} {mark} {mac.hex()}"
        self._sent += 1
        return text

    def check(self, proof: str, status: int, kind: str) -> str:
        """The mark of the body of the next answer, whose head is proven by it. Raises Unproven."""
        found = _ANSWER.fullmatch(proof)
        if found is None:
            raise Unproven(f"an answer with status {status} that proves nothing")
        mac = _mac(self._secret, *_answer(self._session, self._answered, status, kind), found[2].encode())
        if int(found[1]) != self._answered or not hmac.compare_digest(bytes.fromhex(found[3]), mac):
            raise Unproven("an answer that is not from it, or not to this question")
        self._answered += 1
        return found[2]

    def check_end(self, digest: bytes, seal: bytes) -> None:
        """The end of a self-proving body, whose `digest` covers what else it says. Raises Unproven."""
        if not hmac.compare_digest(seal, _seal(self._secret, self._session, self._answered - 1, digest)):
            raise Unproven("an answer that was changed on the way, or ends early")

    def check_named(self, at: int, content: bytes, proof: bytes) -> None:
        """A frame said what the piece of the id or run `at` of the question is. Raises Unproven."""
        if not hmac.compare_digest(proof, _named(self._secret, self._session, self._answered - 1, at, content)):
            raise Unproven("an answer whose content was changed on the way")

    def check_whole(self, proof: str, status: int, kind: str, body: Bytes) -> None:
        """The same for an answer that is here whole. Raises Unproven."""
        if self.check(proof, status, kind) != blake3(body).hexdigest():
            raise Unproven("an answer whose body was changed on the way")


@dataclass(slots=True)
class Held:
    """The other side's record of a session: the only number that the next request may have, and when the last came."""

    node: NodeId
    secret: bytes
    next: int
    used: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose head is proven; its body must have the hash `body`."""

    node: NodeId
    session: bytes
    secret: bytes
    number: int
    body: str

    def check_body(self, body: Bytes) -> None:
        """Raises BadRequest."""
        if blake3(body).hexdigest() != self.body:
            raise BadRequest("the body was changed on the way")

    def answer(self, status: int, kind: str, mark: str) -> str:
        """The header value of the answer, whose body has this mark."""
        mac = _mac(self.secret, *_answer(self.session, self.number, status, kind), mark.encode())
        return f"{self.number} {mark} {mac.hex()}"

    def seal(self, digest: bytes) -> bytes:
        """What ends a self-proving body: it covers what of it is proven by nothing else."""
        return _seal(self.secret, self.session, self.number, digest)

    def prove(self, at: int, content: bytes) -> bytes:
        """What proves, before the end of the answer, what the piece of the id or run `at` of the question is: nothing
        else does, for its bytes match any content id that comes with them."""
        return _named(self.secret, self.session, self.number, at, content)


@dataclass(frozen=True, slots=True)
class Claim:
    """The header of a request, parsed and not believed yet."""

    session: bytes
    number: int
    body: str
    mac: bytes

    @classmethod
    def parse(cls, header: str) -> "Claim | None":
        found = _REQUEST.fullmatch(header)
        return None if found is None else cls(bytes.fromhex(found[1]), int(found[2]), found[3], bytes.fromhex(found[4]))

    def is_of(self, held: Held, method: str, path: str) -> bool:
        """Whether it is the next request of that session."""
        mac = _mac(held.secret, *_request(self.session, self.number, method, path), self.body.encode())
        return hmac.compare_digest(mac, self.mac) and self.number == held.next


def prover(admitted: Admitted | None) -> Callable[[int, bytes], bytes]:
    """`Admitted.prove` of a request, or nothing where there is no key."""
    return (lambda at, content: b"") if admitted is None else admitted.prove


def refusal(status: int) -> str:
    """Why there is no session, for people, by the status of the answer to an offer."""
    if status == STAY_OUT:
        return "it has another key, or none (both key files need the first key of ours)"
    return f"it grants no session (status {status}): a node of an older version, or no node"


def frames_mark(heads: bytes | bytearray) -> str:
    """The mark of an answer of chunks: it covers what is before the bytes of each frame, one after the other. The bytes
    are proven by their ids."""
    return blake3(heads).hexdigest()


def _request(session: bytes, number: int, method: str, path: str) -> tuple[bytes, ...]:
    return b"request", session, number.to_bytes(8, "little"), method.encode(), path.encode()


def _answer(session: bytes, number: int, status: int, kind: str) -> tuple[bytes, ...]:
    return b"answer", session, number.to_bytes(8, "little"), status.to_bytes(2, "little"), kind.encode()


def _seal(secret: bytes, session: bytes, number: int, digest: bytes) -> bytes:
    return _mac(secret, b"end", session, number.to_bytes(8, "little"), digest)


def _named(secret: bytes, session: bytes, number: int, at: int, content: bytes) -> bytes:
    return _mac(secret, b"piece", session, number.to_bytes(8, "little"), at.to_bytes(4, "little"), content)


def _mac(secret: bytes, *parts: bytes) -> bytes:
    """Keyed blake3 over the parts, each with its length before it (u32, little-endian)."""
    return blake3(b"".join(len(part).to_bytes(4, "little") + part for part in parts), key=secret).digest()
