"""Parses the lines that training loops print: names and numbers, with any separators.

A number's name is the text between the previous number and this one, after the last separator: `step=10 | reward 0.3`,
`Step 10: reward=0.31 kl=0.02`, `iter 10/500 - loss 0.5`, `[step 10] loss 0.5`, `奖励: 0.35, 步数: 10`.
Prefixes of loggers (times, levels, ranks, source locations) are skipped. This module does not decide whether a line is
a row or prose; `LineReading` counts the words that are not names.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from rlvitals.importers.base import Fields
from rlvitals.importers.cells import number_in
from rlvitals.splits import held_out_name

MAX_LINE = 8000
"""In characters. A longer line is a text."""
MAX_NAME = 80
MAX_PREFIXES = 10

UNLABELLED = ""
"""The name of a count that has none, as in `20/4292` or a line that begins with `10:`."""

TELLING = re.compile(  # names that trainings log; console output holds other numbers too
    r"loss|reward|return|(?:\b|_)kl(?:\b|_)|entropy|grad[_ .]*norm|learning_rate|\blr\b|accurac|\bacc\b|margin|score|"
    r"advantage|ppo|logps|train_runtime|perplexity|\bppl\b|clip|\brew\b|_rew_|win[_ ]?rate|success|objective|"
    r"奖励|损失|回报|熵|优势|准确|学习率|得分|梯度|наград|потер|энтроп|точност|вознагражд|報酬|損失|보상|손실",
    re.IGNORECASE,
)

_TIME = r"\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:\s?[AP]M)?(?:Z|[+-]\d{2}:?\d{2}\b)?"
_LEVEL = r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SUCCESS|TRACE|NOTICE)"
_PREFIX = re.compile(
    rf"""\s*(?:
      \((?:\w[\w.:]*\ )?pid=\d+(?:,\ ip=[\w.:]+)?\)                  # Ray
    | [\[(]?(?:local_)?rank[\s:=_-]?\d+[\])]?:?                 # torchrun
    | \[?\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}(?:[T\s_-]+{_TIME})?\]?
    | \[?\d{{1,2}}[-/]\d{{1,2}}(?:[-/]\d{{2,4}})?[T\s]+{_TIME}\]?
    | \d{{8}}[-_]{_TIME}
    | \[?\d{{1,2}}:\d{{2}}:\d{{2}}(?:[.,]\d+)?(?:\s?[AP]M)?\]?
    | [A-Z][a-z]{{2}}\s+\d{{1,2}}\s+\d{{2}}:\d{{2}}:\d{{2}}
    | [IWEF]\d{{4}}\s+\d{{2}}:\d{{2}}:\d{{2}}\.\d+\s+\d+(?=\s)
    | [\w.]{{1,80}}\s+-\s+\[?{_LEVEL}\b\]?(?=\s+-)                   # logging's own examples
    | (?:[\w.-]{{1,60}}\s+)?[\[(]?\b{_LEVEL}\b[\])]?(?::[A-Za-z_][\w.]{{0,60}}:|:?(?![\w/]))
    | \[?[\w./-]{{1,120}}\.(?:py|cc|cpp|cu|go|rs):\d+\]?(?::\w+)?
    | [\w.]{{1,80}}:[\w.<>]{{1,60}}:\d+(?=\s+-\s)               # loguru
    | \((?!\d)\w[\w.-]{{0,30}}\)(?=\s)
    | \[[A-Za-z_][A-Za-z_.\ -]{{0,40}}\](?=\s)
    | \[(?!\d)\w[\w.-]{{0,60}}\](?=\s)
    | [-|:>]+(?=\s)
    )""",
    re.VERBOSE,
)
_RATE = (
    r"(?:[A-Za-z]{1,12}(?:\s|\b))?/\s?(?:s|sec|second|min|it|iter|step|gpu|sample|episode|token|h|hour)"
    r"(?:/[A-Za-z]{1,8})?"
)
_VALUE = re.compile(
    rf"""(?<!\d:)(?<![^\s=:\uff1a\[({{|<>,;'"~≈│+\#])
    (?P<number>[+-]?(?:\d{{1,3}}(?:,\d{{3}})++(?:\.\d++)?|\d++(?:\.\d*+)?(?:[eE][+-]?\d++)?|\.\d++(?:[eE][+-]?\d++)?
        |(?:nan|inf(?:inity)?)\b))
    (?:\s?/\s?(?P<total>\d[\d,]*+)(?![\w./]))?
    (?P<scale>[kKMB](?![\w]))?
    (?P<unit>\s?(?:%|°C|(?:[µmn]?s|secs?|seconds?|min(?:s|utes?)?|h(?:rs?|ours?)?|[KMGT]i?B|TFLOPS)(?![\w/])
        |{_RATE}(?![\w])|(?:tok(?:en)?s?|steps?|samples?|episodes?|frames?|reqs?|batches|iters?)(?=\s*(?:[,;|)\]]|$))))?
    (?=[\s,;|)\]}}>'"│(]|[.:\uff1a](?!\d)|$)""",
    re.VERBOSE | re.IGNORECASE,
)
_SEPARATORS = re.compile(r"=[^\s=]+\s|[,;|│\t]|\s{2,}|\s[-\u2013\u2014]+\s|\]\s|:\s|\uff1a|->|=>|(?<=\w{5})\.\s|\s=\s")
_EDGES = " \t:=\uff1a[({<\"'`#~≈>*│|,;"
_OUTER = re.compile(r"^[^\w(]+|[^\w)%]+$")
_DIGIT = re.compile(r"[0-9]")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FILLERS = frozenset({
    "a", "after", "and", "at", "completed", "done", "finished", "for", "got", "had", "has", "in", "is", "now", "of",
    "the", "then", "took", "was", "with",
})  # fmt: skip
_RULES = re.compile(r"[=*_#─━═~-]{3,}")
_ORDINAL = re.compile(r"第\s*(\d+)\s*[步轮回次个]合?")
_WRAPPED = re.compile(r"(?:\b\w{1,8}\.)?\b(?:tensor|array|b?float\d*)\(\[?([^\s(),\]]{1,40})[^()]{0,80}\)")
_WINDOW = re.compile(r"\s(?:over|of|in|for)\s(?:the\s)?last\s\d{1,9}\s\w{1,20}")
_SECONDS = {"ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_HOURS = frozenset({"hr", "hrs", "hour", "hours"})
_SCALE = {"k": 1e3, "m": 1e6, "b": 1e9}
_ABOUT = re.compile(r"(\w.*?) (?:in|at|for|of|after|on) (\S+(?: \S+)?)", re.IGNORECASE)
_STATISTICS = frozenset({"avg", "mean", "std", "min", "max", "median", "ema"})
_HELD_OUT = re.compile(
    r"(?:\b|_)(?:eval(?:uat(?:ion|ing))?|val(?:id(?:ation)?)?|test(?:ing)?|dev|held[- _]?out)(?:\b(?!\.py)|_)|"
    r"验证|测试|评估|валидац|тест",
    re.IGNORECASE,
)

_WHAT = "|".join(
    (
        r"(?:time)?steps?|iter(?:s|ations?)?|it|updates?|步数?|步骤|迭代(?:次数)?|шаги?|итераци[яи]|ステップ|스텝",
        r"rounds?|rollouts?|раунд|轮次",
        r"episodes?|ep|эпизоды?|回合数?|エピソード",
        r"batch(?:es)?|batch_idx|батч|批次",
        r"epoch|эпох[аи]|轮数?|周期|エポック",
    )
)
_QUALIFIER = (
    r"(?:(?:global|train(?:ing|er)?|optim(?:izer)?|total|current|env|ppo|grpo|dpo|rl|at|for|after|of|the|num|"
    r"eval(?:uation)?|val(?:idation)?|test)[ _/.-]*)*"
)
_COUNT = re.compile(rf"(?P<before>{_QUALIFIER})(?P<what>{_WHAT})", re.IGNORECASE)
_RANKS = (
    re.compile(r"(?:time)?steps?|iter|it$|update|步|迭代|шаг|итера|ステップ|스텝", re.IGNORECASE),
    re.compile(r"round|rollout|раунд|轮次", re.IGNORECASE),
    re.compile(r"episode|ep$|эпизод|回合|エピ", re.IGNORECASE),
    re.compile(r"batch|батч|批次", re.IGNORECASE),
)
EPOCHS = len(_RANKS) + 1
"""The rank of a count of epochs. A smaller rank counts in smaller units."""


class NumberLabel(NamedTuple):
    """The text before a number."""

    name: str | None
    """None if the text is not a name."""
    words: int
    """Words before the name."""
    has_mark: bool
    """Whether an equals sign or a colon follows the name."""
    about: str = ""
    """The name of a later number: `loss` in `loss in epoch 1 iteration 0: 0.5`."""
    group: str = ""
    """The prefix of the names up to a closing bracket: `Adv` in `Adv(mean=0.0, std=1.0)`."""


class PrintedCount(NamedTuple):
    """A count of steps of any kind."""

    number: int
    total: int | None


class LineReading(NamedTuple):
    """The content of one line."""

    counts: dict[str, PrintedCount]
    numbers: Fields
    words: int
    """How many words are not part of a name."""
    percents: int
    """How many numbers were percentages. They are converted to shares."""
    is_explicit: bool
    """Whether every number that is not a count follows an equals sign or a colon."""

    @property
    def is_clean(self) -> bool:
        """Whether the line has few words besides names and numbers."""
        return self.words <= 2 + len(self.counts) + len(self.numbers)


@lru_cache(maxsize=4096)
def rank_of(name: str) -> int | None:
    """The unit that a name counts: 0 for steps and iterations, up to `EPOCHS` for epochs; None if it is not a count.

    >>> [rank_of(name) for name in ("global_step", "Iteration", "episode", "", "Epoch", "Micro Step", "loss")]
    [0, 0, 2, 4, 5, None, None]
    """
    if name == UNLABELLED:
        return EPOCHS - 1
    found = _COUNT.fullmatch(name)
    if found is None:
        return None
    what = found["what"]
    return next((rank for rank, words in enumerate(_RANKS) if words.match(what)), EPOCHS)


def is_evaluation_name(name: str) -> bool:
    """Whether a printed name contains a word for held-out data: `valid loss`."""
    return _HELD_OUT.search(name) is not None


def without_prefix(text: str) -> str:
    """A line without the prefixes of loggers and launchers.

    >>> without_prefix("(W pid=7) INFO:root:2025-01-01 12:00:00,123 | train.py:10 - step 5 loss 0.5")
    'step 5 loss 0.5'
    """
    at = 0
    for _ in range(MAX_PREFIXES):
        found = _PREFIX.match(text, at)
        if found is None:
            break
        at = found.end()
    return text[at:].lstrip()


def read_pairs(text: str) -> LineReading | None:
    """The counts and the named numbers in a line; None if it has none.

    >>> read_pairs("Epoch:[1/1](20/4292), loss: 0.66, acc: 43.2%, 1.2k tok/s")[:2]
    ({'Epoch': PrintedCount(number=1, total=1), '': PrintedCount(number=20, total=4292)}, {'loss': 0.66, 'acc': 0.432})
    """
    if len(text) > MAX_LINE or _DIGIT.search(text) is None:
        return None
    line = without_prefix(text)
    prefix = text[: len(text) - len(line)]
    line = _plain(line)
    reader = _Line(line)
    for found in _VALUE.finditer(line):
        reader.take(found)
    if not reader.counts and not reader.numbers:
        return None
    words = reader.words + _words_in(line[reader.end :]) + _words_in(reader.about)
    numbers = reader.numbers
    if reader.begin is not None and _HELD_OUT.search(lead := prefix + line[: reader.begin]):
        numbers = _held_out(numbers, lead)
    return LineReading(reader.counts, numbers, words, reader.percents, reader.is_explicit)


def _plain(line: str) -> str:
    """A line without drawn rules, and with numbers such as `tensor(0.5)` as plain numbers."""
    if "=" in line or "-" in line or "─" in line or "━" in line:
        line = _RULES.sub("  ", line)
    if "第" in line:
        line = _ORDINAL.sub(r"  步 \1  ", line)
    if "tensor(" in line or "float" in line or "array(" in line:
        line = _WRAPPED.sub(r"\1", line)
    return _WINDOW.sub("", line) if " last " in line else line


class _Line:
    """A line's numbers, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.counts: dict[str, PrintedCount] = {}
        self.numbers: Fields = {}
        self.words = self.percents = self.end = 0
        self.is_explicit = True
        self.begin: int | None = None
        """The position of the first number that is not a step count."""
        self.about = ""
        self._group = ""
        self._last = ""

    def take(self, found: re.Match[str]) -> None:
        """Process the next number and the text before it."""
        before = self.text[self.end : found.start()]
        label = _label(before)
        is_first, self.end = self.end == 0, found.end()
        self.words += label.words
        self.about = label.about or self.about
        self._group = label.group or ("" if ")" in before else self._group)
        number = number_in(found["number"].replace(",", ""))
        total = int(found["total"].replace(",", "")) if found["total"] and len(found["total"]) < 16 else None
        unit = (found["unit"] or "").strip()
        name = label.name
        if name == UNLABELLED and total is not None and rank_of(unit) is not None:
            name, unit = unit, ""  # `200/2001 batches`
        if name == UNLABELLED and label.has_mark and self.about:
            name, self.about = self.about, ""
        if number is None or name is None:
            return
        may_count = (is_first or (total is not None and not self.numbers)) if name == UNLABELLED else not unit
        if may_count and isinstance(number, int) and number >= 0 and not found["scale"] and rank_of(name) is not None:
            self.counts.setdefault(name, PrintedCount(number, total))
        elif name != UNLABELLED and self.text[found.start() - 1] != "#":  # `Evaluation #3`: an index
            self.begin = found.start() if self.begin is None else self.begin
            self.is_explicit = self.is_explicit and label.has_mark
            self.percents += unit == "%"
            self.numbers.setdefault(self._whole(name), _scaled(number, found["scale"], unit))

    def _whole(self, name: str) -> str:
        """A name with the prefix of its group."""
        if self._group and not name.startswith(f"{self._group}/"):
            name = f"{self._group}/{name}"
        if name.lower() in _STATISTICS and self._last:
            name = f"{self._last}/{name}"
        whole, _, part = name.rpartition("/")
        self._last = whole if part.lower() in _STATISTICS else name
        return name


def _held_out(numbers: Fields, lead: str) -> Fields:
    """Marks the names of an evaluation's line as held-out, unless only the first name suggested an evaluation."""
    first = next(iter(numbers))
    before = lead.rstrip(_EDGES)
    context = before[: -len(first)] if before.endswith(first) else before
    return {held_out_name(name): number for name, number in numbers.items()} if _HELD_OUT.search(context) else numbers


def _label(text: str) -> NumberLabel:
    """The label in the text before a number."""
    bare = text.rstrip(_EDGES)
    has_mark = any(mark in ":=\uff1a" for mark in text[len(bare) :])
    start = 0
    for found in _SEPARATORS.finditer(bare):
        start = found.end()
    outer = group = ""
    opened = bare.rfind("(", start)
    if opened >= 0 and ")" not in bare[opened:]:
        outer, is_attached = _OUTER.sub("", bare[start:opened]), opened > start and bare[opened - 1].isalnum()
        group = outer if is_attached and " " not in outer else ""
        start = opened + 1
    name = _OUTER.sub("", bare[start:])
    words = name.split()
    while words and words[0].lower() in _FILLERS:
        del words[0]
    rest = _words_in(bare[:start])
    if not words:
        return NumberLabel(None if name else UNLABELLED, rest, has_mark)
    name = " ".join(words)
    if outer and (group or name.lower() in _STATISTICS):
        return NumberLabel(f"{outer}/{name}", 0, has_mark, group=group)
    about = _ABOUT.fullmatch(name) if len(words) > 2 else None
    if about is not None and rank_of(about[2]) is not None and len(words) <= 6:
        return NumberLabel(about[2], rest, has_mark, about=about[1])
    is_name = (name[0].isalpha() or name[0] in "_(") and len(name) <= MAX_NAME
    if not is_name or len(words) > (5 if has_mark else 3) or '"' in name:
        return NumberLabel(None, rest + len(words), has_mark)
    return NumberLabel(name, rest, has_mark)


def _words_in(text: str) -> int:
    return len(_WORD.findall(text)) if text else 0


def _scaled(number: int | float, scale: str | None, unit: str) -> int | float:
    """A number converted from its unit: percentages to shares, durations to seconds."""
    if scale:
        return number * _SCALE[scale.lower()]
    if not unit:
        return number
    if unit == "%":
        return round(number / 100, 12)
    seconds = _SECONDS.get(unit) or _SECONDS.get(
        "min" if unit.startswith("min") else unit[:1] if unit in _HOURS else ""
    )
    return number if seconds is None else number * seconds
