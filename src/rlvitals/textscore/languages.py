"""The programming languages of the code scores: grammar, reserved words, and the syntax nodes that move values.

Each grammar is a separate package (`tree-sitter-java`); the `text` extra includes Python's. To add a language, add an
entry with its reserved words and the node kinds of its grammar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from rlvitals.errors import ConfigError, did_you_mean, needs

if TYPE_CHECKING:
    import tree_sitter

Fields = tuple[str, str]
"""The field of a node that receives a value, and the field that contains the value."""


@dataclass(frozen=True)
class Flow:
    """The kinds of syntax node that move values from name to name."""

    assignments: Mapping[str, Fields]
    declarations: Mapping[str, Fields]
    branches: frozenset[str]
    loops: frozenset[str]
    walks: Mapping[str, Fields]
    """Loops over a collection."""

    alternatives: frozenset[str]
    """Nodes that begin the other side of a branch."""

    updates: frozenset[str] = frozenset()
    """`i++`: the name receives its own value."""

    starts: frozenset[str] = frozenset()
    """Fields of a loop that run once, before the loop."""

    read_first: frozenset[str] = frozenset()
    """Children that run before the children written to their left, as in a comprehension."""

    unpacks: bool = False
    """Whether `a, b = b, a` gives each name the value at the same position. Repeated values then count repeatedly."""


@dataclass(frozen=True, eq=False)
class Language:
    """The properties of one programming language that the code scores need."""

    name: str
    keywords: frozenset[str]
    flow: Flow
    grammar: str = "language"
    skipped: frozenset[str] = frozenset({"comment", "line_comment", "block_comment"})
    """Kinds of node that are not part of the program."""

    docstrings: bool = False
    """Whether a statement that is only a string counts as a comment."""

    @property
    def distribution(self) -> str:
        """The package that holds the grammar."""
        return f"tree-sitter-{self.name}"


_BRACES = Flow(
    assignments={"assignment_expression": ("left", "right")},
    declarations={"variable_declarator": ("name", "value")},
    branches=frozenset({"if_statement"}),
    alternatives=frozenset({"else", "else_clause"}),
    loops=frozenset({"for_statement", "while_statement", "do_statement"}),
    walks={},
    updates=frozenset({"update_expression"}),
    starts=frozenset({"init", "initializer"}),
)


_PYTHON = Flow(
    assignments={
        "assignment": ("left", "right"),
        "augmented_assignment": ("left", "right"),
        "for_in_clause": ("left", "right"),
    },
    declarations={"default_parameter": ("name", "value")},
    branches=frozenset({"if_statement"}),
    alternatives=frozenset({"elif_clause", "else_clause"}),
    loops=frozenset({"while_statement"}),
    walks={"for_statement": ("left", "right")},
    read_first=frozenset({"for_in_clause"}),
    unpacks=True,
)
_SCRIPT = replace(
    _BRACES,
    assignments={
        "assignment_expression": ("left", "right"),
        "augmented_assignment_expression": ("left", "right"),
        "assignment_pattern": ("left", "right"),
    },
    walks={"for_in_statement": ("left", "right")},
)
_C = replace(
    _BRACES,
    declarations={"init_declarator": ("declarator", "value")},
    walks={"for_range_loop": ("declarator", "right")},
)
_GO = replace(
    _BRACES,
    assignments={
        "assignment_statement": ("left", "right"),
        "short_var_declaration": ("left", "right"),
        "range_clause": ("left", "right"),
    },
    declarations={"var_spec": ("name", "value"), "const_spec": ("name", "value")},
    loops=frozenset({"for_statement"}),
    updates=frozenset({"inc_statement", "dec_statement"}),
)
_RUST = replace(
    _BRACES,
    assignments={"assignment_expression": ("left", "right"), "compound_assignment_expr": ("left", "right")},
    declarations={"let_declaration": ("pattern", "value")},
    branches=frozenset({"if_expression"}),
    loops=frozenset({"while_expression", "loop_expression"}),
    walks={"for_expression": ("pattern", "value")},
    updates=frozenset(),
)

_C_WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while"
)
_SCRIPT_WORDS = (
    "await break case catch class const continue debugger default delete do else enum export extends false finally for "
    "function if implements import in instanceof interface let new null package private protected public return static "
    "super switch this throw true try typeof var void while with yield"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGES = {
    language.name: language
    for language in (
        Language(
            "python",
            _words(
                "False None True and as assert async await break case class continue def del elif else except finally "
                "for from global if import in is lambda match nonlocal not or pass raise return try type while with "
                "yield"
            ),
            _PYTHON,
            skipped=frozenset({"comment", "line_continuation"}),
            docstrings=True,
        ),
        Language(
            "java",
            _words(
                "abstract assert boolean break byte case catch char class const continue default do double else enum "
                "extends final finally float for goto if implements import instanceof int interface long native new "
                "package private protected public return short static strictfp super switch synchronized this throw "
                "throws transient try void volatile while"
            ),
            replace(_BRACES, walks={"enhanced_for_statement": ("name", "value")}),
        ),
        Language(
            "javascript",
            _words(_SCRIPT_WORDS),
            _SCRIPT,
            skipped=frozenset({"comment", "html_comment"}),
        ),
        Language(
            "typescript",
            _words(
                f"{_SCRIPT_WORDS} abstract any as boolean declare keyof namespace never number readonly string type"
            ),
            _SCRIPT,
            grammar="language_typescript",
            skipped=frozenset({"comment", "html_comment"}),
        ),
        Language(
            "go",
            _words(
                "break case chan const continue default defer else fallthrough false for func go goto if import "
                "interface map package range return select struct switch true type var"
            ),
            _GO,
        ),
        Language("c", _words(_C_WORDS), _C),
        Language(
            "cpp",
            _words(
                f"{_C_WORDS} and asm bool catch class const_cast constexpr delete dynamic_cast explicit false friend "
                "mutable namespace new noexcept not nullptr operator or private protected public reinterpret_cast "
                "static_cast template this throw true try typeid typename using virtual wchar_t"
            ),
            _C,
        ),
        Language(
            "rust",
            _words(
                "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match "
                "mod move mut pub ref return self Self static struct super trait true type union unsafe use where "
                "while yield"
            ),
            _RUST,
        ),
    )
}

OTHER_NAMES = {
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "ts": "typescript",
    "golang": "go",
    "c++": "cpp",
}


def find_language(name: str) -> Language:
    """The language of that name or short name; otherwise raises ConfigError with the closest name.

    >>> find_language("JS").name
    'javascript'
    """
    wanted = name.strip().lower() if isinstance(name, str) else repr(name)
    found = LANGUAGES.get(OTHER_NAMES.get(wanted, wanted))
    if found is None:
        hint = did_you_mean(wanted, [*LANGUAGES, *OTHER_NAMES])
        raise ConfigError(
            f"the code scores do not know the language {name!r}.{hint} They know: {', '.join(LANGUAGES)}."
        )
    return found


def new_parser(language: Language) -> tree_sitter.Parser:
    """A parser of the language; raises MissingDependency with the pip command if its grammar is not installed."""
    grammar = _grammar(language)
    import tree_sitter

    return tree_sitter.Parser(grammar)  # not shared: a parser has state, and scores may run in threads


@cache
def _grammar(language: Language) -> tree_sitter.Language:
    with needs("reading programs", "text"):
        import tree_sitter
    with needs(f"reading {language.name}", package=language.distribution):
        grammar = import_module(language.distribution.replace("-", "_"))
    return tree_sitter.Language(getattr(grammar, language.grammar)())
