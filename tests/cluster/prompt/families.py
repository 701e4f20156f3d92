"""Chat templates in the manner of model families, written for these tests, each with the trouble it makes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, NamedTuple

from tokenizers import AddedToken, Tokenizer

from cluster.prompt.template import Form
from cluster.prompt.traits import Traits

if TYPE_CHECKING:
    from pathlib import Path


class Family(NamedTuple):
    """`forgets_thoughts`: reasoning of earlier tasks goes, whatever it is asked. `marks` become special tokens."""

    name: str
    template: str
    traits: Traits
    marks: tuple[str, ...]
    forgets_thoughts: bool = False

    def __str__(self) -> str:
        return self.name


_CHATML_TURNS = """
{%- set ns = namespace(last_user=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}
{%- if SYSTEM_ONLY_FIRST and not loop.first -%}{{ raise_exception('System message must come first') }}{%- endif -%}
{%- if not loop.first -%}{{ '<|im_start|>system\\n' ~ m.content ~ '<|im_end|>\\n' }}{%- endif -%}
{%- elif m.role == 'user' -%}{{ '<|im_start|>user\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' -%}
{{ '<|im_start|>assistant\\n' }}
{%- if m.reasoning_content and (preserve_thinking or loop.index0 > ns.last_user) -%}
{{ '<think>\\n' ~ m.reasoning_content.strip('\\n') ~ '\\n</think>\\n\\n' }}
{%- endif -%}
{{ m.content }}
{%- for c in m.tool_calls or [] -%}
{{ '\\n<tool_call>\\n{"name": "' ~ c.function.name ~ '", "arguments": ' }}
{{- c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\\n<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}
{%- endif -%}
"""
_TOOL_LINES = "{% for t in tools %}{{ '\\n' ~ (t | tojson) }}{% endfor %}"
_CHATML_HEAD = """
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if system or tools -%}{{ '<|im_start|>system\\n' }}HEAD{{ '<|im_end|>\\n' }}{%- endif -%}
"""
_SYSTEM_FIRST = _CHATML_HEAD.replace(
    "HEAD", "{{ system }}{%- if tools -%}{{ '\\n\\n# Tools' }}" + _TOOL_LINES + "{%- endif -%}"
)
_TOOLS_FIRST = _CHATML_HEAD.replace(
    "HEAD", "{%- if tools -%}{{ '# Tools' }}" + _TOOL_LINES + "{{ '\\n\\n' }}{%- endif -%}{{ system }}"
)

CHATML = Family(
    "chatml",
    """
{%- if reasoning_effort is defined and reasoning_effort not in ('low', 'medium', 'xhigh') -%}
{{ raise_exception('Unexpected effort') }}
{%- endif -%}
"""
    + _SYSTEM_FIRST
    + _CHATML_TURNS.replace("SYSTEM_ONLY_FIRST", "true"),
    Traits(accepts_inline_system=False, efforts=("low", "medium", "xhigh")),
    ("<|im_start|>", "<|im_end|>"),
)
TOOLS_FIRST = Family(
    "chatml-tools-first", _TOOLS_FIRST + _CHATML_TURNS.replace("SYSTEM_ONLY_FIRST", "false"), Traits(), CHATML.marks
)
CHATML_FORGETFUL = Family(
    "chatml-forgetful",
    CHATML.template.replace("preserve_thinking or ", ""),
    CHATML.traits._replace(keeps_thinking=False),
    CHATML.marks,
    forgets_thoughts=True,
)

LLAMA = Family(
    "llama",
    """
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{{- bos_token ~ '<|start_header_id|>system<|end_header_id|>\\n\\n' -}}
{%- if tools -%}{{ 'Environment: ipython\\n' }}{% for t in tools %}{{ (t | tojson) ~ '\\n' }}{% endfor %}{%- endif -%}
{{- system ~ '<|eot_id|>' -}}
{%- for m in messages -%}
{%- if m.role == 'system' and loop.first -%}
{%- elif m.role == 'tool' or m.role == 'ipython' -%}
{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' ~ m.content ~ '<|eot_id|>' }}
{%- elif 'tool_calls' in m -%}
{%- if m.tool_calls | length != 1 -%}{{ raise_exception('Only single tool calls at once!') }}{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' ~ call.name ~ '", "parameters": ' }}
{{- call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- else -%}
{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ (m.content | trim) ~ '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}
""",
    Traits(
        parallel_calls=False,
        text_beside_calls=False,
        keeps_thinking=False,
        thinking_switch=False,
    ),
    ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"),
)

MISTRAL = Family(
    "mistral",
    """
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- set rest = messages[1:] if system else messages -%}
{%- set ns = namespace(turn=0) -%}
{%- for m in rest -%}
{%- if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is not defined) -%}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) -%}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{%- set ns.turn = ns.turn + 1 -%}
{%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- if tools -%}{{ '[AVAILABLE_TOOLS]' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{%- endif -%}
{%- for m in rest -%}
{%- if m.role == 'user' -%}
{{ '[INST]' ~ ((system ~ '\\n\\n') if loop.last and system else '') ~ m.content ~ '[/INST]' }}
{%- elif m.tool_calls is defined -%}
{{ m.content ~ '[TOOL_CALLS][' }}
{%- for c in m.tool_calls -%}
{%- if c.id | length != 9 -%}{{ raise_exception('Call ids have nine letters and digits') }}{%- endif -%}
{{ (', ' if not loop.first else '') ~ '{"name": "' ~ c.function.name ~ '", "arguments": ' }}
{{- c.function.arguments | tojson }}{{ ', "id": "' ~ c.id ~ '"}' }}
{%- endfor -%}
{{ ']' ~ eos_token }}
{%- elif m.role == 'assistant' -%}{{ m.content ~ eos_token }}
{%- elif m.role == 'tool' -%}
{{ '[TOOL_RESULTS]{"content": ' ~ (m.content | tojson) ~ ', "call_id": "' ~ m.tool_call_id ~ '"}[/TOOL_RESULTS]' }}
{%- else -%}{{ raise_exception('Only user, assistant and tool roles are supported!') }}
{%- endif -%}
{%- endfor -%}
""",
    Traits(
        accepts_system=False,  # it would move with each turn
        accepts_inline_system=False,
        needs_alternation=True,
        accepts_user_after_tool=False,
        keeps_thinking=False,
        thinking_switch=False,
        renders_call_ids=True,
        short_call_ids=True,
    ),
    ("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "</s>", "<s>"),
)

R1 = Family(
    "r1",
    """
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{ messages[0].content }}{%- endif -%}
{%- if tools -%}{{ '\\n## Tools' }}{% for t in tools %}{{ '\\n' ~ (t | tojson) }}{% endfor %}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '<|User|>' ~ m.content }}
{%- elif m.role == 'assistant' and m.content is none -%}
{{ '<|Assistant|>' }}
{%- for c in m.tool_calls -%}
{{ '<|call|>' + c.function.name + '\\n```json\\n' + c.function.arguments + '\\n```<|call_end|>' }}
{%- endfor -%}
{{ eos_token }}
{%- elif m.role == 'assistant' -%}
{%- set said = m.content.split('</think>')[-1] if '</think>' in m.content else m.content -%}
{{ '<|Assistant|>' ~ said ~ eos_token }}
{%- elif m.role == 'tool' -%}{{ '<|output|>' ~ m.content ~ '<|output_end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|Assistant|><think>\\n' }}{%- endif -%}
""",
    Traits(
        accepts_inline_system=False,
        text_beside_calls=False,
        keeps_thinking=False,
        thinking_switch=False,
        form=Form("text", null_content=True),
    ),
    ("<|User|>", "<|Assistant|>", "<|call|>", "<|call_end|>", "<|output|>", "<|output_end|>", "</s>", "<s>"),
)

GEMMA = Family(
    "gemma",
    """
{{- bos_token -}}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}
{{ '<start_of_turn>' ~ role ~ '\\n' ~ (m.content | trim) ~ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
""",
    Traits(
        accepts_system=False,
        accepts_inline_system=False,
        needs_alternation=True,
        supports_tools=False,
        keeps_thinking=False,
        thinking_switch=False,
    ),
    ("<start_of_turn>", "<end_of_turn>", "<bos>"),
)

GLM = Family(
    "glm",
    """
{{- '[gMASK]<sop>' -}}
{%- if tools -%}{{ '<|system|>\\n# Tools' }}{% for t in tools %}{{ '\\n' ~ (t | tojson) }}{% endfor %}{%- endif -%}
{%- set ns = namespace(last_user=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '<|user|>\\n' ~ m.content }}
{%- elif m.role == 'system' -%}{{ '<|system|>\\n' ~ m.content }}
{%- elif m.role == 'assistant' -%}
{{ '<|assistant|>' }}
{%- if m.reasoning_content and (not clear_thinking or loop.index0 > ns.last_user) -%}
{{ '<think>' ~ m.reasoning_content.strip() ~ '</think>' }}
{%- endif -%}
{{ m.content }}
{%- for c in m.tool_calls or [] -%}
{{ '<tool_call>' ~ c.function.name }}
{%- for key, value in c.function.arguments.items() -%}
{{ '<arg_key>' ~ key ~ '</arg_key><arg_value>' ~ (value if value is string else value | tojson) ~ '</arg_value>' }}
{%- endfor -%}
{{ '</tool_call>' }}
{%- endfor -%}
{%- elif m.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{ '<|observation|>' }}{%- endif -%}
{{ '<tool_response>' ~ m.content ~ '</tool_response>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>' ~ ('<think></think>' if enable_thinking is defined and not enable_thinking else '') }}
{%- endif -%}
""".replace("clear_thinking or", "(clear_thinking is not defined or clear_thinking) or"),
    Traits(text_arguments=False),
    ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>"),
)

CHANNELS = Family(
    "channels",
    """
{{- '<|start|>system<|message|>Reasoning: ' ~ (reasoning_effort or 'medium') ~ '<|end|>' -}}
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
{{ '<|start|>developer<|message|>' ~ system }}
{%- for t in tools or [] -%}
{{ '\\ntype ' ~ t.function.name ~ ' // ' ~ t.function.description ~ ' ' ~ (t.function.parameters | tojson) }}
{%- endfor -%}
{{ '<|end|>' }}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'system' and loop.first -%}
{%- elif m.role == 'assistant' and m.tool_calls -%}
{%- if m.content and m.thinking -%}{{ raise_exception('Either content or thinking') }}{%- endif -%}
{%- if m.tool_calls | length > 1 -%}{{ raise_exception('One call at a time') }}{%- endif -%}
{%- set later = messages[loop.index:] | selectattr('role', 'equalto', 'assistant') -%}
{%- set done = later | rejectattr('tool_calls', 'defined') | list | length > 0 -%}
{%- if m.content -%}{{ '<|start|>assistant<|channel|>analysis<|message|>' ~ m.content ~ '<|end|>' }}
{%- elif m.thinking and not done -%}{{ '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' }}
{%- endif -%}
{%- set c = m.tool_calls[0].function -%}
{{ '<|start|>assistant<|channel|>commentary to=functions.' ~ c.name ~ ' json<|message|>' }}
{{- (c.arguments | tojson) ~ '<|call|>' }}
{%- elif m.role == 'assistant' -%}
{%- if m.thinking and loop.last and not add_generation_prompt -%}
{{ '<|start|>assistant<|channel|>analysis<|message|>' ~ m.thinking ~ '<|end|>' }}
{%- endif -%}
{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' }}
{%- elif m.role == 'tool' -%}
{{ '<|start|>functions.' ~ m.name ~ ' to=assistant<|channel|>commentary<|message|>' }}
{{- (m.content | tojson) ~ '<|end|>' }}
{%- else -%}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}
""",
    Traits(
        parallel_calls=False,
        thinking_beside_calls=False,
        keeps_thinking=False,
        thinking_switch=False,
        efforts=("low", "medium", "high"),
    ),
    ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"),
    forgets_thoughts=True,
)

PARTS = Family(
    "parts",
    """
{%- for m in messages -%}
{{ '<|im_start|>' ~ m.role ~ ':' }}
{%- for part in m.content -%}{%- if part.type == 'text' -%}{{ part.text }}{%- endif -%}{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant:' }}{%- endif -%}
""",
    Traits(supports_tools=False, keeps_thinking=False, thinking_switch=False, form=Form(content_parts=True)),
    CHATML.marks,
)

FAMILIES = (CHATML, TOOLS_FIRST, CHATML_FORGETFUL, LLAMA, MISTRAL, R1, GEMMA, GLM, CHANNELS, PARTS)


def write_family(family: Family, folder: Path, tiny_model: Path, *, special: bool = True) -> Path:
    """A model folder: the demo model's tokenizer with the family's marks, special or just added, and its template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=special) for mark in family.marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": family.template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    shutil.copy(tiny_model / "config.json", folder / "config.json")
    return folder
