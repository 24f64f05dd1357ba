"""Whether a C++ expression can have an effect: what a launch's configuration may hold without being host code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tachyon_tui.workspace.cpp_lexer import Token

TYPE = re.compile(
    r"const|constexpr|static|auto|bool|unsigned|signed|char|short|int|long|float|double|half2?|__half2?|size_t|std|"
    r"dim3|u?int(?:8|16|32|64)_t|u?(?:char|short|int|long|longlong)[1-4]|(?:float|double)[1-4]|__nv_bfloat16[12]?"
)
_CALLS = re.compile(rf"{TYPE.pattern}|sizeof|alignof|min|max|(?:static|reinterpret|const)_cast")
_MEMBER_CALLS = re.compile(r"size|data|get")
_EFFECTS = re.compile(
    r"(?:[-+*/%&|^]|<<|>>)?=|\+\+|--|new|delete|throw|asm|__asm__|goto|return|operator|co_await|co_yield"
)


def pure(tokens: Sequence[Token], known: frozenset[str] = frozenset()) -> bool:
    """Whether the expression assigns nothing and calls nothing of unknown effect.

    Known are conversions, min, max, sizeof, a container's size, and the functions ``known`` to the caller.
    """
    return all(
        token.kind != "directive" and not _EFFECTS.fullmatch(token.text) and _harmless(tokens, i, known)
        for i, token in enumerate(tokens)
    )


def _harmless(tokens: Sequence[Token], at: int, known: frozenset[str]) -> bool:
    """Whether the bracket at ``at``, if it is one, opens no call of something unknown and no lambda's body."""
    if at == 0 or tokens[at].text not in ("(", "{"):
        return True
    before = tokens[at - 1]
    if tokens[at].text == "{":
        return before.text not in ("]", ")")
    if before.kind == "id":
        if at > 1 and tokens[at - 2].text in (".", "->"):
            return bool(_MEMBER_CALLS.fullmatch(before.text))
        return before.text in known or bool(_CALLS.fullmatch(before.text))
    if before.text == ">":
        start = _template_start(tokens, at - 1)
        called = tokens[start - 1].text if start > 0 else ""
        return called in known or bool(_CALLS.fullmatch(called))
    return before.text != "]" and (before.text != ")" or _is_cast(tokens, at - 1))


def _template_start(tokens: Sequence[Token], at: int) -> int:
    """Index of the ``<`` that matches the ``>`` at ``at``; -1 when there is none."""
    depth = 0
    for i in range(at, -1, -1):
        depth += {">": 1, ">>": 2, ">>>": 3, "<": -1}.get(tokens[i].text, 0)
        if depth <= 0:
            return i
    return -1


def _is_cast(tokens: Sequence[Token], end: int) -> bool:
    start = end
    while start >= 0 and tokens[start].text != "(":
        start -= 1
    inside = tokens[start + 1 : end]
    return bool(inside) and all(TYPE.fullmatch(t.text) or t.text in ("*", "::") for t in inside)
