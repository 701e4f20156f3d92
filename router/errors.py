"""Errors that say whose fault it is; foreign exceptions are mapped to these at the edge.

ClientError   the caller's: the message is safe to show and says what to do
ReplicaError  a replica's: another one may be tried
KvistBug      ours: shown as an internal error, never with its text
"""

import math


class KvistError(Exception):
    """Root of everything Kvist raises on purpose."""


class ClientError(KvistError):
    """The request cannot be served as sent. The message goes to the client as it is."""


class InvalidRequest(ClientError):
    """Malformed, out of range, or not supported yet."""


class PromptTooLong(ClientError):
    """The prompt does not fit the model's context window."""

    def __init__(self, prompt_tokens: int, max_tokens: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {max_tokens} maximum")
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class RequestTooLarge(ClientError):
    """The body exceeds a named limit."""


class Unauthorized(ClientError):
    """No key, or an unknown one."""


class Forbidden(ClientError):
    """The key is known, and does not open this."""


class RateLimited(ClientError):
    """The tenant has asked for more than its share; the same request may be sent again after a while."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(f"{message}; try again in {math.ceil(retry_after_s)} s")
        self.retry_after_s = retry_after_s


class UnknownResponse(ClientError):
    """No remembered response has this id."""


class UnknownModel(ClientError):
    """No configured model has this name."""


class ReplicaError(KvistError):
    """A replica failed; the request itself is fine."""


class ReplicaDied(ReplicaError):
    """It failed in the middle of a generation; what it was working on may be tried elsewhere."""


class ReplicaGone(ReplicaDied):
    """It serves nobody any more: its process or engine has ended, or it has fallen silent and nothing reaches it."""


class CutShort(ReplicaError):
    """A replica failed in the middle of an answer that cannot go on elsewhere exactly as it began. The message says
    what was asked for that stands against it, for operators."""


class Quarantined(ReplicaError):
    """Replicas died over this request, one after the other; it goes to no further one for a while."""


class ReplicaBusy(ReplicaError):
    """It has no free slot, drains, or cannot be reached: nothing was begun, and another one may be asked."""


class NoReplica(ReplicaError):
    """Nothing is routable now; the client should come back later."""


class DeadlinePassed(NoReplica):
    """It waited for a replica for as long as it may; the client should come back later."""


class WireError(ReplicaError):
    """A frame or snapshot is not what the protocol allows. The only error that leaves a decoder."""


class KvistBug(KvistError):
    """An invariant of our own is broken."""


class ModelUnusable(KvistError):
    """The operator's: a model folder or its settings cannot be served. The message goes to the operator as it is."""
