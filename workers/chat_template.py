"""Chat template of the demo model: ChatML turns, tool calls, and thinking that stays in the history.

Two layouts of the head differ in what a changed system text costs: `system-first` puts it before the tools (every tool
after it is computed again), `tools-first` after them.
"""

from __future__ import annotations

from typing import Final, Literal

HeadLayout = Literal["system-first", "tools-first"]

_MACROS: Final = """
{%- macro text_of(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}
{%- for part in content -%}{{ part if part is string else part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro tool_text() -%}
# Tools

These functions can be called. Each line between the tags describes one, as JSON:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>

To call one, write its name and arguments as JSON between tags of their own:
<tool_call>
{"name": "the function", "arguments": {"the parameter": "its value"}}
</tool_call>
{%- endmacro -%}
{%- set found = namespace(system='', first=0, last_user=-1) -%}
{%- if messages and messages[0].role in ('system', 'developer') -%}
{%- set found.system = text_of(messages[0].content) -%}{%- set found.first = 1 -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set found.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- set keep_thinking = preserve_thinking is not defined or preserve_thinking -%}
"""

_HEAD: Final[dict[HeadLayout, str]] = {
    "system-first": """
{%- if tools or found.system -%}
{{- '<|im_start|>system\\n' ~ found.system -}}
{%- if tools -%}{{- ('\\n\\n' if found.system else '') ~ tool_text() -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
""",
    "tools-first": """
{%- if tools or found.system -%}
{{- '<|im_start|>system\\n' -}}
{%- if tools -%}{{- tool_text() ~ ('\\n\\n' if found.system else '') -}}{%- endif -%}
{{- found.system ~ '<|im_end|>\\n' -}}
{%- endif -%}
""",
}

_TURNS: Final = """
{%- for message in messages[found.first:] -%}
{%- set at = loop.index0 + found.first -%}
{%- if message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if message.reasoning_content and (keep_thinking or at > found.last_user) -%}
{{- '<think>\\n' ~ message.reasoning_content.strip('\\n') ~ '\\n</think>\\n\\n' -}}
{%- endif -%}
{%- set said = text_of(message.content) -%}
{{- said -}}
{%- for call in message.tool_calls or [] -%}
{%- set call = call.function if call.function else call -%}
{{- ('\\n' if said or not loop.first else '') ~ '<tool_call>\\n{"name": ' ~ (call.name | tojson) ~ ', "arguments": ' -}}
{{- (call.arguments if call.arguments is string else call.arguments | tojson) ~ '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' ~ text_of(message.content) ~ '\\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- else -%}
{{- '<|im_start|>' ~ ('system' if message.role == 'developer' else message.role) ~ '\\n' -}}
{{- text_of(message.content) ~ '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""


def chat_template(layout: HeadLayout) -> str:
    """Jinja text of one layout. Renders `messages`, `tools`, `add_generation_prompt`, `enable_thinking` and
    `preserve_thinking` (on unless set to false)."""
    return _MACROS + _HEAD[layout] + _TURNS
