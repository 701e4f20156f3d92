"""Bodies that a server must refuse, or must not stumble over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.conformance.protocol.bodies import chat, messages
from tests.conformance.protocol.edges import shaped
from tests.conformance.protocol.probe import CHAT, MESSAGES, Behaviour, Verdict

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Json, Server, Status

DEPTH = 20_000
PRIVATE: tuple[tuple[str, Json], ...] = (
    (MESSAGES, {"vllm_xargs": {"kv_cache_report_mode": "full"}}),
    (MESSAGES, {"chat_template_kwargs": {"enable_thinking": False}}),
    (MESSAGES, {"kv_transfer_params": {"do_remote_prefill": True}}),
    (CHAT, {"vllm_xargs": {"kv_cache_report_mode": "full"}}),
    (CHAT, {"chat_template": "{{ messages }}"}),
)


async def private_fields(server: Server) -> Verdict:
    """The engine's own switches are not for clients."""
    accepted = []
    for path, fields in PRIVATE:
        body = messages() if path == MESSAGES else chat()
        reply = await server.post(path, body | fields)
        if reply.status != 400:
            accepted.append(f"{next(iter(fields))} ({path.rsplit('/', 1)[-1]}: {reply.status})")
    status: Status = "no" if len(accepted) == len(PRIVATE) else "partly"
    return Verdict(status if accepted else "yes", f"not refused: {', '.join(accepted)}" if accepted else "")


async def unknown_fields(server: Server) -> Verdict:
    """Real clients send fields and betas that a server has never heard of."""
    fields = {"context_management": {"edits": []}, "safeguards": [], "diagnostics": {}, "from_tomorrow": 1}
    body = messages(**fields, metadata={"user_id": "a"}, output_config={"effort": "high"})
    beta = {"authorization": "Bearer conformance-key", "anthropic-beta": "from-tomorrow-2027-01-01"}
    reply = await server.post(f"{MESSAGES}?beta=true", body, headers=beta)
    return Verdict("yes" if reply.status == 200 else "no", "" if reply.status == 200 else reply.words)


async def deep_nesting(server: Server) -> Verdict:
    """In a field that is read, and in one that is not."""
    nest = "[" * DEPTH + "]" * DEPTH
    plain = json.dumps({"model": server.model} | messages())
    in_content = plain.replace(json.dumps(messages()["messages"][0]["content"]), nest)
    in_metadata = plain[:-1] + f', "metadata": {nest}}}'
    replies = [await server.send("POST", MESSAGES, data=body.encode()) for body in (in_content, in_metadata)]
    verdicts = [shaped(reply, 400, "invalid_request_error") for reply in replies]
    worst = max(verdicts, key=lambda verdict: ("yes", "partly", "no").index(verdict.status))
    return Verdict(worst.status, worst.detail)


BEHAVIOURS = (
    Behaviour("private-fields", "Engine-private fields and chat templates are refused with 400", private_fields),
    Behaviour("unknown-fields", "Unknown fields, betas and query parameters are ignored", unknown_fields, "engine"),
    Behaviour("deep-nesting", f"JSON of {DEPTH:,} levels is a 400 in Anthropic's shape, not a 500", deep_nesting),
)
