"""The defects that can be planted into a source: one syntax tree for each, counted from 0 in the order of the file.

Comparisons turn round or move by one, arithmetic takes its opposite, conditions are negated, whole numbers move by one,
also where a type of a message has them, and what stands as a statement is left out: a call, a `raise`, a `del`, and
what a function writes into an object.

Not planted is what cannot be noticed, or only by reading: in docstrings, annotations without a call, unions of types,
texts (what a refusal says, f-strings, `__repr__`), decorators of functions, and the keywords of LEFT_OUT.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}  # fmt: skip


LEFT_OUT: Final = frozenset({"frozen", "kw_only", "slots", "strict"})
"""Keywords that refuse what correct code does not do: they are for who writes it, as assertions are."""


@dataclass(frozen=True)
class Defect:
    """What is wrong in a mutated source. number: which of the defects of this source it is.

    line, statement: where, from 1, and where the statement begins that it is in; 0: in no function.
    """

    number: int
    line: int
    statement: int
    description: str


class _Planter(ast.NodeTransformer):
    """Counts the defects of a tree, and plants the one of that number."""

    def __init__(self, number: int) -> None:
        self._wanted = number
        self._functions: list[str] = []
        self._statement = 0
        self.defects: list[Defect] = []

    def visit(self, node: ast.AST) -> Any:
        outer = self._statement
        if isinstance(node, ast.stmt):
            self._statement = node.lineno if self._functions else 0
        try:
            return super().visit(node)
        finally:
            self._statement = outer

    def _plant(self, node: ast.AST, description: str) -> bool:
        number = len(self.defects)
        self.defects.append(Defect(number, getattr(node, "lineno", 0), self._statement, description))
        return number == self._wanted

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in ("__repr__", "__str__"):
            return node
        self._statement = 0
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.args.kw_defaults = [default and self.visit(default) for default in node.args.kw_defaults]
        self._functions.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self._functions.pop()
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if any(isinstance(part, ast.Call) for part in ast.walk(node.annotation)):
            node.annotation = self.visit(node.annotation)
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # The -1 of a reshape means what is left, as any other negative number does.
        if isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
            node.func = self.visit(node.func)
            return node
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg in LEFT_OUT else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        for place, operator in enumerate(node.ops):
            opposite = COMPARISONS[type(operator)]
            if self._plant(node, f"{type(operator).__name__} becomes {opposite.__name__}"):
                node.ops[place] = opposite()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.BitOr) and not self._functions:
            return node
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
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node
        self.generic_visit(node)
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr) and self._plant(
            node, "the condition is negated"
        ):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        return self._left_out(node, "the call") if isinstance(node.value, ast.Call) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        # Without what a constructor writes nothing runs at all.
        if self._functions[-1:] in ([], ["__init__"]) or not isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            return node
        return self._left_out(node, "the assignment")

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        return self._left_out(node, "the assignment")

    def visit_Delete(self, node: ast.Delete) -> ast.AST:
        return self._left_out(node, "the del")

    def _left_out(self, node: ast.stmt, what: str) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if self._plant(node, f"{what} is left out") else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Name) and node.exc.id == "NotImplementedError":
            return node
        # What a refusal says is for people: only that it is one matters here.
        return self._left_out(node, "the raise")


def defects(source: str) -> Iterator[Defect]:
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
