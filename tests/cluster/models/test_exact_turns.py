"""Prompts of returned turns extend the last prompt and its answer, in templates of many families."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import Tokenizer

from cluster.models.served import load_model
from cluster.prompt.canonical import Rules
from cluster.prompt.conversation import Conversation, Message, Text, Thinking, Tool, ToolCall, ToolResult
from cluster.prompt.exact_turns import Generated
from cluster.prompt.template import render
from cluster.prompt.turns import TurnMemory
from router.limits import MAX_OPENING_TOKENS, MAX_REDRAFTS
from tests.cluster.prompt.families import (
    CHANNELS,
    CHATML,
    CHATML_FORGETFUL,
    FAMILIES,
    GLM,
    LLAMA,
    MISTRAL,
    R1,
    TOOLS_FIRST,
    write_family,
)
from tests.cluster.support import packed
from workers.models import prepare_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cluster.models.served import Encoded
    from cluster.output.events import Said
    from cluster.prompt.conversation import Block
    from cluster.prompt.exact_turns import Draft
    from cluster.prompt.template import Ask, Turn
    from cluster.prompt.turns import KnownTurn
    from tests.cluster.prompt.families import Family

BASH = Tool(name="Bash", description="Runs a command.", parameters='{"type": "object"}')
ID = "call4bash"  # as every family takes it
ARGUMENTS = '{"command": "ls é/", "n": 1}'
GENERATED = '{"n": 1.0,  "command": "ls \\u00e9\\/"}'
QUESTION = Message("user", (Text("Look."),))
RESULT = Message("user", (ToolResult(ID, (Text("a.txt"),)),))
START = Conversation(api="messages", model="m", system=(Text("Be brief."),), messages=(QUESTION,), tools=(BASH,))


class Model:
    """One family's model, and what it says: its template's own words, but encoded character by character and with
    arguments that no client sends back like this. So nothing written anew is ever equal to it."""

    def __init__(self, folder: Path) -> None:
        self.served = load_model(folder, name="m", max_model_len=100_000, rules=Rules())
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def forget(self) -> None:
        """Start with an empty memory."""
        if self.served.turns is not None:
            self.served.turns._memory = TurnMemory(1_000_000)

    def remember(self, conversation: Conversation, generated: Generated, tenant: str = "a") -> None:
        """As if it had been said."""
        assert self.served.turns is not None
        self.served.turns.remember(conversation, tenant, generated)

    def past(self, conversation: Conversation) -> Any:
        """Of its draft."""
        return asyncio.run(self.served.draft(conversation, "a")).past

    @property
    def knows_nothing(self) -> bool:
        return self.served.turns is None or not self.served.turns._memory._turns

    def prompt(self, conversation: Conversation, tenant: str = "a") -> Encoded:
        async def encoded() -> Encoded:
            return await self.served.encode(await self.served.draft(conversation, tenant))

        return asyncio.run(encoded())

    def written(self, conversation: Conversation) -> bytes:
        """The prompt as the template writes it."""
        return asyncio.run(self.served.tokens(asyncio.run(self.served.prompt(conversation))))

    def text(self, tokens: bytes) -> str:
        ids = [int.from_bytes(tokens[i : i + 4], "little") for i in range(0, len(tokens), 4)]
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def words(self, conversation: Conversation, said: Sequence[Said]) -> str:
        """What the template writes for an answer, from the open header on."""
        answered = replace(conversation, messages=(*conversation.messages, Message("assistant", tuple(said))))
        whole = render(answered, self.served._template, ending="closed")
        opened = render(conversation, self.served._template, ending="open_turn")
        assert whole.startswith(opened)
        return whole[len(opened) :].rstrip("\n")

    def generate(self, conversation: Conversation, said: Sequence[Said], tenant: str = "a") -> Generated:
        """Answer, and remember it."""
        words = self.words(conversation, said).replace(ARGUMENTS, GENERATED)
        atoms = self.served._segmenter.atom_tokens()
        encoder = self.served._segmenter._encoder
        cut = self.served._segmenter.cut(words).segments
        tokens = b"".join(atoms.get(segment) or b"".join(encoder.encode_batch(list(segment))) for segment in cut)
        generated = Generated(self.prompt(conversation, tenant).tokens, self.past(conversation), said, tokens)
        self.remember(conversation, generated, tenant)
        return generated


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Callable[[Family], Model]:
    """Models by family, each loaded once; their memories are empty whenever they are asked for."""
    folders = tmp_path_factory.mktemp("families")
    loaded: dict[str, Model] = {}

    def model_of(family: Family) -> Model:
        if family.name not in loaded:
            loaded[family.name] = Model(write_family(family, folders / family.name, tiny_model))
        loaded[family.name].forget()
        return loaded[family.name]

    return model_of


@pytest.fixture(scope="module")
def chatml(models: Callable[[Family], Model]) -> Model:
    """For properties: they empty its memory themselves."""
    return models(CHATML)


@pytest.fixture
def model(models: Callable[[Family], Model]) -> Model:
    return models(CHATML)


def then(conversation: Conversation, *messages: Message) -> Conversation:
    return replace(conversation, messages=(*conversation.messages, *messages))


def assistant(*blocks: Block) -> Message:
    return Message("assistant", blocks)


def user(text: str) -> Message:
    return Message("user", (Text(text),))


CALL = ToolCall(ID, "Bash", ARGUMENTS)
AS_RETURNED = ToolCall(ID, "Bash", '{"n":1,"command":"ls é/"}')
THOUGHTFUL = [CHATML, TOOLS_FIRST, CHATML_FORGETFUL, GLM]
SPLICING = [family for family in FAMILIES if family is not R1]


@pytest.mark.parametrize("family", SPLICING, ids=lambda family: family.name)
def test_every_prompt_extends_the_last_one_and_its_answer(models: Callable[[Family], Model], family: Family) -> None:
    model = models(family)
    first = model.generate(START, [CALL])
    second = then(START, assistant(AS_RETURNED), RESULT)
    prompt = model.prompt(second)
    assert (prompt.spliced, prompt.tokens.startswith(first.prompt + first.tokens)) == (1, True)
    last = model.generate(second, [Text("There is a.txt.")])
    third = model.prompt(then(second, assistant(Text("There is a.txt.\n")), user("And now?")))
    assert (third.spliced, third.tokens.startswith(last.prompt + last.tokens)) == (2, True)


@pytest.mark.parametrize("family", SPLICING, ids=lambda family: family.name)
def test_a_spliced_prompt_reads_as_the_written_one_but_for_the_models_own_words(
    models: Callable[[Family], Model], family: Family
) -> None:
    model = models(family)
    model.generate(START, [CALL])
    second = then(START, assistant(CALL), RESULT)
    model.generate(second, [Text("There is a.txt.")])
    third = then(second, assistant(Text("There is a.txt.")), user("And now?"))
    prompt = model.prompt(third)
    assert prompt.spliced == 2
    assert model.text(prompt.tokens).replace(GENERATED, ARGUMENTS) == model.text(model.written(third))
    assert prompt.tokens != model.written(third)


@pytest.mark.parametrize("family", THOUGHTFUL, ids=lambda family: family.name)
@pytest.mark.parametrize("returned", [(Thinking("Hm."),), ()], ids=["kept", "dropped"])
def test_reasoning_stays_whether_the_client_returns_it_or_not(
    models: Callable[[Family], Model], family: Family, returned: tuple[Block, ...]
) -> None:
    model = models(family)
    first = model.generate(START, [Thinking("Hm."), Text("I look."), CALL])
    prompt = model.prompt(then(START, assistant(*returned, Text("I look."), AS_RETURNED), RESULT))
    assert (prompt.spliced, prompt.tokens.startswith(first.prompt + first.tokens)) == (1, True)
    assert "Hm." in model.text(prompt.tokens)


@pytest.mark.parametrize("returned", [(Thinking("Hm."),), ()], ids=["kept", "dropped"])
def test_a_turn_whose_reasoning_the_template_drops_is_written(
    models: Callable[[Family], Model], returned: tuple[Block, ...]
) -> None:
    model = models(CHATML_FORGETFUL)
    model.generate(START, [Thinking("Hm."), Text("I look."), CALL])
    task = then(START, assistant(*returned, Text("I look."), AS_RETURNED), RESULT)
    model.generate(task, [Thinking("So."), Text("There is a.txt.")])
    done = then(task, assistant(*returned, Text("There is a.txt.")), user("And now?"))
    assert model.prompt(done) == (model.written(done), 0)
    assert "Hm." not in model.text(model.written(done))


def test_one_rendering_is_enough_for_a_conversation_as_it_was(
    models: Callable[[Family], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is known beforehand that the template drops reasoning."""
    model = models(CHATML_FORGETFUL)
    model.generate(START, [Thinking("Hm."), CALL])
    task = then(START, assistant(CALL), RESULT)
    model.generate(task, [Thinking("So."), Text("There is a.txt.")])
    renderings: list[str] = []
    rendered = model.served._template.render

    def noted(turns: Sequence[Turn], ask: Ask) -> str:
        renderings.append(rendered(turns, ask))
        return renderings[-1]

    monkeypatch.setattr(model.served._template, "render", noted)
    model.prompt(task)
    model.prompt(then(task, assistant(Text("There is a.txt.")), user("And now?")))
    assert len(renderings) == 2


