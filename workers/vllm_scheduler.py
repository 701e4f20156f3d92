"""vLLM's own schedulers, whose forms go on behind tokens that another engine generated. They run inside the engine.

vLLM advances a form (schema, grammar, tool call) only over what it generates itself. A resumed answer's beginning is in
its prompt: a form that began there would be written again from the start. So the form is advanced over the beginning as
soon as it is compiled, before the request is scheduled; one that does not allow the beginning fails that request only.

Made for vLLM 0.32: `StructuredOutputManager._create_grammar` compiles the form of one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from workers.resumed import RESUMED

if TYPE_CHECKING:
    from collections.abc import Callable


def _resuming(compile_form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`compile_form`, and the form advanced over the request's resumed tokens."""

    def compiled(request: Any) -> Any:
        form = compile_form(request)
        count = (request.sampling_params.extra_args or {}).get(RESUMED, 0)
        if count and not form.accept_tokens(request.request_id, list(request.prompt_token_ids[-count:])):
            raise ValueError(f"the form does not allow the {count} tokens that the answer began with")
        return form

    return compiled


class ResumingScheduler(Scheduler):  # type: ignore[misc]
    """For engines that wait for each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        forms = self.structured_output_manager
        forms._create_grammar = _resuming(forms._create_grammar)  # noqa: SLF001 - see above


class ResumingAsyncScheduler(AsyncScheduler):  # type: ignore[misc]
    """For engines that prepare a step while the last one runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        forms = self.structured_output_manager
        forms._create_grammar = _resuming(forms._create_grammar)  # noqa: SLF001 - see above
