"""How model families write reasoning and calls: which parser reads them, and the marks around a call.

Parsers have the names that vLLM gives them. A family is known by marks in its chat template, which fine-tunes keep, and
where several share their marks by the model's type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Family(NamedTuple):
    """Names of the parsers of calls and of reasoning; None: the family has none."""

    tool_parser: str | None
    reasoning_parser: str | None


AUTOMATIC: Final = Family("auto", "auto")
NONE: Final = "none"


class CallMarks(NamedTuple):
    """What stands around calls. The first of `opens` begins a region of calls, the others each call in it; `close` ends
    the region, "" where nothing does."""

    opens: tuple[str, ...]
    close: str

    @property
    def holds_one(self) -> bool:
        """Whether a region is one call."""
        return bool(self.close) and len(self.opens) == 1


class _Rule(NamedTuple):
    """`parser` reads a model whose template has all `marks` and whose type begins with one of `types` (none: any)."""

    parser: str
    marks: tuple[str, ...]
    types: tuple[str, ...] = ()


# The first that fits.
_TOOLS: Final = (
    _Rule("openai", (), ("gpt_oss",)),
    _Rule("deepseek_v4", (), ("deepseek_v4",)),
    _Rule("deepseek_v32", (), ("deepseek_v32",)),
    _Rule("deepseek_v32", ("<｜DSML｜",)),
    _Rule("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    _Rule("deepseek_v31", ("<｜tool▁call▁begin｜>",)),
    _Rule("kimi_k2", ("<|tool_calls_section_begin|>",)),
    _Rule("minimax_m2", ("<minimax:tool_call>",)),
    _Rule("seed_oss", ("<seed:tool_call>",)),
    _Rule("longcat", ("<longcat_tool_call>",)),
    _Rule("glm47", ("<arg_key>",), ("glm4_moe_lite", "glm_moe_dsa")),
    _Rule("glm45", ("<arg_key>",)),
    _Rule("step3p5", ("<function=",), ("step3p5",)),
    _Rule("mimo", ("<function=",), ("mimo",)),
    _Rule("qwen3_coder", ("<function=", "<parameter=")),
    _Rule("gemma4", ("<|tool_call>",)),
    _Rule("functiongemma", ("<start_function_call>",)),
    _Rule("lfm2", ("<|tool_call_start|>",)),
    _Rule("olmo3", ("<function_calls>",), ("olmo3",)),
    _Rule("jamba", ("<tool_calls>",), ("jamba",)),
    _Rule("hunyuan_a13b", ("<tool_calls>",), ("hunyuan",)),
    _Rule("internlm", ("<|plugin|>",)),
    _Rule("mistral", ("[TOOL_CALLS]",)),
    _Rule("granite4", ("<tool_call>",), ("granite",)),
    _Rule("granite", ("<|tool_call|>",), ("granite",)),
    _Rule("phi4_mini_json", ("<|tool_call|>",), ("phi",)),
    _Rule("llama4_pythonic", ("ipython",), ("llama4",)),
    _Rule("llama3_json", ("ipython", '"parameters": '), ("llama", "mllama")),
    _Rule("llama3_json", ("<|python_tag|>",)),
    _Rule("ernie45", ("<tool_call>",), ("ernie4_5",)),
    _Rule("hermes", ("<tool_call>",)),
)
_REASONING: Final = (
    _Rule("openai_gptoss", (), ("gpt_oss",)),
    _Rule("deepseek_v4", (), ("deepseek_v4",)),
    _Rule("deepseek_v3", (), ("deepseek_v32",)),
    _Rule("deepseek_v3", ("</think>", "thinking"), ("deepseek",)),
    _Rule("deepseek_r1", ("</think>", "<｜Assistant｜>")),
    _Rule("kimi_k2", ("</think>",), ("kimi",)),
    _Rule("kimi_k2", ("</think>", "<|tool_calls_section_begin|>")),
    _Rule("minimax_m2", ("</think>",), ("minimax",)),
    _Rule("minimax_m2", ("</think>", "<minimax:tool_call>")),
    _Rule("seed_oss", ("<seed:think>",)),
    _Rule("glm47", ("</think>",), ("glm4_moe_lite", "glm_moe_dsa")),
    _Rule("glm45", ("</think>",), ("glm",)),
    _Rule("step3p5", ("</think>",), ("step3p5",)),
    _Rule("mimo", ("</think>",), ("mimo",)),
    _Rule("nemotron_v3", ("</think>",), ("nemotron",)),
    _Rule("gemma4", ("<|channel>",)),
    _Rule("mistral", ("[THINK]",)),
    _Rule("granite", ("Here is my thought process",)),
    _Rule("ernie45", ("</think>",), ("ernie4_5",)),
    _Rule("hunyuan_a13b", ("<think>",), ("hunyuan",)),
    _Rule("olmo3", ("<think>",), ("olmo3",)),
    _Rule("qwen3", ("</think>",)),
    _Rule("qwen3", ("<think>",)),
)

_TAGS: Final = CallMarks(("<tool_call>",), "</tool_call>")
_DEEPSEEK: Final = CallMarks(("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), "<｜tool▁calls▁end｜>")
_MARKS: Final[Mapping[str, CallMarks]] = {
    "hermes": _TAGS,
    "qwen3_json": _TAGS,
    "qwen3_coder": _TAGS,
    "qwen3_xml": _TAGS,
    "step3p5": _TAGS,
    "mimo": _TAGS,
    "glm45": _TAGS,
    "glm47": _TAGS,
    "granite4": _TAGS,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "deepseek_v32": CallMarks(("<｜DSML｜function_calls>", "<｜DSML｜invoke"), "</｜DSML｜function_calls>"),
    "kimi_k2": CallMarks(("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), "<|tool_calls_section_end|>"),
    "minimax_m2": CallMarks(("<minimax:tool_call>", "<invoke"), "</minimax:tool_call>"),
    "seed_oss": CallMarks(("<seed:tool_call>",), "</seed:tool_call>"),
    "longcat": CallMarks(("<longcat_tool_call>",), "</longcat_tool_call>"),
    "gemma4": CallMarks(("<|tool_call>",), "<tool_call|>"),
    "functiongemma": CallMarks(("<start_function_call>",), "<end_function_call>"),
    "lfm2": CallMarks(("<|tool_call_start|>",), "<|tool_call_end|>"),
    "jamba": CallMarks(("<tool_calls>",), "</tool_calls>"),
    "mistral": CallMarks(("[TOOL_CALLS]",), ""),
    "llama3_json": CallMarks(("<|python_tag|>",), ""),
    "llama4_json": CallMarks(("<|python_tag|>",), ""),
}


def family_of(config: Mapping[str, object], template: str) -> Family:
    """The family of a model, by its config.json and chat template. O(template) for each rule."""
    kind = _model_type(config)
    return Family(_first(_TOOLS, kind, template), _first(_REASONING, kind, template))


def settled(wanted: Family, found: Family) -> Family:
    """What an operator said, and what was found where they left it to `AUTOMATIC`."""

    def one(said: str | None, known: str | None) -> str | None:
        return known if said == "auto" else None if said == NONE else said

    return Family(one(wanted.tool_parser, found.tool_parser), one(wanted.reasoning_parser, found.reasoning_parser))


def call_marks(tool_parser: str | None) -> CallMarks | None:
    """The marks around calls that this parser reads, None where they are not known."""
    return None if tool_parser is None else _MARKS.get(tool_parser)


def named_parsers() -> Family:
    """Every name in the tables, for checking that the parsers exist: calls' and reasoning's, joined by spaces."""
    tools = {rule.parser for rule in _TOOLS} | set(_MARKS)
    return Family(" ".join(sorted(tools)), " ".join(sorted({rule.parser for rule in _REASONING})))


def _model_type(config: Mapping[str, object]) -> str:
    """Models with several modalities say their language model's type inside."""
    inner = config.get("text_config")
    kind = config.get("model_type")
    if isinstance(inner, dict) and isinstance(inner.get("model_type"), str) and not isinstance(kind, str):
        kind = inner["model_type"]
    return kind if isinstance(kind, str) else ""


def _first(rules: tuple[_Rule, ...], kind: str, template: str) -> str | None:
    for rule in rules:
        if rule.types and not kind.startswith(rule.types):
            continue
        if (rule.types or rule.marks) and all(mark in template for mark in rule.marks):
            return rule.parser
    return None