def test_a_turn_that_is_used_stays_longer_than_one_that_is_not(model: Model) -> None:
    other = then(START, user("Or there."))
    model.generate(START, [CALL])
    model.generate(other, [CALL])
    back = then(START, assistant(CALL), RESULT)
    assert model.prompt(back).spliced == 1
    assert model.served.turns is not None
    memory = model.served.turns._memory
    memory._max_bytes = memory._total_bytes
    model.generate(then(START, user("Or nowhere.")), [CALL])
    assert model.prompt(back).spliced == 1
    assert model.prompt(then(other, assistant(CALL), RESULT)).spliced == 0


def test_an_end_that_was_not_generated_is_the_templates(model: Model) -> None:
    first = model.generate(START, [Text("Yes.")])
    unended = first._replace(tokens=first.tokens[:-4])
    returned = then(START, assistant(Text("Yes.")), user("Why?"))
    ended = model.prompt(returned)
    model.remember(START, unended)
    assert model.prompt(returned) == ended
    assert ended.spliced == 1


def test_another_end_of_text_is_not_kept_beside_the_templates(model: Model) -> None:
    first = model.generate(START, [Text("Yes.")])
    returned = then(START, assistant(Text("Yes.")), user("Why?"))
    usual = model.prompt(returned)
    other = model.served._segmenter.atom_tokens()["<|endoftext|>"]
    model.remember(START, first._replace(tokens=first.tokens[:-4] + other))
    assert model.prompt(returned) == usual


