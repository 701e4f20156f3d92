"""The cluster file: what is accepted, and the words for what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.config import ClusterConfig, Rules, load_config, parse_config
from cluster.prompt import canonical
from router.errors import InvalidRequest

ONE: dict[str, Any] = {"models": [{"name": "tiny", "source": "tiny"}]}


def test_one_model_is_enough_and_defaults_are_safe() -> None:
    """Two replicas, stripping on, loopback, no keys."""
    config = parse_config(ONE)
    assert (config.host, config.models[0].least_replicas, config.models[0].rules.strip_anthropic_preamble) == (
        "127.0.0.1",
        2,
        True,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": []}, "model: unknown key; did you mean `models`"),
        ({"models": [{"name": "a", "replica": 1}]}, "models.0.replica: unknown key; did you mean `replicas`"),
        ({"models": [{"name": "a", "rules": {"keep_think": 1}}]}, "models.0.rules.keep_think: .*`keep_thinking`"),
        (
            {"models": [{"name": "a", "variants": {"b": {"xyzzy": 1}}}]},
            "variants.b.xyzzy: .*known are deferred",
        ),
        ({"models": [{"name": "a", "replicas": 1, "autoscaling": {"max_replicas": 2}}]}, "exclude each other"),
        ({"models": [{"name": "a", "autoscaling": {"min_replicas": 3, "max_replicas": 2}}]}, "is less than"),
        ({"models": [{"name": "a", "engine_args": {"kv_transfer_config": "lmcache"}}]}, "kv_connector"),
        ({"deploy": {"gpu_nodes": {"maxx": 1}}}, "deploy.gpu_nodes.maxx: unknown key; did you mean `max`"),
        ({"deploy": {"gpu_nodes": {"min": 3, "max": 2}}}, "is less than min"),
        ({"models": []}, "models"),
        ({"models": [{"name": "a", "replicas": 0}]}, "models.0.replicas"),
        ({"models": [{"name": "a"}, {"name": "b", "variants": {"a": {}}}]}, "served twice: a"),
        ({"models": [{"name": "a:b"}, {"name": "a/b"}]}, "differ only in characters"),
        ({"host": "0.0.0.0"}, "a key is required"),
        ({"aliases": {"claude-*": "b"}}, "aliases lead to b"),
        ({"aliases": {"claude *": "tiny"}}, "aliases.claude *"),
        ({"port": 70_000}, "port"),
        ({"api_keys": [""]}, "api_keys.0"),
        ({"api_keys": ["ключ"]}, "api_keys.0"),
        ({"models": [{"name": "a", "engine_args": {"tensor_parallel_size": "x"}}]}, "tensor_parallel_size must be"),
        ({"models": [{"name": "a", "rules": {"volatile_lines": ["("]}}]}, "volatile_lines"),
        ({"models": [{"name": "a", "variants": {"": {}}}]}, "variants"),
    ],
)
def test_a_bad_config_is_refused_with_the_place_and_the_reason(change: dict[str, Any], words: str) -> None:
    """Unknown keys, impossible numbers, double names and an open door without a key."""
    with pytest.raises(InvalidRequest, match=words):
        parse_config(ONE | change)


def test_a_host_other_than_loopback_is_accepted_with_a_key() -> None:
    """The operator asked for it and protected it."""
    assert parse_config(ONE | {"host": "0.0.0.0", "api_keys": ["k"]}).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("content", "words"), [("models: [", "is not YAML"), ("- a", "must be a mapping"), (None, "cannot be read")]
)
def test_a_file_that_is_no_config_is_named_in_the_error(tmp_path: Path, content: str | None, words: str) -> None:
    """The message starts with the path."""
    path = tmp_path / "cluster.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequest, match=words) as fault:
        load_config(path)
    assert str(fault.value).startswith(str(path))


def test_a_file_and_plain_data_give_the_same_config(tmp_path: Path) -> None:
    """`serve run`, a Serve config file and `kvist serve --config` build the same graph."""
    path = tmp_path / "cluster.yaml"
    path.write_text("models:\n  - name: tiny\n    source: tiny\n")
    assert load_config(path) == parse_config(ONE)


def test_every_served_name_has_its_own_rules() -> None:
    """A variant serves the same replicas with another switch."""
    config = parse_config({"models": [{"name": "a", "variants": {"raw": {"strip_anthropic_preamble": False}}}]})
    rules = config.models[0].served_names()
    assert (rules["a"].strip_anthropic_preamble, rules["raw"].strip_anthropic_preamble) == (True, False)


def test_switches_have_one_vocabulary_and_one_default() -> None:
    """What the configuration says is what the canonical rules are built from."""
    assert canonical.Rules(**Rules().model_dump()) == canonical.Rules()
    assert list(Rules.model_fields) == list(canonical.Rules.__struct_fields__)


def test_every_switch_is_documented() -> None:
    """With its place in the order of rules."""
    text = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \(", text, re.MULTILINE) == list(Rules.model_fields)


def test_a_tensor_and_pipeline_parallel_engine_needs_their_product_of_gpus() -> None:
    """TP 4 × PP 2 is eight GPUs in one placement group."""
    arguments = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    assert parse_config({"models": [{"name": "a", "engine_args": arguments}]}).models[0].gpus == 8


def test_an_error_is_named_once_at_its_innermost_place() -> None:
    """Not also as "models: too few items" because the model itself was bad."""
    with pytest.raises(InvalidRequest) as fault:
        parse_config({"models": [{"name": "a", "replicas": 0}]})
    assert "; " not in str(fault.value)


def test_ids_of_claude_code_lead_to_the_first_model_unless_the_operator_says_otherwise() -> None:
    """None is the default; an empty mapping switches aliases off."""
    assert parse_config(ONE).resolved_aliases() == {"claude-*": "tiny"}
    assert parse_config({**ONE, "aliases": {}}).resolved_aliases() == {}


def test_without_a_number_there_are_two_replicas_and_a_range_begins_at_its_least() -> None:
    data = {"models": [{"name": "a"}, {"name": "b", "autoscaling": {"min_replicas": 3, "max_replicas": 9}}]}
    assert [model.least_replicas for model in parse_config(data).models] == [2, 3]
    again = parse_config(parse_config(data).model_dump(mode="json"))
    assert again == parse_config(data), "what Serve is given says the same"


def test_a_right_file_is_told_in_words_and_a_wrong_one_names_its_places(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("models:\n- {name: tiny, source: tiny, autoscaling: {max_replicas: 4}}\n")
    result = CliRunner().invoke(app, ["config", "check", str(file)])
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        ["tiny: 1 to 4 replicas of tiny (vllm), 1 GPUs each, as tiny", "claude-* leads to tiny", f"{file}: right"],
    )
    file.write_text("models:\n- {name: tiny, replica: 2}\nportt: 1\n")
    with pytest.raises(InvalidRequest, match=r"models.0.replica: .*replicas.*; portt: .*did you mean `port`"):
        CliRunner().invoke(app, ["config", "check", str(file)], catch_exceptions=False)


def test_the_schema_for_editors_is_the_configs_own() -> None:
    """`kvist config schema > deploy/cluster.schema.json`."""
    result = CliRunner().invoke(app, ["config", "schema"])
    committed = Path(__file__).parents[2] / "deploy" / "cluster.schema.json"
    assert result.output == committed.read_text()
    assert set(json.loads(result.output)["properties"]) == set(ClusterConfig.model_fields)
