"""A CUDA source file cut into declarations, statements and directives: host, device, launch or setup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tachyon_tui.core.i18n import _
from tachyon_tui.workspace.cpp_lexer import (
    CannotTell,
    Token,
    check_balance,
    closing,
    directive_tokens,
    tokenise,
)
from tachyon_tui.workspace.cpp_purity import TYPE, pure

GPU_MARKS = frozenset({"__global__", "__device__", "__constant__", "__managed__", "__shared__"})
_CLASS_KEYS = frozenset({"struct", "class", "union", "enum"})
_HEADERS = frozenset({"for", "while", "if", "switch", "catch"})
_ATTRIBUTES = frozenset({"__align__", "alignas", "__launch_bounds__", "__cluster_dims__", "__maxnreg__"})
GPU_HEADERS = frozenset(
    {
        "cooperative_groups.h", "cuda.h", "cuda_awbarrier.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h",
        "cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_runtime.h", "cuda_runtime_api.h",
        "device_functions.h", "device_launch_parameters.h", "math_constants.h", "mma.h", "sm_30_intrinsics.h",
        "vector_functions.h", "vector_types.h", "cstdint", "stdint.h",
    }
)  # fmt: skip
"""Headers of the toolkit that define nothing for the host to run; no new file may bear one of their names."""
GPU_HEADER_FOLDERS = frozenset({"cub", "cuda", "cooperative_groups"})
"""Folders of such headers; no new file may stand in a folder of that name."""
_GPU_INCLUDE = re.compile(
    rf"include ?(?:<(?:{'|'.join(map(re.escape, sorted(GPU_HEADERS)))}"
    rf"|(?:{'|'.join(sorted(GPU_HEADER_FOLDERS))})/[\w/]+(?:\.h|\.cuh)?)>"
    rf'|"(?:{"|".join(map(re.escape, sorted(GPU_HEADERS)))})")'
)
_MACRO_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_REACHING = frozenset({"define", "undef", "include", "include_next", "import", "line", "embed"})
"""Directives whose effect does not end with the function that they stand in."""


@dataclass
class Unit:
    """One piece of the file.

    ``host`` pieces are the host program; ``device`` is GPU code; ``launch`` starts a kernel; ``setup`` has no effect
    but to define ``names``, and is host code as soon as host code reads one of them.
    """

    kind: str
    tokens: Sequence[Token]
    reads: frozenset[str] = frozenset()
    """Identifiers that it mentions, without the names that a setup defines."""
    names: frozenset[str] = frozenset()
    pure: bool = True
    """Whether a launch that the host evaluates may read the names."""
    callable: bool = False
    """A pure function or macro: calling it has no effect."""
    assigns: bool = False
    """An assignment, which is harmless only to a variable that another setup defines."""


def read_units(text: str) -> list[Unit]:
    """The pieces of a file in order. Raises `CannotTell`."""
    tokens = tokenise(text)
    first = _Reader(tokens, frozenset())
    known = frozenset(
        name for unit in first.units() if unit.kind == "setup" and unit.pure for name in unit.names
    )
    return _Reader(tokens, known).units()


def _unit(
    kind: str, tokens: Sequence[Token], names: set[str] | frozenset[str] = frozenset(), **rest: bool
) -> Unit:
    reads = frozenset(token.text for token in tokens if token.kind == "id")
    return Unit(kind, tokens, reads - names if kind == "setup" else reads, frozenset(names), **rest)


class _Reader:
    def __init__(self, tokens: list[Token], known: frozenset[str]) -> None:
        self._tokens = tokens
        self._known = known
        """Functions and macros that may be called without an effect."""

    def units(self) -> list[Unit]:
        tokens = self._tokens
        includes = [i for i, t in enumerate(tokens) if t.kind == "directive" and _word(t) == "include"]
        last_include = includes[-1] if includes else -1
        units: list[Unit] = []
        at = 0
        while at < len(tokens):
            if tokens[at].kind == "directive":
                length = 3 if _guarded_define(tokens[at : at + 3]) else 1
                units.append(self._directive(tokens[at : at + length], at > last_include))
                at += length
            elif tokens[at].text == "}":
                units.append(_unit("host", tokens[at : at + 1]))
                at += 1
            else:
                end, body = _declaration(tokens, at)
                units.extend(self._classified(tokens[at:end], body - at if body >= 0 else -1))
                at = end
        return units

    def _classified(self, tokens: Sequence[Token], body: int) -> list[Unit]:
        """The units of one declaration outside all functions; ``body`` is where its function's ``{`` is, or -1."""
        head = [t for t in (tokens[:body] if body >= 0 else tokens) if t.kind != "directive"]
        rest = _without_attributes(_after_template(head))
        marks = _depth0(rest)
        is_class = _is_class(rest)
        gpu = bool(marks & GPU_MARKS) and not is_class
        function = not is_class and "(" in marks and "=" not in marks
        odd = any(t.text in ("__attribute__", "constructor", "asm") for t in head)
        if gpu and function and "__host__" not in marks and not odd:
            inner = [t for t in tokens if t.kind == "directive"]
            code = [t for t in tokens if t.kind != "directive"]
            return [_unit("device", code, _function_name(rest)), *self._inner_directives(inner)]
        setup: Unit | None = None
        if odd or "operator" in marks or any(t.kind == "directive" for t in tokens):
            setup = None
        elif marks & {"static_assert"}:
            return []
        elif function and body >= 0:
            setup = self._pure_function(tokens, body, rest, gpu)
        elif is_class:
            setup = _type_definition(tokens, rest)
        elif rest[0].text in ("using", "typedef", "namespace"):
            setup = _alias(tokens, rest)
        elif gpu or marks & {"const", "constexpr"}:
            setup = self._variables(rest, tokens)
        if setup:
            return [setup]
        if body < 0:
            return [_unit("host", tokens)]
        return [_unit("host", tokens[: body + 1]), *self._statements(tokens[body + 1 :])]

    def _pure_function(
        self, tokens: Sequence[Token], body: int, rest: Sequence[Token], gpu: bool
    ) -> Unit | None:
        """A function without effects, such as ``ceil_div``; or one for both sides, which no host code may call."""
        name = _function_name(rest)
        inside = [t for t in tokens[body + 1 : -1] if t.text != "return"]
        harmless = bool(name) and "main" not in name and pure(inside, self._known | name)
        plain = not any(t.text in "{}" for t in inside)
        if not name or not (gpu or (harmless and plain)):
            return None
        return _unit("setup", tokens, name, pure=harmless and plain, callable=harmless and plain)

    def _variables(self, declaration: Sequence[Token], tokens: Sequence[Token]) -> Unit | None:
        """``int a = 1, b(2);`` with arithmetic types and initialisers without effects; else None."""
        at = 0
        while at < len(declaration) and (
            declaration[at].text in GPU_MARKS
            or declaration[at].text in ("::", "extern", "inline", "static")
            or TYPE.fullmatch(declaration[at].text)
        ):
            at += 1
        typed = any(
            t.text not in ("std", "::", "const", "static", "extern", "inline") for t in declaration[:at]
        )
        if not typed or declaration[at - 1].text == "::" or declaration[-1].text != ";":
            return None
        names: set[str] = set()
        for part in _split(declaration[at:-1]):
            start = 0
            while start < len(part) and part[start].text in ("*", "__restrict__", "const"):
                start += 1
            if start == len(part) or part[start].kind != "id":
                return None
            if not self._pure_value(part[start + 1 :]):
                return None
            names.add(part[start].text)
        return _unit("setup", tokens, names)

    def _pure_value(self, value: Sequence[Token]) -> bool:
        """What stands after a variable's name: array bounds, then an initialiser in one of its three forms."""
        while value and value[0].text == "[":
            end = closing(value, 0)
            if not pure(value[1:end], self._known):
                return False
            value = value[end + 1 :]
        if value and value[0].text not in ("=", "(", "{"):
            return False
        return pure(value[1:] if value and value[0].text == "=" else value, self._known)

    def _statements(self, tokens: Sequence[Token]) -> list[Unit]:
        """The statements of a host function's body, up to and with its closing brace."""
        units: list[Unit] = []
        start = at = 0
        whole = True
        while at < len(tokens):
            token = tokens[at]
            if at == start and token.text in _HEADERS and tokens[at + 1].text == "(":
                at = closing(tokens, at + 1)
                units.append(_unit("host", tokens[start : at + 1]))
                start, whole = at + 1, False
            elif at == start and (token.text in ("else", "do") or token.kind == "directive"):
                units.append(_unit("host", tokens[start : at + 1]))
                start, whole = at + 1, token.kind == "directive"
            elif token.kind == "punct" and token.text in ";{}":
                units.append(self._statement(tokens[start : at + 1], whole))
                start, whole = at + 1, True
            at += 1
        return units

    def _statement(self, tokens: Sequence[Token], whole: bool) -> Unit:
        """One statement; ``whole`` is False after a header such as ``if (...)``, which decides whether it runs."""
        texts = [token.text for token in tokens]
        if texts[-1] != ";" or any(token.kind == "directive" for token in tokens):
            return _unit("host", tokens)
        if "<<<" in texts:
            return _unit("launch" if self._is_launch(tokens) else "host", tokens)
        if not whole:
            return _unit("host", tokens)
        equals = 3 if texts[1:2] == ["."] else 1  # `name = value;` or `name.x = value;`
        if tokens[0].kind == "id" and texts[equals : equals + 1] == ["="]:
            if pure(tokens[equals + 1 : -1], self._known):
                return _unit("setup", tokens, {texts[0]}, assigns=True)
            return _unit("host", tokens)
        return self._variables(tokens, tokens) or _unit("host", tokens)

    def _is_launch(self, tokens: Sequence[Token]) -> bool:
        """``name<args><<<configuration>>>(arguments);`` without effects of its own."""
        texts = [token.text for token in tokens]
        if texts.count("<<<") != 1 or texts.count(">>>") != 1:
            return False
        opens, closes = texts.index("<<<"), texts.index(">>>")
        callee = tokens[:opens]
        plain = all(
            t.kind in ("id", "number") or t.text in ("::", "<", ">", ",", "+", "-", "*", "/") for t in callee
        )
        if not callee or callee[0].kind != "id" or not plain or closes < opens or texts[closes + 1] != "(":
            return False
        return (
            closing(tokens, closes + 1) == len(tokens) - 2
            and pure(tokens[opens + 1 : closes], self._known)
            and pure(tokens[closes + 2 : -2], self._known)
        )

    def _inner_directives(self, directives: Sequence[Token]) -> list[Unit]:
        """Directives in a device function: whole conditionals and pragmas stay there, the rest reaches further."""
        units: list[Unit] = []
        depth = 0
        for token in directives:
            word = _word(token)
            depth += (word in ("if", "ifdef", "ifndef")) - (word == "endif")
            if word in _REACHING:
                units.append(self._directive([token], True))
            if depth < 0:
                raise CannotTell(
                    _("#{word} without its beginning (line {line})").format(word=word, line=token.line)
                )
        if depth:
            raise CannotTell(_("a conditional without its end (line {line})").format(line=directives[0].line))
        return units

    def _directive(self, tokens: Sequence[Token], after_includes: bool) -> Unit:
        """One directive, or a guarded define of three."""
        define = tokens[len(tokens) // 2]
        words = directive_tokens(define)
        reads = frozenset(t.text for t in words if t.kind == "id")
        if [word.text for word in words[:2]] == ["pragma", "unroll"] or _GPU_INCLUDE.fullmatch(
            define.text[1:].lstrip()
        ):
            return Unit("device", ())
        if len(words) < 2 or words[0].text != "define":
            return Unit("host", tokens, reads)
        # A macro is free when its body is whole and its name cannot mean anything to a header.
        name, body = words[1], words[2:]
        if re.search(rf"define {name.text}\(", define.text):
            body = body[closing(body, 0) + 1 :]
        try:
            check_balance(body)
        except CannotTell:
            after_includes = False
        if not (after_includes and _MACRO_NAME.fullmatch(name.text)):
            return Unit("host", tokens, reads)
        plain = not any(t.text in (";", "{", "}", "<<<", ">>>", "#", "##") for t in body)
        harmless = plain and pure(body, self._known | {name.text})
        return Unit(
            "setup", tokens, reads - {name.text, "define"}, frozenset({name.text}), harmless, harmless
        )


def _declaration(tokens: Sequence[Token], start: int) -> tuple[int, int]:
    """End of the declaration at ``start``, and where the ``{`` of a function's body is (-1: there is none).

    A namespace ends after its ``{``, so that what it holds is read like the rest.
    """
    at = start
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "punct" and token.text == ";":
            return at + 1, -1
        if token.kind == "punct" and token.text == "{":
            head = [t for t in tokens[start:at] if t.kind != "directive"]
            texts = [t.text for t in head]
            if "namespace" in texts[:2] or texts in (["extern", '"C"'], ["extern", '"C++"']):
                return at + 1, -1
            rest = _without_attributes(_after_template(head))
            marks = _depth0(rest)
            if "(" in marks and "=" not in marks and not _is_class(rest):
                return closing(tokens, at) + 1, at
            at = closing(tokens, at)
        elif token.kind == "punct" and token.text in "([":
            at = closing(tokens, at)
        elif token.kind == "punct" and token.text == "}":
            break
        at += 1
    raise CannotTell(_("a declaration without an end (line {line})").format(line=tokens[start].line))


def _is_class(rest: Sequence[Token]) -> bool:
    texts = [token.text for token in rest]
    while texts and texts[0] in ("typedef", "static", "const", "constexpr", "__device__", "__constant__"):
        texts = texts[1:]
    if not texts or texts[0] not in _CLASS_KEYS:
        return False
    head = texts[: texts.index("{")] if "{" in texts else texts
    return "(" not in head


def _after_template(head: Sequence[Token]) -> Sequence[Token]:
    rest = list(head)
    while len(rest) > 1 and rest[0].text == "template" and rest[1].text == "<":
        depth, at = 0, 1
        while at < len(rest):
            depth += {"<": 1, ">": -1, ">>": -2, ">>>": -3}.get(rest[at].text, 0)
            at += 1
            if depth <= 0:
                break
        rest = rest[at:]
    return rest


def _without_attributes(tokens: Sequence[Token]) -> list[Token]:
    result: list[Token] = []
    at = 0
    while at < len(tokens):
        if tokens[at].text in _ATTRIBUTES and at + 1 < len(tokens) and tokens[at + 1].text == "(":
            at = closing(tokens, at + 1) + 1
        else:
            result.append(tokens[at])
            at += 1
    return result


def _depth0(tokens: Sequence[Token]) -> set[str]:
    """The texts that stand outside all brackets, with the brackets that are opened there."""
    texts: set[str] = set()
    depth = 0
    for token in tokens:
        closes = token.kind == "punct" and token.text in ")]}"
        if depth == 0 and not closes:
            texts.add(token.text)
        depth += (token.kind == "punct" and token.text in "([{") - closes
    return texts


def _function_name(head: Sequence[Token]) -> set[str]:
    return next(({a.text} for a, b in pairwise(head) if b.text == "(" and a.kind == "id"), set())


def _type_definition(tokens: Sequence[Token], rest: Sequence[Token]) -> Unit | None:
    """``struct X {...};`` without instances: its name must not be read by host code, nor its enumerators."""
    named = rest[2 if rest[1].text in ("class", "struct") else 1 :]
    ends = [t.text for t in tokens[-2:]] == ["}", ";"]
    if not (ends and len(named) > 1 and named[0].kind == "id" and named[1].text in ("{", ":")):
        return None
    enumerators = {t.text for t in named if t.kind == "id"} if rest[0].text == "enum" else set()
    return _unit("setup", tokens, {named[0].text} | enumerators, pure=False)


def _alias(tokens: Sequence[Token], rest: Sequence[Token]) -> Unit | None:
    texts = [t.text for t in rest]
    if texts[0] in ("using", "namespace") and len(texts) > 3 and texts[2] == "=":
        return _unit("setup", tokens, {texts[1]})
    if texts[0] == "typedef" and rest[-2].kind == "id" and "(" not in texts:
        return _unit("setup", tokens, {texts[-2]})
    return None


def _split(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """Parts between commas outside all brackets."""
    parts, start, depth = [], 0, 0
    for i, token in enumerate(tokens):
        if token.kind == "punct":
            depth += (token.text in "([{") - (token.text in ")]}")
            if token.text == "," and depth == 0:
                parts.append(tokens[start:i])
                start = i + 1
    return [*parts, tokens[start:]]


def _guarded_define(three: Sequence[Token]) -> bool:
    """``#ifndef X``, ``#define X ...``, ``#endif``: one thing, so that the first line is no reading of X."""
    if len(three) < 3 or any(token.kind != "directive" for token in three):
        return False
    first, second, third = ([t.text for t in directive_tokens(token)] for token in three)
    return (
        third == ["endif"]
        and first[:1] == ["ifndef"]
        and len(first) == 2
        and second[:2] == ["define", first[1]]
    )


def _word(directive: Token) -> str:
    return next((token.text for token in directive_tokens(directive)), "")
