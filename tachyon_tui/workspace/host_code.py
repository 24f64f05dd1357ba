"""Whether an edit of a file that holds `main` touches the host program.

A lexer, not a parser: the file is cut into declarations and statements, those that can only matter to the GPU's side
are taken out, and what remains must be the same before and after. What cannot be read for certain counts as touched.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import pairwise, zip_longest

from tachyon_tui.core.i18n import _
from tachyon_tui.workspace import python_host_code
from tachyon_tui.workspace.cpp_lexer import CannotTell, Token, tokenise
from tachyon_tui.workspace.cpp_units import Unit, read_units


def touches_host(before: str, after: str, path: str = "") -> str:
    """Why the edit from ``before`` to ``after`` touches the host program, with the first changed line; else empty.

    Not host code, and so free to change: comments and spaces; ``__global__`` and ``__device__`` functions; kernel
    launches (a statement ``k<<<...>>>(...);`` where one was before); constants, types, macros, helper functions and
    local variables that have no effect of their own and that no other host code reads; includes of CUDA's own
    headers. A ``path`` that ends with .py is read as Python: there functions under ``@triton.jit``, launches
    ``k[grid](...)``, and what only these read are free.
    """
    if before == after:
        return ""
    try:
        if path.endswith(".py"):
            line = python_host_code.first_change(before, after)
        else:
            line = _first_change(_host_tokens(before), _host_tokens(after))
    except CannotTell as why:
        return _("cannot tell whether the host program changed: {why}").format(why=why)
    if line is None:
        return ""
    lines = after.splitlines()
    shown = lines[line - 1].strip()[:120] if 0 < line <= len(lines) else ""
    return _("the host program changed near line {line}: {text}").format(line=line, text=shown)


def holds_main(text: str, path: str = "") -> bool:
    """Whether the file holds the program's entry: `main` in C++, anything that runs by itself in Python.

    True when it cannot be told.
    """
    try:
        if path.endswith(".py"):
            return python_host_code.runs_by_itself(ast.parse(text))
        tokens = tokenise(text)
    except (CannotTell, SyntaxError, ValueError):
        return True
    return any(a.kind == "id" and a.text in ("main", "wmain") and b.text == "(" for a, b in pairwise(tokens))


def device_names(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the GPU functions that the file defines, and identifiers that they read. Raises `CannotTell`."""
    units = [unit for unit in read_units(text) if unit.kind == "device"]
    return _union(unit.names for unit in units), _union(unit.reads for unit in units)


def _first_change(before: list[Token], after: list[Token]) -> int | None:
    last = 1
    for old, new in zip_longest(before, after):
        last = new.line if new else last
        if old is None or new is None or old.text != new.text:
            return last
    return None


def _host_tokens(text: str) -> list[Token]:
    """The tokens of the host program; a run of launches is one mark, with its line."""
    result: list[Token] = []
    for unit in _settled(read_units(text)):
        if unit.kind == "host":
            result.extend(unit.tokens)
        elif unit.kind == "launch" and not (result and result[-1].kind == "launch"):
            result.append(Token("launch", "<<<>>>", unit.tokens[0].line))
    return result


def _settled(units: list[Unit]) -> list[Unit]:
    """Make host code of every setup that host code depends on, until nothing changes."""
    changed = True
    while changed:
        changed = False
        host = _union(unit.reads | unit.names for unit in units if unit.kind == "host")
        launch = _union(unit.reads for unit in units if unit.kind in ("launch", "setup"))
        defined = _union(unit.names for unit in units if unit.kind == "setup" and not unit.assigns)
        for unit in units:
            if unit.kind == "setup" and (
                unit.names & host
                or (not unit.pure and unit.names & launch)
                or (unit.assigns and not unit.names <= defined)
            ):
                unit.kind = "host"
                changed = True
    return units


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
