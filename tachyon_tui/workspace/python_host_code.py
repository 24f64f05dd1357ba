"""The host side of a Python file with Triton kernels: what must be the same before and after an edit."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from tachyon_tui.workspace.cpp_lexer import CannotTell

_CALLS = frozenset(
    {"triton.cdiv", "triton.next_power_of_2", "triton.Config", "len", "min", "max", "int", "dict", "range"}
)
_MEMBER_CALLS = frozenset({"numel", "stride", "size", "element_size", "contiguous", "data_ptr", "dim"})
_DECORATORS = frozenset({"triton.jit", "triton.autotune", "triton.heuristics"})
_UNITS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try)
LAUNCH = "launch"


class _Item(NamedTuple):
    """A statement, or the head of a compound one."""

    text: str
    """Its syntax tree as text, or `LAUNCH`."""
    line: int
    names: frozenset[str]
    """Names that it defines, if that is all it does."""
    reads: frozenset[str]


def first_change(before: str, after: str) -> int | None:
    """Line in ``after`` near which the host side changed; None when it did not. Raises `CannotTell`."""
    old, new = _host(before), _host(after)
    last = max(1, after.count("\n"))
    for left, right in zip_longest(old, new):
        if left is None or right is None or left.text != right.text:
            return right.line if right else last
    return None


def runs_by_itself(module: ast.Module) -> bool:
    """Whether importing the file does more than to define things."""
    quiet = (
        ast.Import,
        ast.ImportFrom,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.Assign,
        ast.AnnAssign,
    )
    return any(not isinstance(node, quiet) and not _is_docstring(node) for node in module.body)


def is_triton_kernel(node: ast.AST) -> bool:
    """A function under ``@triton.jit``."""
    return isinstance(node, ast.FunctionDef) and any(
        _decorator(d) == "triton.jit" for d in node.decorator_list
    )


def _host(text: str) -> list[_Item]:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise CannotTell(str(error)) from error
    kernels = {
        node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and is_triton_kernel(node)
    }
    imports = (node for node in ast.walk(module) if isinstance(node, ast.ImportFrom))
    kernels |= {alias.asname or alias.name for node in imports for alias in node.names}
    items = list(_items(module.body, frozenset(kernels)))
    while True:
        read = frozenset().union(*(item.reads for item in items if not item.names and item.text != LAUNCH))
        settled = [item._replace(names=frozenset()) if item.names & read else item for item in items]
        if settled == items:
            break
        items = settled
    result: list[_Item] = []
    for item in items:
        if item.names or (item.text == LAUNCH and result and result[-1].text == LAUNCH):
            continue
        result.append(item)
    return result


def _items(body: Sequence[ast.stmt], kernels: frozenset[str]) -> Iterator[_Item]:
    for node in body:
        if (is_triton_kernel(node) and _harmless_kernel(node)) or _is_docstring(node):
            continue
        if _is_launch(node, kernels):
            yield _Item(LAUNCH, node.lineno, frozenset(), frozenset())
        elif isinstance(node, ast.Assign) and _pure(node.value) and _plain_names(node):
            yield _Item(ast.dump(node), node.lineno, _plain_names(node), _reads(node.value))
        elif isinstance(node, _UNITS):
            yield from _compound(node, kernels)
        else:
            yield _Item(ast.dump(node), node.lineno, frozenset(), _reads(node))


def _compound(node: ast.stmt, kernels: frozenset[str]) -> Iterator[_Item]:
    """The head as one item, then what each of its blocks holds, with an end mark."""
    blocks = [name for name in ("body", "orelse", "finalbody") if getattr(node, name, None)]
    head = {name: value for name, value in ast.iter_fields(node) if name not in (*blocks, "type_comment")}
    parts = [part for value in head.values() for part in (value if isinstance(value, list) else [value])]
    reads = frozenset().union(*(_reads(part) for part in parts if isinstance(part, ast.AST)))
    text = type(node).__name__ + " ".join(ast.dump(p) if isinstance(p, ast.AST) else repr(p) for p in parts)
    yield _Item(text, node.lineno, frozenset(), reads)
    for name in blocks:
        yield from _items(getattr(node, name), kernels)
        yield _Item(f"end {name}", node.lineno, frozenset(), frozenset())


def _harmless_kernel(node: ast.AST) -> bool:
    """Decorators and defaults are evaluated by the host when the file is imported."""
    assert isinstance(node, ast.FunctionDef)
    defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
    return all(_decorator(d) in _DECORATORS and _pure(d) for d in node.decorator_list) and all(
        map(_pure, defaults)
    )


def _decorator(node: ast.expr) -> str:
    return _dotted(node.func if isinstance(node, ast.Call) else node)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _is_launch(node: ast.stmt, kernels: frozenset[str]) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    call = node.value
    subscript = call.func
    if not (isinstance(subscript, ast.Subscript) and isinstance(subscript.value, ast.Name)):
        return False
    if subscript.value.id not in kernels:
        return False
    return all(map(_pure, [subscript.slice, *call.args, *(word.value for word in call.keywords)]))


def _plain_names(node: ast.Assign) -> frozenset[str]:
    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    return frozenset(names if len(names) == len(node.targets) else ())


def _pure(node: ast.AST) -> bool:
    for child in ast.walk(node):
        if isinstance(child, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.JoinedStr)):
            return False
        if isinstance(child, ast.Call):
            member = isinstance(child.func, ast.Attribute) and child.func.attr in _MEMBER_CALLS
            if not member and _dotted(child.func) not in _CALLS | _DECORATORS:
                return False
    return True


def _reads(node: ast.AST) -> frozenset[str]:
    return frozenset(child.id for child in ast.walk(node) if isinstance(child, ast.Name))


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
