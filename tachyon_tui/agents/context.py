"""What the agent is told: the brief and the prompt files as chat messages, in English or Chinese."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from tachyon_tui.agents.base import Brief, ToolSpec
from tachyon_tui.core.i18n import Language

Message = dict[str, Any]
"""One message in the OpenAI chat form: ``role``, ``content`` and what belongs to the role."""


def opening(brief: Brief, language: Language) -> list[Message]:
    """The messages that open a round's conversation.

    What changes least comes first, so that a provider's prefix cache holds from round to round.
    """
    nothing = prompt("none", language)
    round_text = prompt(
        "round",
        language,
        editable="\n".join(f"- {path}" for path in brief.editable) or nothing,
        max_tool_calls=str(brief.max_tool_calls),
        max_builds=str(brief.max_builds),
        min_gain=f"{brief.min_gain_percent:g}",
        kernels=fenced(brief.kernels),
        notebook="\n".join(fenced(entry) for entry in brief.notebook) or nothing,
        goal=fenced(brief.goal),
        round=str(brief.round),
        last_round=str(brief.max_rounds - 1),
    )
    hints = [hint_message(brief.hints, language)["content"]] if brief.hints else []
    return [
        {"role": "system", "content": prompt("system", language)},
        {"role": "user", "content": "\n\n".join([round_text, *hints])},
    ]


def hint_message(hints: Sequence[str], language: Language) -> Message:
    """The person's own words, marked as such."""
    return {"role": "user", "content": prompt("hint", language, hints="\n".join(map(fenced, hints)))}


def tools_for_model(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The tools in the OpenAI form."""
    return [
        {
            "type": "function",
            "function": {"name": spec.name, "description": spec.description, "parameters": spec.parameters},
        }
        for spec in specs
    ]


def prompt(name: str, language: Language, **values: str) -> str:
    """A prompt file with its placeholders filled; values are inserted as they are and never read as templates.

    Raises `ValueError` when the placeholders of the file and ``values`` are not the same set.
    """
    template = _template(name, language)
    wanted = placeholders(template)
    if wanted != set(values):
        raise ValueError(f"{language}/{name}.txt has {sorted(wanted)}, given {sorted(values)}")
    return template.substitute(values).strip()


def placeholders(template: Template) -> set[str]:
    """The names that a template asks for. Raises `ValueError` for a stray ``$``."""
    found = set()
    for match in template.pattern.finditer(template.template):
        if match["invalid"] is not None:
            raise ValueError(f"a stray $ at offset {match.start()}")
        if match["escaped"] is None:
            found.add(match["named"] or match["braced"])
    return found


def fenced(text: str) -> str:
    """Text from outside between fences longer than any run of backticks in it, so that it cannot end its block."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.strip(chr(10))}\n{fence}"


def prompt_files() -> Mapping[str, frozenset[str]]:
    """The names of the prompts there are, by language."""
    root = files("tachyon_tui.agents") / "prompts"
    return {
        folder.name: frozenset(
            f.name.removesuffix(".txt") for f in folder.iterdir() if f.name.endswith(".txt")
        )
        for folder in root.iterdir()
        if folder.is_dir()
    }


@cache
def _template(name: str, language: Language) -> Template:
    resource = files("tachyon_tui.agents") / "prompts" / language / f"{name}.txt"
    return Template(resource.read_text(encoding="utf-8"))
