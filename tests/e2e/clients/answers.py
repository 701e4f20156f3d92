"""What the simulated model says to the clients, by what it was told last."""

from __future__ import annotations

import json
from typing import Any

WEATHER_QUESTION = "How is the weather in Malmö?"
WEATHER_THOUGHT = "I cannot know. The tool can."
WEATHER_LEAD = "I look."
WEATHER_ARGUMENTS = {"city": "Malmö", "days": 2}
WEATHER_REPORT = "Rain until four, 11 °C"
WEATHER_ANSWER = "It rains until four: “take an umbrella” ☂."

BOTH_QUESTION = "Compare Malmö and Lund."
BOTH_ARGUMENTS = [{"city": "Malmö", "days": 1}, {"city": "Lund", "days": 1}]

PLAIN_QUESTION = "Say hello."
PLAIN_ANSWER = "Hello, and välkommen."

STALLED_QUESTION = "Read all of this first."
STALLED_ANSWER = "I have read it."
STALL_S = 11.0

BROKEN_QUESTION = "Tell a long story."
BROKEN_START = "Once upon a time"
BROKEN_TEXT = (
    f"{BROKEN_START} there was a birch that stood alone on a hill above the lake, and whoever came by in autumn"
)
BROKEN_AFTER_TOKENS = 30
BROKEN_REST = "carved a letter into its bark."

# The note's word stands in its file only: whoever is told it has run the tool.
NOTE_WORD = "birch-4711"
CLAUDE_CODE_QUESTION = "Which word is in note.txt?"
CLAUDE_CODE_CALLS = [
    ("Bash", {"command": "cat note.txt", "description": "Read the note"}),
    ("Bash", {"command": "wc -c note.txt", "description": "Count its bytes"}),
]
CODEX_QUESTION = "What does note.txt say?"
CODEX_CALLS = [("exec_command", {"cmd": "cat note.txt"})]
NOTE_THOUGHT = "The file will say."
NOTE_LEAD = "I read the note."
NOTE_ANSWER = f"The word is {NOTE_WORD}."
NEXT_QUESTION = "Was it worth the walk?"
NEXT_ANSWER = "Every step of it."


def call(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as the tiny model's template writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def thinking(thought: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n"


def calls(*named: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(call(name, arguments) for name, arguments in named)


def script() -> list[dict[str, Any]]:
    """All of it, as the simulator's setting `answers`."""
    weather = [("get_weather", arguments) for arguments in (WEATHER_ARGUMENTS, *BOTH_ARGUMENTS)]
    note = f"{thinking(NOTE_THOUGHT)}{NOTE_LEAD}\n"
    return [
        {"after": WEATHER_QUESTION, "text": f"{thinking(WEATHER_THOUGHT)}{WEATHER_LEAD}\n{calls(weather[0])}"},
        {"after": WEATHER_REPORT, "text": WEATHER_ANSWER},
        {"after": BOTH_QUESTION, "text": calls(*weather[1:])},
        {"after": PLAIN_QUESTION, "text": PLAIN_ANSWER},
        {"after": STALLED_QUESTION, "text": STALLED_ANSWER, "stall_s": STALL_S},
        {"after": BROKEN_QUESTION, "text": BROKEN_TEXT, "fails_after_tokens": BROKEN_AFTER_TOKENS},
        {"after": BROKEN_START, "text": BROKEN_REST},  # whoever sends the broken answer back is told the rest
        {"after": CLAUDE_CODE_QUESTION, "text": note + calls(*CLAUDE_CODE_CALLS)},
        {"after": CODEX_QUESTION, "text": note + calls(*CODEX_CALLS)},
        {"after": NOTE_WORD, "text": NOTE_ANSWER},
        {"after": NEXT_QUESTION, "text": NEXT_ANSWER},
    ]