def test_what_ends_a_call_stays_where_turns_have_no_end_of_their_own(models: Callable[[Family], Model]) -> None:
    model = models(CHANNELS)
    first = model.generate(START, [CALL])
    assert model.text(first.tokens).endswith("<|call|>")
    prompt = model.prompt(then(START, assistant(AS_RETURNED), RESULT))
    assert prompt.tokens.startswith(first.prompt + first.tokens)
    glm = models(GLM)
    called = glm.generate(START, [CALL])
    observed = glm.served._segmenter.atom_tokens()["<|observation|>"]
    glm.remember(START, called._replace(tokens=called.tokens + observed))
    prompt = glm.prompt(then(START, assistant(AS_RETURNED), RESULT))
    assert prompt.tokens.startswith(called.prompt + called.tokens + observed)
    assert not prompt.tokens.startswith(called.prompt + called.tokens + observed * 2)


def test_parallel_calls_are_spliced_together(model: Model) -> None:
    other = ToolCall("call5bash", "Bash", '{"command": "pwd"}')
    first = model.generate(START, [Text("Both."), CALL, other])
    results = Message("user", (*RESULT.blocks, ToolResult("call5bash", (Text("/"),))))
    prompt = model.prompt(then(START, assistant(Text("Both."), AS_RETURNED, other), results))
    assert (prompt.spliced, prompt.tokens.startswith(first.prompt + first.tokens)) == (1, True)


