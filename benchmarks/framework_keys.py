"""Finds string keys in Python source that may be metric names, for `framework_names.py`.

Only the syntax tree is read; frameworks are not imported. A key is found where it is written: in a dictionary, in an
assignment to a subscript, or as an argument of a call. It is kept with its container, the variable or function that
takes it, because the container distinguishes metrics from settings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

MOST_EXPANDED = 64
"""The most names that one key in a loop over literal values may become."""

Bindings = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Key:
    """One key, and where it is written."""

    name: str
    """The key, with `{x}` for every part that is not a literal."""
    container: str
    """The container: a variable (`metrics`, `self._metrics`) or a function (`return of f`, `call to scalar`)."""
    scope: str
    """The class and function around it, as `Class.function`."""
    line: int


def keys(source: str) -> Iterator[Key]:
    """Every key in a file."""
    yield from _Keys().walk(ast.parse(source))


class _Keys:
    def __init__(self) -> None:
        self.scope: list[str] = []
        self.bound: dict[str, tuple[str, ...]] = {}
        self.lists: dict[str, ast.expr] = {}
        """Literal lists and tuples by their name: loops run over them, and some hold the keys themselves."""

    def walk(self, node: ast.AST, target: str = "") -> Iterator[Key]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.scope.append(node.name)
                outside, self.bound = self.bound, dict(self.bound)
                yield from self._children(node)
                self.bound = outside
                self.scope.pop()
            case ast.For():
                names = _loop_values(node.target, self._listed(node.iter))
                before = self.bound
                self.bound = {**self.bound, **names}
                yield from self._children(node)
                self.bound = before
            case ast.Assign(targets=targets, value=value):
                into = _dotted(targets[0])
                for one in targets:
                    yield from self._stored(one)
                if len(targets) == 1 and isinstance(one, ast.Name) and (found := self._names(value, strict=True)):
                    self.bound[one.id] = found
                if isinstance(value, ast.List | ast.Tuple):
                    self.lists[into] = value
                    for item in value.elts:
                        first = item.elts[0] if isinstance(item, ast.Tuple) and item.elts else item
                        yield from self._found(first, f"list {into}")
                yield from self.walk(value, into)
            case ast.AnnAssign(target=ast.Name(id=name)) if self.scope and self.scope[-1][:1].isupper():
                yield Key(name, f"field of {self.scope[-1]}", ".".join(self.scope), node.lineno)
            case ast.AugAssign(target=one, value=value) | ast.AnnAssign(target=one, value=ast.expr() as value):
                yield from self._stored(one)
                yield from self.walk(value, _dotted(one))
            case ast.Return(value=ast.expr() as value):
                yield from self.walk(value, f"return of {self.scope[-1] if self.scope else '?'}")
            case ast.Dict(keys=written, values=values):
                for key, value in zip(written, values, strict=True):
                    if key is not None:
                        yield from self._found(key, target)
                    inner = self._names(key) if key is not None else ()
                    yield from self.walk(value, f"{target}[{inner[0]}]" if inner else target)
            case ast.DictComp(key=key, value=value, generators=generators):
                before = self.bound
                for loop in generators:
                    self.bound = {**self.bound, **_loop_values(loop.target, self._listed(loop.iter))}
                yield from self._found(key, target)
                yield from self.walk(value, target)
                self.bound = before
            case ast.Call():
                yield from self._called(node, target)
            case _:
                yield from self._children(node, target)

    def _listed(self, over: ast.expr) -> ast.expr:
        return self.lists.get(over.id, over) if isinstance(over, ast.Name) else over

    def _children(self, node: ast.AST, target: str = "") -> Iterator[Key]:
        for child in ast.iter_child_nodes(node):
            yield from self.walk(child, target)

    def _stored(self, target: ast.expr) -> Iterator[Key]:
        """`metrics[mode]["name"] = value`, `rates["name"][0] += value`."""
        while isinstance(target, ast.Subscript):
            yield from self._found(target.slice, _dotted(target.value))
            target = target.value

    def _called(self, node: ast.Call, target: str) -> Iterator[Key]:
        called = _dotted(node.func)
        short = called.rsplit(".", 1)[-1]
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        if isinstance(receiver, ast.Subscript) and short in ("append", "extend", "add", "update"):
            yield from self._found(receiver.slice, _dotted(receiver.value))
        if short == "dict":
            into = target
        elif short in ("update", "append", "setdefault") and receiver is not None:
            into = _dotted(receiver)
        else:
            into = f"call to {called}"
        for one in node.args:
            if isinstance(one, ast.Constant | ast.JoinedStr | ast.BinOp | ast.Name):
                yield from self._found(one, into)
            else:
                yield from self.walk(one, into)
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield Key(keyword.arg, f"{into} keywords", ".".join(self.scope), node.lineno)
            if isinstance(keyword.value, ast.Constant | ast.JoinedStr):
                yield from self._found(keyword.value, f"{into} {keyword.arg}=")
            else:
                yield from self.walk(keyword.value, f"{into} {keyword.arg}=")
        if receiver is not None:
            yield from self.walk(receiver)

    def _found(self, key: ast.expr, container: str) -> Iterator[Key]:
        for name in self._names(key):
            yield Key(name, container, ".".join(self.scope), key.lineno)

    def _names(self, key: ast.expr | None, *, strict: bool = False) -> tuple[str, ...]:
        """The possible names of a key: several if it is made in a loop over literal values. `strict`: only texts."""
        match key:
            case ast.Constant(value=str(text)):
                return (text,)
            case ast.JoinedStr(values=parts):
                pieces = [self._piece(part) for part in parts]
                if pieces and _count(pieces) <= MOST_EXPANDED:
                    return tuple("".join(chosen) for chosen in product(*pieces))
                return ()
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                sides = [self._piece(left), self._piece(right)]
                if any(isinstance(side, ast.Constant) and not isinstance(side.value, str) for side in (left, right)):
                    return ()  # a sum of numbers
                if not any(isinstance(side, ast.Constant | ast.JoinedStr | ast.BinOp) for side in (left, right)):
                    return ()
                return tuple("".join(chosen) for chosen in product(*sides)) if _count(sides) <= MOST_EXPANDED else ()
            case ast.Name(id=name) if not strict and name in self.bound:
                return self.bound[name]
            case ast.IfExp(body=body, orelse=orelse):
                return (*self._names(body, strict=strict), *self._names(orelse, strict=strict))
        return ()

    def _piece(self, part: ast.expr) -> tuple[str, ...]:
        match part:
            case ast.Constant(value=value):
                return (str(value),)
            case ast.FormattedValue(value=value):
                return self._piece(value)
            case ast.Name(id=name) if name in self.bound:
                return self.bound[name]
        return self._names(part, strict=True) or ("{" + _dotted(part).replace("self.", "") + "}",)


def _count(pieces: list[tuple[str, ...]]) -> int:
    count = 1
    for piece in pieces:
        count *= len(piece)
    return count


def _loop_values(target: ast.expr, over: ast.expr) -> Bindings:
    """The literal texts of a loop, by the loop variable."""
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr == "items":
        over, single = over.func.value, False
    else:
        single = True
    if isinstance(over, ast.Dict):
        written: list[ast.expr] = [key for key in over.keys if key is not None]
        target = target if single else target.elts[0] if isinstance(target, ast.Tuple) else target
    elif isinstance(over, ast.List | ast.Tuple | ast.Set):
        written = list(over.elts)
    else:
        return {}
    if isinstance(target, ast.Tuple):
        rows = [item.elts for item in written if isinstance(item, ast.Tuple)]
        columns = zip(*rows, strict=False)
        return {
            name.id: tuple(cell.value for cell in column if isinstance(cell, ast.Constant))
            for name, column in zip(target.elts, columns, strict=False)
            if isinstance(name, ast.Name) and all(isinstance(getattr(c, "value", None), str) for c in column)
        }
    texts = tuple(item.value for item in written if isinstance(item, ast.Constant) and isinstance(item.value, str))
    return {target.id: texts} if isinstance(target, ast.Name) and len(texts) == len(written) > 0 else {}


def _dotted(node: ast.AST) -> str:
    """`self._metrics[mode]` as `self._metrics`: the variable at the root of an expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
        case ast.Subscript(value=value):
            return _dotted(value)
        case ast.Call(func=func):
            return _dotted(func)
        case ast.Tuple(elts=[first, *_]) | ast.BinOp(left=first):
            return _dotted(first)
        case ast.Await(value=value) | ast.Starred(value=value):
            return _dotted(value)
    return "?"
