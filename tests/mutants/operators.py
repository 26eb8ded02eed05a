"""The defects that can be planted into a source: one syntax tree for each, counted from 0 in the order of the file.

Comparisons turn round or move by one, arithmetic takes its opposite, conditions are negated, whole numbers move by one,
and a call or a `raise` that stands as a statement is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Defect:
    """What is wrong in a mutated source. line: where, from 1; number: which of the defects of this source it is."""

    number: int
    line: int
    description: str


class _Planter(ast.NodeTransformer):
    """Counts the defects of a tree, and plants the one of that number."""

    def __init__(self, number: int) -> None:
        self._wanted = number
        self.defects: list[Defect] = []

    def _plant(self, node: ast.AST, description: str) -> bool:
        """Note a defect; whether it is the one to be planted."""
        number = len(self.defects)
        self.defects.append(Defect(number, getattr(node, "lineno", 0), description))
        return number == self._wanted

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Annotations are not evaluated, and what decorates a function is no part of what it does.
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for place, operator in enumerate(node.ops):
            opposite = COMPARISONS[type(operator)]
            if self._plant(node, f"{type(operator).__name__} becomes {opposite.__name__}"):
                node.ops[place] = opposite()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        opposite = ARITHMETIC.get(type(node.op))
        if opposite and self._plant(node, f"{type(node.op).__name__} becomes {opposite.__name__}"):
            node.op = opposite()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self._plant(node, "and becomes or" if isinstance(node.op, ast.And) else "or becomes and"):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._plant(node, "not is left out"):
            return node.operand
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            if self._plant(node, f"{node.value} becomes {not node.value}"):
                return ast.copy_location(ast.Constant(not node.value), node)
        elif isinstance(node.value, int) and self._plant(node, f"{node.value} becomes {node.value + 1}"):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr) and self._plant(
            node, "the condition is negated"
        ):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and self._plant(node, "the call is left out"):
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        # What a refusal says is for people: only that it is one matters here.
        if self._plant(node, "the raise is left out"):
            return ast.copy_location(ast.Pass(), node)
        return node


def defects(source: str) -> Iterator[Defect]:
    """Everything that can be planted into a source."""
    planter = _Planter(-1)
    planter.visit(ast.parse(source))
    yield from planter.defects


def planted(source: str, number: int) -> ast.Module:
    """The tree of a source with its defect of this number. IndexError if it has none such."""
    planter = _Planter(number)
    tree: ast.Module = planter.visit(ast.parse(source))
    if not 0 <= number < len(planter.defects):
        raise IndexError(f"the source has {len(planter.defects)} defects, and none of number {number}")
    return ast.fix_missing_locations(tree)