def test_parallel_calls_that_a_template_takes_one_by_one_keep_their_results(models: Callable[[Family], Model]) -> None:
    model = models(LLAMA)
    other = ToolCall("call5bash", "Bash", '{"command": "pwd"}')
    prompt, said = model.prompt(START).tokens, (Text("Both."), CALL, other)
    model.remember(START, Generated(prompt, model.past(START), said, packed([300, 301])))
    results = Message("user", (*RESULT.blocks, ToolResult("call5bash", (Text("/"),))))
    back = then(START, assistant(*said), results)
    assert model.prompt(back) == (model.written(back), 0)


def test_where_prompts_show_ids_a_call_must_come_back_under_its_own(models: Callable[[Family], Model]) -> None:
    model = models(MISTRAL)
    model.generate(START, [CALL])
    renamed = ToolCall("other4all", CALL.name, CALL.arguments)
    back = then(START, assistant(renamed), Message("user", (ToolResult("other4all", (Text("a"),)),)))
    assert model.prompt(back) == (model.written(back), 0)


def test_where_prompts_show_ids_a_call_must_have_been_written_under_the_one_that_clients_know(
    models: Callable[[Family], Model],
) -> None:
    model = models(MISTRAL)
    given = model.generate(START, [CALL])
    renamed = ToolCall("other4all", CALL.name, CALL.arguments)
    fresh = models(MISTRAL)
    fresh.remember(START, given._replace(said=[renamed]))
    back = then(START, assistant(renamed), Message("user", (ToolResult("other4all", (Text("a"),)),)))
    assert fresh.prompt(back) == (fresh.written(back), 0)


@pytest.mark.parametrize(
    "forged",
    [
        then(START, assistant(Text("I look"), CALL), RESULT),
        then(START, assistant(Text("I look."), ToolCall(ID, "Bash", '{"command": "rm"}')), RESULT),
        then(START, assistant(Thinking("I obey."), Text("I look."), CALL), RESULT),
        then(replace(START, messages=(user("Look!"),)), assistant(Text("I look."), CALL), RESULT),
        then(replace(START, system=(Text("Be long."),)), assistant(Text("I look."), CALL), RESULT),
        then(replace(START, tools=()), assistant(Text("I look."), CALL), RESULT),
        then(START, user("More."), assistant(Text("I look."), CALL), RESULT),
    ],
    ids=["text", "arguments", "reasoning", "question", "system", "tools", "place"],
)
def test_a_changed_turn_or_another_past_is_written(model: Model, forged: Conversation) -> None:
    model.generate(START, [Thinking("Hm."), Text("I look."), CALL])
    assert model.prompt(forged) == (model.written(forged), 0)


def test_turns_never_cross_tenants(model: Model) -> None:
    model.generate(START, [Thinking("Secret."), Text("I look."), CALL], tenant="a")
    back = then(START, assistant(Text("I look."), CALL), RESULT)
    assert model.prompt(back, "a").spliced == 1
    assert model.prompt(back, "b") == (model.written(back), 0)


def test_what_a_client_continues_itself_is_not_remembered(model: Model) -> None:
    begun = then(START, assistant(Text("I ")))
    model.remember(begun, Generated(model.prompt(begun).tokens, model.past(begun), [Text("look.")], packed([300])))
    model.remember(START, Generated(model.prompt(START).tokens, model.past(START), [Text(" ")], packed([300])))
    assert model.knows_nothing


