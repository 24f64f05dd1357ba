"""Tokens of CUDA C++ without comments and spaces; what cannot be read for certain is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tachyon_tui.core.i18n import _


class CannotTell(Exception):
    """The text cannot be read for certain; the message says why."""


class Token(NamedTuple):
    """One token, or one whole preprocessor directive (kind ``directive``, continuation lines joined)."""

    kind: str
    """``id``, ``number``, ``string``, ``punct`` or ``directive``."""
    text: str
    line: int
    """Counted from 1."""


_SPLICE = r"\\[ \t]*\r?\n"
_STRING = r'(?:u8|[uUL])?"(?:\\(?:\r\n|.)|[^"\\\n])*"'
_CHAR = r"(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'"
_TOKEN = re.compile(
    rf"""
      (?P<space>[ \t\r\f\v]+)
    | (?P<newline>\n)
    | (?P<splice>{_SPLICE})
    | (?P<comment>//(?:{_SPLICE}|[^\n])*|/\*.*?\*/)
    | (?P<string>(?:u8|[uUL])?R"(?P<delimiter>[^\s()\\"]{{0,16}})\(.*?\)(?P=delimiter)"|{_STRING}|{_CHAR})
    | (?P<number>\.?[0-9](?:'[0-9A-Za-z_]|[eEpP][+-]|[0-9A-Za-z_.])*)
    | (?P<id>[^\W\d]\w*)
    | (?P<digraph><%|%>|<:(?!:)|:>|%:)
    | (?P<punct><<<|>>>|<=>|<<=|>>=|\.\.\.|->\*|->|::|\+\+|--|&&|\|\||\#\#|<<|[-+*/%&|^!=<>]=|.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Strings come first, so that a comment's mark inside one does not swallow the lines below.
_DIRECTIVE = re.compile(
    rf"#(?:{_SPLICE}|{_STRING}|{_CHAR}|/\*.*?\*/|//(?:{_SPLICE}|[^\n])*|[^\n])*", re.DOTALL
)
_RAW_PREFIX = re.compile(r"(?:u8|[uUL])?R")
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
OPENERS = {"(": ")", "[": "]", "{": "}"}
CLOSERS = frozenset(OPENERS.values())


def tokenise(text: str) -> list[Token]:
    """The tokens of a file, with balanced brackets. Raises `CannotTell`."""
    if _TRIGRAPH.search(text):
        raise CannotTell(_("it holds trigraphs"))
    tokens: list[Token] = []
    at, line, fresh = 0, 1, True
    while at < len(text):
        if fresh and text[at] == "#":
            directive = _DIRECTIVE.match(text, at)
            assert directive is not None
            tokens.append(Token("directive", _joined(directive[0]), line))
            line += directive[0].count("\n")
            at = directive.end()
            fresh = False
            continue
        found = _TOKEN.match(text, at)
        assert found is not None
        kind, piece = found.lastgroup or "", found[0]
        kind = "string" if kind == "delimiter" else kind
        at = found.end()
        if kind == "newline":
            fresh = True
        elif kind == "splice":
            around = text[found.start() - 1 : found.start()] + text[at : at + 1]
            if not any(char.isspace() for char in around):
                raise CannotTell(_("a token is continued on the next line (line {line})").format(line=line))
        elif kind == "id" and _RAW_PREFIX.fullmatch(piece) and text.startswith('"', at):
            raise CannotTell(_("a raw string without an end (line {line})").format(line=line))
        elif kind == "digraph" or (kind == "punct" and piece in "\"'\\`@"):
            raise CannotTell(_("{token} (line {line})").format(token=piece, line=line))
        elif kind == "punct" and piece == "/" and text.startswith("*", at):
            raise CannotTell(_("a comment without an end (line {line})").format(line=line))
        elif kind not in ("space", "comment"):
            tokens.append(Token(kind, piece, line))
            fresh = False
        line += piece.count("\n")
    check_balance(tokens)
    return tokens


def directive_tokens(directive: Token) -> list[Token]:
    """The tokens of a directive after its ``#``; what is no token there (an apostrophe in #error) is left out."""
    found = (_TOKEN.match(directive.text, at) for at in _starts(directive.text))
    rows = [(match.lastgroup or "", match[0]) for match in found if match]
    return [
        Token("string" if kind == "delimiter" else kind, piece, directive.line)
        for kind, piece in rows
        if kind in ("id", "number", "string", "delimiter", "punct")
    ]


def _starts(text: str) -> list[int]:
    starts, at = [], 1
    while at < len(text):
        starts.append(at)
        found = _TOKEN.match(text, at)
        at = found.end() if found else at + 1
    return starts


def _joined(directive: str) -> str:
    """One line, without comments and with single spaces."""

    def keep(found: re.Match[str]) -> str:
        return " " if found[0].startswith(("/*", "//", "\\")) else found[0]

    text = re.sub(rf"{_SPLICE}|{_STRING}|{_CHAR}|/\*.*?\*/|//.*", keep, directive, flags=re.DOTALL)
    return re.sub(r"[ \t\r\n]+", " ", text).strip()


def check_balance(tokens: Sequence[Token]) -> None:
    """Raise `CannotTell` unless every bracket is closed by its own kind."""
    stack: list[Token] = []
    for token in tokens:
        if token.kind != "punct":
            continue
        if token.text in OPENERS:
            stack.append(token)
        elif token.text in CLOSERS and (not stack or OPENERS[stack.pop().text] != token.text):
            raise CannotTell(_("unbalanced {token} (line {line})").format(token=token.text, line=token.line))
    if stack:
        raise CannotTell(
            _("unbalanced {token} (line {line})").format(token=stack[-1].text, line=stack[-1].line)
        )


def closing(tokens: Sequence[Token], at: int) -> int:
    """Index of the bracket that closes the one at ``at``; the tokens are balanced."""
    depth = 0
    for i in range(at, len(tokens)):
        if tokens[i].kind == "punct":
            depth += (tokens[i].text in OPENERS) - (tokens[i].text in CLOSERS)
            if depth == 0:
                return i
    raise CannotTell(
        _("unbalanced {token} (line {line})").format(token=tokens[at].text, line=tokens[at].line)
    )
