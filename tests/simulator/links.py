"""The agent links of a simulated run: who is connected to whom, and what a broken link looks like from the other end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_health.messages import LinkMessage
from elastic_health.rendezvous import events as ev
from elastic_health.rendezvous.state import Phase
from elastic_health.rendezvous.view import Who

if TYPE_CHECKING:
    from tests.simulator.node import Node
    from tests.simulator.world import World

_DIALLING = (Phase.READY, Phase.STARTING, Phase.RUNNING, Phase.HOLDING)


class Links:
    def __init__(self, world: World) -> None:
        self.world, self.kept = world, dict[str, Who]()

    def find(self, who: Who) -> Node | None:
        """The living agent of that name and process; a later incarnation of the same process is the same agent."""
        node = self.world.named(who[0])
        return node if node.running and who[1].split("-")[0] == f"life{node.life}" else None

    def parted(self, a: Node, b: Node) -> bool:
        return b.name in a.cut_peers or a.name in b.cut_peers

    def whole(self, node: Node) -> bool:
        """It is linked to all whom its generation's right to ride through an outage depends on."""
        g = self.world.ledger.generations.get(node.state.generation)
        others = [m.who for m in g.members if m.who != node.state.who] if g is not None else []
        lead = g is not None and g.members[0].who == node.state.who
        return all(who in node.linked for who in (others if lead or g is None else [g.members[0].who]))

    def connect(self, node: Node, who: Who) -> None:
        """From now on there is a link to `who`: whenever it breaks it is dialled again."""
        me = node.state.who
        self.kept[node.name] = who

        def dial() -> None:
            peer = self.find(who)
            if node.state.who != me or who in node.linked or self.kept.get(node.name) != who or node.state.phase not in _DIALLING:
                return
            if peer is None or node.paused or peer.paused or self.parted(node, peer):
                node.mine(0.5, dial)
                return
            node.linked[who], peer.linked[me] = peer.life, node.life
            node.feed(ev.LinkUp(who))
            peer.feed(ev.LinkUp(me))

        node.mine(self.world.clockwork.delay(), dial)

    def cut(self, node: Node, *, silent: bool = False, on_purpose: bool = False) -> None:
        """All links of a node break.  The other ends notice at once (EOF), or after the link timeout when nothing says so."""
        bound = self.world.policies.membership.bounds.link_timeout_s
        for other in self.world.nodes:
            for who in [w for w in other.linked if w[0] == node.name]:
                del other.linked[who]
                self._notice(other, who, (bound if silent else 0.001) + self.world.clockwork.delay(), "eof")
        for who in list(node.linked):
            del node.linked[who]
            if not on_purpose:
                self._notice(node, who, bound if silent else 0.001, "timeout" if silent else "reset")

    def cut_between(self, node: Node, others: set[str]) -> None:
        """The links of a node to some others break silently, at this end; call it for the other ends too."""
        for who in [w for w in node.linked if w[0] in others]:
            del node.linked[who]
            self._notice(node, who, self.world.policies.membership.bounds.link_timeout_s + self.world.clockwork.delay(), "timeout")

    def _notice(self, node: Node, who: Who, delay: float, why: str) -> None:
        """A link that is up again by then replaced the broken one, and that is all its end hears of it."""

        def down() -> None:
            if who not in node.linked:
                node.feed(ev.LinkDown(who, why))
                if self.kept.get(node.name) == who:
                    self.connect(node, who)

        node.mine(delay, down)

    def close(self, node: Node) -> None:
        self.kept.pop(node.name, None)
        self.cut(node, on_purpose=True)

    def tell(self, node: Node, e: ev.Tell) -> None:
        for who in [e.who] if e.who is not None else list(node.linked):
            if who in node.linked:
                self._carry(node, who, e.message)

    def _carry(self, node: Node, who: Who, message: LinkMessage) -> None:
        peer = self.find(who)
        if peer is not None and not self.parted(node, peer):
            # Under the name that the link was made with, whatever incarnation its end is by now; of two, the newer one's.
            me = next((w for w in reversed(peer.linked) if w[0] == node.name), node.state.who)
            peer.later(self.world.clockwork.delay(), ev.PeerSaid(me, message))

    def probe(self, node: Node, who: Who) -> None:
        target = self.world.named(who[0])
        if self.parted(node, target):
            return
        dead = self.find(who) is None or target.state.who != who
        if dead or not target.paused:
            node.later(self.world.clockwork.delay(), ev.Probed(who, dead))