def test_a_turn_after_one_that_was_lost_is_still_spliced(model: Model) -> None:
    """Where the lost one is written as it was when the later one answered it."""
    second = then(START, assistant(Text("I look."), CALL), RESULT)
    answer = model.generate(second, [Text("There is a.txt.")])
    third = model.prompt(then(second, assistant(Text("There is a.txt.")), user("And now?")))
    assert (third.spliced, third.tokens.startswith(answer.prompt + answer.tokens)) == (1, True)


def test_a_turn_that_answered_another_prompt_is_written_and_the_turns_before_it_stay(model: Model) -> None:
    first = model.generate(START, [CALL])
    second = then(START, assistant(CALL), RESULT)
    model.generate(second, [Text("There is a.txt.")])
    third = then(second, assistant(Text("There is a.txt.")), user("And now?"))
    model.remember(START, first._replace(tokens=first.tokens[4:]))  # said otherwise by another choice
    prompt = model.prompt(third)
    assert prompt.spliced == 1
    assert prompt.tokens.startswith(first.prompt + first.tokens[4:])


def test_turns_after_a_change_of_tools_are_spliced_though_those_before_it_no_longer_are(model: Model) -> None:
    """The old turns answered another prompt: they are written anew, and do not keep later ones from being exact."""
    talk = START
    for turn in range(5):
        said = Text(f"Answer {turn}.")
        if turn == 3:
            talk = replace(talk, tools=(*talk.tools, replace(BASH, name="Read")))
        answer = model.generate(talk, [said])
        talk = then(talk, assistant(said), user("And now?"))
    prompt = model.prompt(talk)
    assert (prompt.spliced, prompt.tokens.startswith(answer.prompt + answer.tokens)) == (2, True)
    assert model.prompt(replace(talk, tools=START.tools)).spliced == 3


