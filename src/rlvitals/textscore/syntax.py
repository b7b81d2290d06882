"""A program's syntax tree, parsed once and shared by all parts of a score.

`parse` keeps the parts that the scores compare: nodes without comments and docstrings, and the tokens of the program in
order. A token is a leaf of the tree or a whole string; every node covers a range of tokens. Positions are in bytes, as
in the grammar, and are never applied to characters. Nothing here recurses, so deep nesting is no problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlvitals.errors import BadText
from rlvitals.textscore.languages import Language, new_parser

if TYPE_CHECKING:
    import tree_sitter

LARGEST = 1_100_000
"""The maximum number of characters of a program. Larger programs are rejected, because scoring would take minutes."""

STRINGS = frozenset({"string", "string_literal", "character_literal"})
"""Kinds of node that are one token, whatever they contain."""

_DOCSTRINGS = frozenset({"string", "concatenated_string"})

_REMEMBERED_CHILDREN = 16
"""Nodes with more children than this rarely repeat, so their fields are not cached."""

Shape = tuple[str, tuple[int | str, ...]]


@dataclass(slots=True)
class Program:
    """A parsed program.

    A node is a number, its index in preorder (every node comes before its children); node 0 is the whole program. The
    lists hold its kind, its field in its parent, whether the grammar names it, its parent, the number after its last
    descendant, and the range of its tokens.
    """

    language: Language
    broken: bool
    """Whether the grammar could not parse all of it."""

    kinds: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    named: list[bool] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    first_tokens: list[int] = field(default_factory=list)
    last_tokens: list[int] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    token_kinds: list[str] = field(default_factory=list)

    def children(self, node: int) -> Iterator[int]:
        """The children of a node, in order."""
        child, end = node + 1, self.ends[node]
        while child < end:
            yield child
            child = self.ends[child]

    def child(self, node: int, name: str) -> int | None:
        """The first child in that field."""
        return next((child for child in self.children(node) if self.fields[child] == name), None)

    def span(self, node: int) -> range:
        """The tokens of a node."""
        return range(self.first_tokens[node], self.last_tokens[node])

    def is_token(self, node: int) -> bool:
        """Whether it is one token: a leaf, or a string, whose descendants begin after that token."""
        return self.ends[node] == node + 1 or self.first_tokens[node + 1] > self.first_tokens[node]

    def text(self, node: int) -> bytes:
        """The tokens of a node, with a blank between them."""
        return b" ".join(self.tokens[self.first_tokens[node] : self.last_tokens[node]])


def parse(code: str, language: Language, *, open_strings: bool = False) -> Program:
    """Parse a program. Code with syntax errors also gives a tree, with `broken` set.

    `open_strings` splits a string with expressions into several tokens, so the names in it are visible.
    """
    if len(code) > LARGEST:
        raise BadText(f"a program of {len(code):,} characters is too large to score; at most {LARGEST:,} are taken.")
    # Lone surrogates have no UTF-8 form; their replacement only has to be the same in both programs.
    source = code.strip().encode("utf-8", "replace")
    root = new_parser(language).parse(source).root_node
    program = Program(language, root.has_error)
    _collect(program, root, source, open_strings)
    _close(program)
    return program


def subtrees(program: Program, known: dict[Shape, int]) -> list[int]:
    """A number for the shape of the root and of every inner node. `known` gives equal shapes the same number.

    A shape is the node's kind and the kinds and fields of the named nodes below it, without their texts.
    """
    kinds, fields, named, parents = program.kinds, program.fields, program.named, program.parents
    below: list[list[int | str] | None] = [None] * len(kinds)
    found = []
    for node in range(len(kinds) - 1, -1, -1):
        inner = below[node]
        shape = known.setdefault((kinds[node], tuple(inner) if inner else ()), len(known))
        if inner is not None or not node:
            found.append(shape)
        above = below[parents[node]]
        if above is None:
            above = below[parents[node]] = []
        if named[node]:
            above += (shape, fields[node])
    return found


def _collect(program: Program, root: tree_sitter.Node, source: bytes, open_strings: bool) -> None:
    """Fill the program's lists from the grammar's tree."""
    language, kinds, tokens = program.language, program.kinds, program.tokens
    productions = _PRODUCTIONS.setdefault(language.name, {})
    is_quiet: list[bool] = []  # true inside a string, which is one token
    pending, pending_labels, pending_parents = [root], [(root.type, "", True)], [0]
    while pending:
        found, label, parent = pending.pop(), pending_labels.pop(), pending_parents.pop()
        kind, its_field, is_named = label
        children = found.children
        if kind in language.skipped or (kind == "expression_statement" and _is_docstring(children, language)):
            continue
        node = len(kinds)
        if program.broken:
            kind, is_named = _kind_in_broken_code(found, source), is_named or found.is_missing
        kinds.append(kind)
        program.fields.append(its_field)
        program.named.append(is_named)
        program.parents.append(parent)
        program.first_tokens.append(len(tokens))
        quiet = bool(node) and is_quiet[parent]
        if not quiet and (not children or (kind in STRINGS and not (open_strings and _has_expressions(children)))):
            if text := source[found.start_byte : found.end_byte]:  # a node that the grammar inserted has no text
                tokens.append(text)
                program.token_kinds.append(kind)
            quiet = True
        is_quiet.append(quiet)
        program.last_tokens.append(len(tokens))
        if children:
            pending.extend(children[::-1])
            pending_labels.extend(_labels(found, children, productions))
            pending_parents.extend([node] * len(children))


def _close(program: Program) -> None:
    """Set the end and the last token of each node to those of its last descendant."""
    parents, lasts = program.parents, program.last_tokens
    ends = program.ends = list(range(1, len(parents) + 1))
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        ends[parent] = max(ends[parent], ends[node])
        lasts[parent] = max(lasts[parent], lasts[node])


def _is_docstring(children: list[tree_sitter.Node], language: Language) -> bool:
    if not language.docstrings or len(children) != 1 or children[0].type not in _DOCSTRINGS:
        return False
    return not _has_expressions(children[0].children)


def _has_expressions(parts: list[tree_sitter.Node]) -> bool:
    return any(part.type == "interpolation" for part in parts)


def _kind_in_broken_code(found: tree_sitter.Node, source: bytes) -> str:
    """The kind, with a mark on nodes that the grammar inserted and on pieces that it could not parse."""
    if found.is_missing:
        return f"MISSING {found.type}"
    if found.is_error and not found.children:
        return f"ERROR {source[found.start_byte : found.end_byte].decode('utf-8', 'replace')[:1]}"
    return str(found.type)


Label = tuple[str, str, bool]
_PRODUCTIONS: dict[str, dict[tuple[int, ...], list[Label]]] = {}


def _labels(
    found: tree_sitter.Node, children: list[tree_sitter.Node], productions: dict[tuple[int, ...], list[Label]]
) -> list[Label]:
    """Kind, field and whether it is named, for each child from the last to the first.

    Queries to tree-sitter are slow, and the labels depend only on the kinds of the node and its children, so they are
    cached.
    """
    if len(children) > _REMEMBERED_CHILDREN:
        return _ask_labels(found, children)
    key = (found.kind_id, *[child.kind_id for child in children])
    labels = productions.get(key)
    if labels is None:
        labels = productions[key] = _ask_labels(found, children)
    return labels


def _ask_labels(found: tree_sitter.Node, children: list[tree_sitter.Node]) -> list[Label]:
    cursor = found.walk()  # a node's own query for the field of its nth child takes n steps
    cursor.goto_first_child()
    labels = []
    for child in children:
        labels.append((child.type, cursor.field_name or "", child.is_named))
        cursor.goto_next_sibling()
    return labels[::-1]
