"""Conversations that later requests may continue by the id of their response (`previous_response_id`)."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.prompt.conversation import Text, Thinking, ToolCall, ToolResult
from router.limits import MAX_REMEMBERED_RESPONSES, REMEMBERED_RESPONSES_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.prompt.conversation import Block, Message

# What an object, its slots and its place in a tuple or dict need, roughly.
_ENTRY_BYTES: Final = 400
_OBJECT_BYTES: Final = 100


class _Kept(NamedTuple):
    messages: tuple[Message, ...]
    cost: int


class ResponseMemory:
    """Messages by tenant and response id; nobody reads another tenant's.

    Bounded by bytes, of all tenants together, and by each tenant's count. What was not used for longest goes first; for
    want of bytes it goes from the tenant who holds most. Safe to lose: whoever asks in vain can send all messages.
    """

    def __init__(
        self, *, max_bytes: int = REMEMBERED_RESPONSES_BYTES, max_per_tenant: int = MAX_REMEMBERED_RESPONSES
    ) -> None:
        self._max_bytes = max_bytes
        self._max_per_tenant = max_per_tenant
        self._kept: dict[str, OrderedDict[str, _Kept]] = {}
        self._bytes: dict[str, int] = {}

    def get(self, tenant: str, response: str) -> tuple[Message, ...] | None:
        """The messages, now the most recently used; None when they are not here (any more). O(1)."""
        mine = self._kept.get(tenant)
        if mine is None or response not in mine:
            return None
        mine.move_to_end(response)
        return mine[response].messages

    def put(self, tenant: str, response: str, messages: tuple[Message, ...]) -> None:
        """Remember, in place of what had this id, unless it alone is larger than the memory. O(messages)."""
        self.forget(tenant, response)
        cost = cost_of(response, messages)
        if cost > self._max_bytes:
            return
        self._kept.setdefault(tenant, OrderedDict())[response] = _Kept(messages, cost)
        self._bytes[tenant] = self._bytes.get(tenant, 0) + cost
        while len(self._kept[tenant]) > self._max_per_tenant:
            self._drop_oldest(tenant)
        while sum(self._bytes.values()) > self._max_bytes:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def forget(self, tenant: str, response: str) -> bool:
        """Whether there was something to forget."""
        mine = self._kept.get(tenant)
        if mine is None or response not in mine:
            return False
        self._settle(tenant, mine.pop(response).cost)
        return True

    def check_integrity(self) -> None:
        """Counts and bytes are right and within their bounds; no tenant is kept for nothing."""
        assert self._bytes.keys() == self._kept.keys()
        for tenant, kept in self._kept.items():
            assert 0 < len(kept) <= self._max_per_tenant
            assert self._bytes[tenant] == sum(one.cost for one in kept.values())
            assert all(one.cost == cost_of(response, one.messages) for response, one in kept.items())
        assert sum(self._bytes.values()) <= self._max_bytes

    def __repr__(self) -> str:
        count = sum(map(len, self._kept.values()))
        size = sum(self._bytes.values())
        return f"ResponseMemory({count} responses of {len(self._kept)} tenants, {size} of {self._max_bytes} bytes)"

    def _drop_oldest(self, tenant: str) -> None:
        _, kept = self._kept[tenant].popitem(last=False)
        self._settle(tenant, kept.cost)

    def _settle(self, tenant: str, freed: int) -> None:
        self._bytes[tenant] -= freed
        if not self._kept[tenant]:
            del self._kept[tenant], self._bytes[tenant]


def cost_of(response: str, messages: Sequence[Message]) -> int:
    """About how many bytes an entry holds. Texts that several entries share count in each."""
    blocks = (_cost(block) for message in messages for block in message.blocks)
    return _ENTRY_BYTES + sys.getsizeof(response) + sum(blocks) + _OBJECT_BYTES * len(messages)


def _cost(block: Block) -> int:
    match block:
        case Text(text) | Thinking(text):
            return _OBJECT_BYTES + sys.getsizeof(text)
        case ToolCall(call, name, arguments):
            return _OBJECT_BYTES + sys.getsizeof(call) + sys.getsizeof(name) + sys.getsizeof(arguments)
        case ToolResult(call, content):
            return _OBJECT_BYTES + sys.getsizeof(call) + sum(map(_cost, content))
    return 2 * _OBJECT_BYTES
