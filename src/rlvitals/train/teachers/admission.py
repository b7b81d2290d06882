"""Which code is run at all: an allow-list over its syntax tree.

Functions, expressions, loops, conditions and assignments to plain names; the builtins and methods named here; no
import, no class, no exception handling, no names with two underscores, no attribute but those methods. This is no
sandbox for hostile code: it keeps a student's mistakes and cheap tricks from doing harm, and it is the first of three
walls (see `runner`).

>>> refusal(parse("def f(x): return x + 1"))
>>> refusal(parse("import os"))
'Import is not allowed'
>>> refusal(parse("def f(x): return x.__class__"))
"the attribute '__class__' is not allowed"
"""

from __future__ import annotations

import ast
import warnings

MAX_LENGTH = 4000
"""Characters; a function of one line has some dozens."""

BUILTINS = frozenset({
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int", "len", "list", "map", "max",
    "min", "pow", "range", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip

METHODS = frozenset({
    "append", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort", "copy", "clear",
    "get", "items", "keys", "values", "setdefault", "update", "add", "discard", "union", "intersection", "difference",
    "lower", "upper", "strip", "lstrip", "rstrip", "split", "join", "replace", "startswith", "endswith", "find",
    "isdigit", "isalpha", "title", "capitalize", "swapcase", "splitlines", "partition",
})  # fmt: skip
"""`format` is not among them: it reaches attributes that no syntax tree shows."""

NODES = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign,
    ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.Call, ast.keyword, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Subscript, ast.Slice,
    ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Starred,
    ast.JoinedStr, ast.FormattedValue, ast.Attribute, ast.NamedExpr,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip


def parse(code: str) -> ast.Module | None:
    """The syntax tree, or None where the code is no Python (or too long to be looked at)."""
    if len(code) > MAX_LENGTH:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a student's strange escapes are not the user's business
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def refusal(tree: ast.Module | None) -> str | None:
    """Why this code is not run, or None where it may be."""
    if tree is None:
        return "this is no Python"
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef):
            return f"{type(statement).__name__} is not allowed" + (
                "" if not isinstance(statement, NODES) else " outside of a function"
            )
    for node in ast.walk(tree):
        if not isinstance(node, NODES) or isinstance(node, ast.AsyncFunctionDef):
            return f"{type(node).__name__} is not allowed"
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            return "a decorator is not allowed"
        if isinstance(node, ast.Attribute) and (node.attr not in METHODS or not isinstance(node.ctx, ast.Load)):
            return f"the attribute {node.attr!r} is not allowed"
        named = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg | ast.keyword) else ""
        if isinstance(node, ast.FunctionDef):
            named = node.name
        if named and "__" in named:
            return f"the name {named!r} is not allowed"
    return None
