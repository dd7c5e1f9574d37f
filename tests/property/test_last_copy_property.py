"""No interleaving of asking, vouching and dropping loses the last copy; the symmetric rule loses it."""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hoard_p2p.ids import ChunkId
from hoard_p2p.peer import ClusterView, NodeId, Peer
from hoard_p2p.repair.lastcopy import FRESH_SECONDS, PROMISED_SECONDS, enough, may_drop, whom_to_ask

SEGMENT = 0
KEYS = {SEGMENT: ChunkId(b"k" * 32)}


@dataclass
class Question:
    """One round of questions: when it began, who has yet to be asked, who vouched."""

    at: float
    unasked: list[NodeId]
    answers: list[tuple[int, ...]] = field(default_factory=list)


@dataclass
class Race:
    """Holders of one segment, each with a view of its own, that want to be rid of it. `ordered`: by our rule."""

    random: Random
    views: dict[NodeId, ClusterView]
    replicas: int
    ordered: bool
    pauses: tuple[float, ...]
    now: float = 0.0
    holders: set[NodeId] = field(default_factory=set)
    promised: dict[NodeId, float] = field(default_factory=dict)
    questions: dict[NodeId, Question] = field(default_factory=dict)
    fewest_left: int = 1 << 30

    def step(self) -> None:
        node = self.random.choice(sorted(self.views))
        question = self.questions.get(node)
        self.now += self.random.choice(self.pauses)
        if node not in self.holders:
            return
        if question is None:
            self.questions[node] = Question(self.now, self._asked(node))
        elif question.unasked and self.random.random() < 0.7:
            self._deliver(question)
        else:
            self._drop(node, self.questions.pop(node))

    def _asked(self, node: NodeId) -> list[NodeId]:
        view = self.views[node]
        if not self.ordered:
            return [peer.node_id for peer in view.others]
        return [peer for peer, segments in whom_to_ask(view, KEYS, self.replicas).items() if segments]

    def _deliver(self, question: Question) -> None:
        """One question arrives, or is lost; its answer arrives, or is lost after the promise was made."""
        asked = question.unasked.pop(self.random.randrange(len(question.unasked)))
        if self.random.random() < 0.2 or asked not in self.holders:
            return
        if self.ordered:
            self.promised[asked] = self.now + PROMISED_SECONDS
        if self.random.random() < 0.8:
            question.answers.append((SEGMENT,))

    def _drop(self, node: NodeId, question: Question) -> None:
        vouched = enough(question.answers, self.replicas)
        promised = {SEGMENT} if self.promised.get(node, -1.0) > self.now else set()
        if SEGMENT in may_drop(vouched, question.at, promised, self.now):
            self.holders.discard(node)
            self.fewest_left = min(self.fewest_left, len(self.holders))


def race(seed: int, *, ordered: bool) -> Race:
    """Some nodes in one to three racks; each view lacks some of them, as under partition, and disagrees on weights."""
    random = Random(seed)
    peers = tuple(
        Peer(NodeId(random.randbytes(16)), 1, "n", f"r{random.randrange(3)}", "10.0.0.1", 1, 1 << 20)
        for _ in range(random.randint(2, 6))
    )
    views = {}
    partitioned = random.random() < 0.5
    for me in peers:
        seen = tuple(peer for peer in peers if peer == me or not (partitioned and random.random() < 0.4))
        views[me.node_id] = ClusterView(me.node_id, seen)
    pauses = random.choice(((0.0, 0.1), (0.0, 0.1, 3.0), (0.0, 0.1, 3.0, 11.0, 601.0)))
    made = Race(random, views, random.randint(1, 2), ordered, pauses)
    made.holders = set(views)
    for _ in range(random.randint(10, 120)):
        made.step()
    return made


@settings(derandomize=True, deadline=None, max_examples=1500)
@given(st.integers(0, 1 << 40))
def test_no_interleaving_under_any_views_leaves_fewer_copies_than_vouched(seed: int) -> None:
    ended = race(seed, ordered=True)
    assert ended.holders
    assert ended.fewest_left >= ended.replicas


def test_in_one_view_the_best_ranked_holders_never_drop() -> None:
    for seed in range(300):
        ended = race(seed, ordered=True)
        views = {view.peers for view in ended.views.values()}
        if len(views) == 1:
            (peers,) = views
            assert len(ended.holders) >= min(ended.replicas, len(peers))


def test_the_symmetric_rule_loses_the_last_copy() -> None:
    """So the test above can fail: each drops when enough others say that they have it, and promises nothing."""
    ended = [race(seed, ordered=False) for seed in range(600)]
    assert sum(not one.holders for one in ended) > 5
    assert sum(one.fewest_left < one.replicas for one in ended) > 15


def test_an_answer_is_acted_upon_only_while_its_promise_lasts() -> None:
    assert may_drop({1, 2}, 100.0, {2}, 100.0 + FRESH_SECONDS) == {1}
    assert may_drop({1}, 100.0, set(), 100.1 + FRESH_SECONDS) == frozenset()
    assert FRESH_SECONDS < PROMISED_SECONDS
