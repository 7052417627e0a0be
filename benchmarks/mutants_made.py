"""Small mistakes: the source of a file with one operator, constant, condition, name, argument or statement changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
RENAMED = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "ceil": "floor", "floor": "ceil"}
RENAMED |= {"median": "mean", "mean": "median", "zeros": "ones", "ones": "zeros", "all": "any", "any": "all"}


@dataclass(frozen=True)
class Place:
    """Where a file can be changed, and how: the number of the node in ``ast.walk``, and the function around it."""

    node: int
    change: str
    function: str


@dataclass(frozen=True)
class Mutant:
    """A source with one change, its line, and what it is called: that line and the change, not the line's number."""

    line: int
    name: str
    source: str


def places(source: str) -> list[Place]:
    """Return all places of a file."""
    whole = ast.parse(source)
    unseen, functions = _annotations(whole), _functions(whole)
    return [
        Place(k, change, functions[node])
        for k, node in enumerate(ast.walk(whole))
        if node not in unseen
        for change in _changes(node)
    ]


def mutant(source: str, place: Place) -> Mutant:
    """Return the source with this change."""
    tree = ast.parse(source)
    node = _node(tree, place)
    line, before = source.splitlines()[node.lineno - 1].strip(), ast.unparse(node).partition("\n")[0]
    _change(node, place.change)
    after = {"left out": "left out", "no argument": "without its last argument"}.get(place.change)
    return Mutant(
        node.lineno, f"{line} | {before} -> {after or ast.unparse(node).partition(chr(10))[0]}", ast.unparse(tree)
    )


def changed(source: str, place: Place) -> ast.Module:
    """Return the tree with this change, whose lines are those of the source."""
    tree = ast.parse(source)
    _change(_node(tree, place), place.change)
    return ast.fix_missing_locations(tree)


def _node(tree: ast.AST, place: Place) -> Any:
    return next(node for k, node in enumerate(ast.walk(tree)) if k == place.node)


def _annotations(whole: ast.AST) -> set[ast.AST]:
    """Return all that stands in an annotation, which nothing evaluates."""
    tops = [getattr(node, name, None) for node in ast.walk(whole) for name in ("annotation", "returns")]
    return {node for top in tops if top is not None for node in ast.walk(top)}


def _functions(whole: ast.AST) -> dict[ast.AST, str]:
    """Return the name of the function around each node, as ``Class.method``; empty outside of all."""
    found: dict[ast.AST, str] = {}

    def visit(node: ast.AST, scope: str, function: str) -> None:
        found[node] = function
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{scope}{child.name}.", f"{scope}{child.name}")
            else:
                visit(child, f"{scope}{child.name}." if isinstance(child, ast.ClassDef) else scope, function)

    visit(whole, "", "")
    return found


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPPED:
        yield "operator"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield "comparison"
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant"
    if isinstance(node, ast.Attribute) and node.attr in RENAMED:
        yield "name"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition"
    if isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg:
        yield "no argument"
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_call or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)):
        yield "left out"


def _change(node: ast.AST, change: str) -> None:
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.Attribute):
        node.attr = RENAMED[node.attr]
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Call):
        node.keywords.pop()
    elif isinstance(node, ast.Expr):
        node.value = ast.Constant(None)
    elif isinstance(node, ast.Assign):
        node.targets = [ast.Name("_", ast.Store())]