def test_max_redrafts_stops_a_search_for_turns_that_can_be_spliced(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MAX_REDRAFTS; then everything is written anew, as where each turn has answered a prompt of its own kind."""
    assert model.served.turns is not None
    talk = START
    for turn in range(2 * MAX_REDRAFTS):
        said = Text(f"Answer {turn}.")
        model.generate(replace(talk, tools=(replace(BASH, description="x " * turn),)), [said])
        talk = then(talk, assistant(said), user("And now?"))
    counted: list[int] = []
    redraft = model.served.turns.redraft

    def counting(draft: Draft, known: Mapping[int, KnownTurn]) -> Draft:
        counted.append(len(known))
        return redraft(draft, known)

    draft = asyncio.run(model.served.draft(talk, "a"))
    monkeypatch.setattr(model.served.turns, "redraft", counting)
    assert asyncio.run(model.served.encode(draft)) == (model.written(talk), 0)
    assert (len(counted), counted[-1]) == (MAX_REDRAFTS, 0)


def test_a_memory_that_was_lost_changes_no_meaning(model: Model) -> None:
    model.generate(START, [CALL])
    back = then(START, assistant(CALL), RESULT)
    spliced = model.prompt(back)
    model.forget()
    assert model.prompt(back) == (model.written(back), 0)
    assert model.text(spliced.tokens).replace(GENERATED, ARGUMENTS) == model.text(model.written(back))


def test_a_header_that_past_turns_do_not_have_is_never_put_into_them(model: Model) -> None:
    """Behind an empty thought, which the template writes only for the turn that is generated."""
    asked = replace(START, thinking="off")
    assert model.text(model.prompt(asked).tokens).endswith("</think>\n\n")
    generated = Generated(model.prompt(asked).tokens, model.past(asked), [Text("Yes.")], packed([300]))
    model.remember(asked, generated)
    back = then(asked, assistant(Text("Yes.")), user("Why?"))
    assert model.prompt(back) == (model.written(back), 0)


def test_max_opening_tokens_stop_a_search_for_where_a_template_opened_the_turn(model: Model) -> None:
    long = b"".join([model.prompt(START).tokens, packed([300]) * MAX_OPENING_TOKENS])
    model.remember(START, Generated(long, model.past(START), [Text("Yes.")], packed([300])))
    assert model.knows_nothing


def test_a_template_that_forgets_how_turns_were_generated_splices_none(
    models: Callable[[Family], Model], caplog: pytest.LogCaptureFixture
) -> None:
    model = models(R1)
    assert model.served.turns is None
    assert "exact turns are off" in caplog.text
    assert model.prompt(START) == (model.written(START), 0)


def test_exact_turns_can_be_switched_off(tiny_model: Path) -> None:
    assert load_model(tiny_model, name="m", max_model_len=64, rules=Rules(exact_turns=False)).turns is None


@pytest.mark.parametrize("layout", ["system-first", "tools-first"])
def test_the_demo_models_turns_are_exact(layout: str, cache_dir: Path) -> None:
    model = Model(prepare_tiny(cache_dir, template=layout))  # type: ignore[arg-type]
    first = model.generate(START, [Thinking("Hm."), Text("I look."), CALL])
    prompt = model.prompt(then(START, assistant(Text("I look."), AS_RETURNED), RESULT))
    assert (prompt.spliced, prompt.tokens.startswith(first.prompt + first.tokens)) == (1, True)


def test_long_conversations_are_drafted_off_the_loop_to_the_same_tokens(model: Model) -> None:
    long = replace(START, messages=(user("word " * 60_000),))
    first = model.generate(long, [CALL])
    prompt = model.prompt(then(long, assistant(AS_RETURNED), RESULT))
    assert (prompt.spliced, prompt.tokens.startswith(first.prompt + first.tokens)) == (1, True)


said_texts = st.sampled_from(["", "Yes.", " Yes.\n", "<|im_end|>", "\n\n", "é風", "<think>", '{"a": 1}'])
said_calls = st.lists(
    st.builds(ToolCall, st.just(ID), st.just("Bash"), st.sampled_from([ARGUMENTS, "{}", '{"x": [1.0]}'])), max_size=2
)
said_turns = st.builds(
    lambda thought, text, calls: [*thought, *([Text(text)] if text else []), *calls],
    st.lists(st.builds(Thinking, st.sampled_from(["Hm.", "So.\n"])), max_size=1),
    said_texts,
    said_calls,
)


@given(st.lists(st.tuples(said_turns, st.sampled_from(["own", "drop", "forge"])), min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_whatever_is_said_and_returned_a_prompt_reads_as_if_its_own_words_had_come_back(
    chatml: Model, turns: list[tuple[list[Said], str]]
) -> None:
    """Words come back as they were, without their reasoning, or changed; nothing ever reaches another tenant."""
    chatml.forget()
    returned = meant = START
    for said, how in turns:
        generated = chatml.generate(returned, said)
        silent: list[Said] = [block for block in said if not isinstance(block, Thinking)]
        known = any(isinstance(block, ToolCall) or block.text.strip() for block in silent)
        changed: list[Said] = [*said, Text("!")]
        back = {"own": said, "drop": [*silent], "forge": changed}[how]
        calls = [block for block in said if isinstance(block, ToolCall)]
        after = Message("user", (*(ToolResult(ID, (Text("ok"),)) for _ in calls), Text("Go on.")))
        returned = then(returned, assistant(*back), after)
        meant = then(meant, assistant(*(said if known and how != "forge" else back)), after)
        prompt = chatml.prompt(returned)
        assert prompt.tokens.startswith(generated.prompt + generated.tokens) or not known or how == "forge"
        assert chatml.text(prompt.tokens).replace(GENERATED, ARGUMENTS) == chatml.text(chatml.written(meant))
        assert chatml.prompt(returned, "b") == (chatml.written(returned), 0)
