"""The opening messages hold the brief whole, in both languages, whatever is in the texts from outside."""

import re
from dataclasses import replace
from pathlib import Path
from string import Template

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachyon_tui.agents import context
from tachyon_tui.agents.base import Brief, ToolSpec
from tachyon_tui.core.i18n import Language

LANGUAGES: tuple[Language, ...] = ("en", "zh")
TOOLS = (
    *("get_kernel_summary", "edit_source_file", "compile_kernel", "run_benchmark", "reprofile"),
    *("compare_metrics", "get_evolve_status"),
)
BRIEF = Brief(
    round=3,
    max_rounds=10,
    goal="original 80.68ms, best 2.43ms",
    kernels="__global__ void reduce(float *in) { smem[tid] = in[i]; }",
    editable=("src/reduce.cu", "src/reduce.h"),
    notebook=("#0 rejected: +0.1%", "#1 accepted: -97%"),
    hints=(),
    max_tool_calls=41,
    max_builds=7,
    min_gain_percent=1.5,
)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_opening_holds_the_whole_brief(language: Language) -> None:
    system, user = context.opening(replace(BRIEF, hints=("use float4",)), language)
    assert (system["role"], user["role"]) == ("system", "user")
    content = user["content"]
    for part in (*BRIEF.editable, "41", "7", "1.5", BRIEF.kernels, *BRIEF.notebook, BRIEF.goal, "use float4"):
        assert part in content
    after_the_goal = content[content.index(BRIEF.goal) + len(BRIEF.goal) :]
    assert re.findall(r"\d+", after_the_goal)[:3] == ["3", "0", "9"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_rounds_share_their_beginning(language: Language) -> None:
    """A provider's cache holds up to the first difference: system prompt, limits and kernels come before it."""
    first = context.opening(BRIEF, language)
    second = context.opening(
        replace(BRIEF, round=4, notebook=("#0", "#1", "#2"), goal="best 2.2ms"), language
    )
    assert first[0] == second[0]
    kernels_end = first[1]["content"].index("smem[tid]") + len("smem[tid]")
    assert first[1]["content"][:kernels_end] == second[1]["content"][:kernels_end]


@pytest.mark.parametrize("language", LANGUAGES)
def test_hints_are_marked_as_the_persons_words(language: Language) -> None:
    message = context.hint_message(["try warp shuffles", "and ${round} $x"], language)
    marker = context.prompt("hint", language, hints="").strip()
    assert message["role"] == "user"
    assert message["content"].startswith(marker)
    assert "try warp shuffles" in message["content"]
    assert "and ${round} $x" in message["content"]
    assert marker not in context.opening(BRIEF, language)[1]["content"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_empty_notebook_is_said(language: Language) -> None:
    assert (
        context.prompt("none", language)
        in context.opening(replace(BRIEF, notebook=()), language)[1]["content"]
    )


@given(st.text(), st.lists(st.text(), max_size=3), st.sampled_from(LANGUAGES))
def test_outside_text_arrives_unchanged_and_stays_in_its_block(
    source: str, notes: list[str], language: Language
) -> None:
    content = context.opening(replace(BRIEF, kernels=source, notebook=tuple(notes)), language)[1]["content"]
    for text in (source, *notes):
        assert context.fenced(text) in content


@given(st.text(alphabet="`\n ab$}{"))
def test_a_fence_cannot_be_closed_from_inside(text: str) -> None:
    lines = context.fenced(text).split("\n")
    fence = lines[0]
    assert lines[-1] == fence
    assert set(fence) == {"`"}
    assert all(fence not in line for line in lines[1:-1])


def test_both_languages_have_the_same_prompts_with_the_same_placeholders() -> None:
    found = context.prompt_files()
    assert set(found) == set(LANGUAGES)
    assert found["en"] == found["zh"]
    root = Path(context.__file__).parent / "prompts"
    for name in found["en"]:
        english, chinese = (
            context.placeholders(Template((root / lang / f"{name}.txt").read_text(encoding="utf-8")))
            for lang in LANGUAGES
        )
        assert english == chinese, name


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "subject",
    [
        *TOOLS,
        "__shfl_down_sync",
        "float4",
        "occupancy",
        "tile[32][33]",
        "#pragma unroll",
        "grid-stride",
        "atomic",
    ],
)
def test_the_system_prompt_covers(language: Language, subject: str) -> None:
    assert subject in context.prompt("system", language)


def test_placeholders_are_checked() -> None:
    with pytest.raises(ValueError, match="hints"):
        context.prompt("hint", "en")
    with pytest.raises(ValueError, match="none"):
        context.prompt("none", "en", surplus="x")
    with pytest.raises(ValueError, match="stray"):
        context.placeholders(Template("5 $ and ${x}"))
    assert context.placeholders(Template("$$ $a ${b}")) == {"a", "b"}


def test_tools_take_the_openai_form() -> None:
    spec = ToolSpec("compile_kernel", "Build.", {"type": "object", "properties": {}})
    assert context.tools_for_model([spec]) == [
        {
            "type": "function",
            "function": {"name": spec.name, "description": "Build.", "parameters": spec.parameters},
        }
    ]
