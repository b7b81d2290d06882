"""Scanners for texts of any kind: empty format, a missing number, repetition, another language, refusals, missing
reasoning, copies of the reference, parts of the prompt, and groups of identical texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from rlvitals.compute.repetition import compression_ratio, ngram_repetition
from rlvitals.scan.reading import TEXT, Reading, Span, TextPart, lower_words


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FEWEST_WORDS = 40
"""Minimum number of words of a text whose repetition is measured."""
REPEATED_SHARE = 0.6
"""Share of four-word sequences that occurred earlier in the text. Tables and code stay below this share."""
LOOPED_CHARACTERS, LOOPED_TIMES = 100, 4
"""Minimum length of a tail that repeats one short piece, and the minimum number of repetitions."""
LONGEST_PERIOD = 100
DENSE_LENGTHS, DENSE_RATIO = (100, 400), 3.5
"""Lengths of texts that are tested, and the compression ratio from which they count as repetitive. Prose of this length
compresses by a factor below 2.
"""
BABBLED_WORDS, BABBLED_KINDS = 16, 5
"""Number of words at the end of a text, and the maximum number of different words among them."""

OTHER_SCRIPT_LETTERS, OTHER_SCRIPT_SHARE = 8, 0.05
STOP_WORDS, STOP_WORD_SHARE = 8, 0.12
"""Minimum count and share of a language's stop words for a text to count as this language."""

COPIED_WORDS, COPIED_SHARE, SHINGLE = 25, 0.9, 6
"""Minimum words of a reference, the share of its word sequences that makes an answer a copy, and the words per
sequence.
"""

LEAKED_WORDS, LEAKED_SHARE = 40, 0.6

GROUP_ROLLOUTS, GROUP_WORDS, GROUP_LIKENESS = 4, 30, 0.9
"""Minimum rollouts of a group, words of each, and similarity (shared words over all words) to count as nearly
identical.
"""

_THOUGHT = re.compile(r"<(think|thinking|thought|reasoning|scratchpad)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
FEWEST_THOUGHTS = 3
"""Minimum number of words for a reasoning block to count as reasoning."""

_TAG = re.compile(r"</?[A-Za-z][\w-]{0,30}>|\\boxed\s*\{\s*\}|\*\*|```\w*|^#+\s.*$|[{}\[\]()<>:.…_*#=|-]", re.MULTILINE)
_FORMAT = re.compile(r"</?[A-Za-z][\w-]{0,30}>|\\boxed|```|####|final answer|the answer is|answer:", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"""(?:
      \\boxed\{\s*(?:\.\.\.|…|answer|your[ _]answer(?:[ _]here)?|x|\?|final[ _]answer)?\s*\}
    | <(answer|final|final_answer|solution|response)>\s*(?:\.\.\.|…|\[?(?:your|the|final
      |insert)?[ _]?(?:final )?(?:answer|solution|code)(?:[ _]here)?\]?|\?+)?\s*</\1>
    | \b(?:your|insert)[ _](?:answer|reasoning|code|solution|response)[ _]here\b
    | \b(?:reasoning|brief\ reasoning|step-by-step\ reasoning)\ here\.{0,3}
    | \#\ (?:your|insert)\ (?:solution\ )?code\ here
    | \[(?:answer|final\ answer|reasoning|explanation|solution)\]
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_STOCK = _words(
    "the final answer is here my so therefore thus reasoning think thinking step by solution response result follows "
    "in as below and to a of this format requested required output first second then"
)
FEWEST_CONTENT = 1

_ASKS_FOR_NUMBER = re.compile(
    r"\bhow (?:much|many)\b|\bgive the number\b|\b(?:calculate|compute|evaluate)\b"
    r"|\bwhat (?:is|are|does)\b[^?\n]{0,40}\d\s*[-+*/x\u00d7\u00f7^]\s*\d"
    r"|\b(?:add|subtract|multiply|divide)\b[^.\n]{0,20}\d",
)
_ASKS_FOR_MORE = re.compile(
    r"\b(?:function|program|code|python|script|implement|sql|query|json|list|essay|story|poem|explain|describe|prove"
    r"|in terms of|expression|formula)\b|(?<![\w'\u2019])[b-hj-z](?![\w'\u2019])"
)
"""Prompts whose answer may contain no number: they ask for texts or programs, or use letters for unknowns."""
FEWEST_NUMBERS, LONGEST_QUESTION = 2, 2_000
"""Minimum numbers in a prompt that asks for a number, and its maximum length. Longer prompts ask for several things."""
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion dozen "
    "half third quarter once twice thrice double triple none nothing nobody never no infinite infinitely undefined"
)
_NUMBER = re.compile(
    rf"[\d\u00bc-\u00be\u2150-\u215e\u221e\u221a\u03c0\u3007\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341\u767e\u5343\u4e07\u4e24\\]"
    rf"|\b(?:{'|'.join(_NUMBER_WORDS.split())})\b",
    re.IGNORECASE,
)
_ANSWER = re.compile(
    r"<(answer|final|final_answer|solution|response)>(?P<inside>.*?)</\1>|\\boxed\s*\{(?P<boxed>[^{}]*)\}",
    re.DOTALL | re.IGNORECASE,
)

_REFUSAL = re.compile(
    r"""\b(?:
      i(?:['\u2019]m|\ am)\ (?:sorry|afraid),?\ (?:but\ )?(?:i\ )?(?:can(?:['\u2019]t|not|\ not)
        |am\ (?:not\ able|unable)|won['\u2019]t|do\ not|don['\u2019]t\ feel)
    | i\ (?:can(?:['\u2019]t|not|\ not)|won['\u2019]t|will\ not|am\ (?:not\ able|unable)\ to|must\ decline\ to
      |have\ to\ decline\ to)\ (?:help|assist|provide|comply|fulfil+|answer|do\ that|solve|complete|continue
      |engage|write|generate|create|support)
    | as\ an?\ (?:ai|artificial\ intelligence)(?:\ language)?(?:\ model|\ assistant)?,?\ i\ (?:can(?:['\u2019]t
      |not|\ not)|am|do\ not|don['\u2019]t)
    | i\ (?:must|have\ to)\ (?:respectfully\ )?(?:decline|refuse)
    | (?:cannot|can['\u2019]t|unable\ to)\ (?:help|assist)\ (?:you\ )?with\ (?:that|this)
    )""",
    re.VERBOSE | re.IGNORECASE,
)
REFUSAL_REACH = 400
"""Characters at the beginning and at the end of the last message that are searched for a refusal."""

_TEMPLATE = re.compile(
    r"<\|(?:im_start|im_end|user|assistant|system|eot_id|start_header_id|end_header_id|endoftext|begin_of_text)\|>"
    r"|\[/?INST\]|<</?SYS>>|<start_of_turn>|<end_of_turn>|^### (?:Instruction|Response|Human|Assistant)\b"
    r"|^(?:Human|User|Assistant|System)\s*:\s",
    re.MULTILINE,
)

_SCRIPTS = {
    "Chinese or Japanese": re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"),
    "Korean": re.compile(r"[\uac00-\ud7af\u1100-\u11ff]+"),
    "Cyrillic": re.compile(r"[\u0400-\u04ff]+"),
    "Arabic": re.compile(r"[\u0600-\u06ff\u0750-\u077f]+"),
    "Hebrew": re.compile(r"[\u0590-\u05ff]+"),
    "Devanagari": re.compile(r"[\u0900-\u097f]+"),
    "Thai": re.compile(r"[\u0e00-\u0e7f]+"),
    "Greek": re.compile(r"[\u0370-\u03ff]{3,}"),
}
_BEYOND_LATIN = re.compile(r"[\u0370-\u1fff\u2c00-\ud7ff\uf900-\ufaff]")
_LATIN_WORD = re.compile(r"[^\W\d_]+")
_SMALL_WORDS = {
    "English": _words("the of and to is that it for was with are this which have not be by from we so then"),
    "German": _words("der die das und ist nicht mit ein eine wir dass auf für von den dem auch sich also sind"),
    "French": _words("le les des et est une dans que qui pour nous pas sur avec donc sont du ce cette aux"),
    "Spanish": _words("el los las es una que para por con del como se entonces son esta este pero más"),
    "Portuguese": _words("os as uma que para com não do da dos em então são isso mas pelo pela ao como"),
    "Italian": _words("il gli di che è una per con non del della sono quindi anche nel questo questa dei"),
}


def only_the_format(reading: Reading) -> Iterator[Span]:
    """Find answers that have the requested format but no content, or a placeholder from the instruction as content."""
    last = reading.last
    if last is None or any(turn.calls for turn in reading.rollout.turns[-1:]):
        return
    text = last.text
    answer = _THOUGHT.sub(" ", text)
    placeholder = _PLACEHOLDER.search(answer)
    if placeholder and len(lower_words(_PLACEHOLDER.sub(" ", answer))) <= FEWEST_WORDS // 2:
        found = next((each for each in _PLACEHOLDER.finditer(text) if not _is_in_thought(text, each.start())), None)
        if found is not None:
            yield Span(last.turn, TEXT, *found.span())
            return
    if not _FORMAT.search(text):
        return
    content = [word for word in lower_words(_TAG.sub(" ", text)) if word not in _STOCK]
    if len(content) < FEWEST_CONTENT:
        yield Span(last.turn, TEXT, 0, len(text))


def gives_no_number(reading: Reading) -> Iterator[Span]:
    """Find answers without a number to prompts that ask for one."""
    last = reading.last
    if (
        last is None
        or not asks_for_number(reading.page.prompt)
        or any(turn.calls for turn in reading.rollout.turns[-1:])
    ):
        return
    thoughts = [match.span() for match in _THOUGHT.finditer(last.text)]
    answers = [match for match in _ANSWER.finditer(last.text) if not any(a <= match.start() < b for a, b in thoughts)]
    if answers:
        group = "inside" if answers[-1]["inside"] is not None else "boxed"
        start, end = answers[-1].span(group)
    else:
        start, end = max((b for _, b in thoughts), default=0), len(last.text)
    if last.text[start:end].strip() and not _NUMBER.search(last.text, start, end):
        yield Span(last.turn, TEXT, start, end)


@lru_cache(maxsize=256)
def asks_for_number(prompt: str) -> bool:
    """Whether a prompt (in lower case) asks for one number and gives others to compute it from."""
    if len(prompt) > LONGEST_QUESTION or not _ASKS_FOR_NUMBER.search(prompt) or _ASKS_FOR_MORE.search(prompt):
        return False
    return sum(1 for _ in _NUMBER.finditer(prompt)) >= FEWEST_NUMBERS


def _is_in_thought(text: str, place: int) -> bool:
    return any(match.start(2) <= place < match.end(2) for match in _THOUGHT.finditer(text))


def repeats_itself(reading: Reading) -> Iterator[Span]:
    """Find messages that repeat most of their word sequences or end in a loop, and turns that are repeated whole."""
    for part in reading.parts:
        if (start := _loop(part.text)) is not None:
            yield Span(part.turn, part.name, start, len(part.text))
            continue
        if part.name != TEXT:
            continue
        words = lower_words(part.text)
        if (
            _babbles(words)
            or _is_dense(part.text)
            or (len(words) >= FEWEST_WORDS and (ngram_repetition(words) or 0.0) >= REPEATED_SHARE)
        ):
            yield Span(part.turn, TEXT, _second_time(part.text), len(part.text))
    counts = Counter((part.name, part.text) for part in reading.parts if len(part.text) >= FEWEST_WORDS)
    for (name, text), times in counts.items():
        if times > 2:
            last = [part for part in reading.parts if (part.name, part.text) == (name, text)][-1]
            yield Span(last.turn, name, 0, len(text))


def _babbles(words: list[str]) -> bool:
    """Whether the last words are the same few in any order. Numbers are ignored."""
    last = [word for word in words[-2 * BABBLED_WORDS :] if word.isalpha()][-BABBLED_WORDS:]
    return len(last) == BABBLED_WORDS and len(set(last)) <= BABBLED_KINDS


def _is_dense(text: str) -> bool:
    """Whether a short text of letters compresses better than prose does, for example repeated pieces without spaces."""
    if not DENSE_LENGTHS[0] <= len(text) <= DENSE_LENGTHS[1] or sum(map(str.isalpha, text)) < len(text) / 2:
        return False
    return (compression_ratio(text) or 0.0) >= DENSE_RATIO


def _loop(text: str) -> int | None:
    """The position where the loop at the end of a text begins; None if the text does not end in a loop."""
    end = len(text.rstrip())
    for period in range(1, LONGEST_PERIOD + 1):
        start = end - max(LOOPED_CHARACTERS, LOOPED_TIMES * period)
        if start < 0:
            return None
        if text[end - 1] != text[end - 1 - period] or text[start + period : end] != text[start : end - period]:
            continue
        if not text[start : start + period].strip(" \n-=_.*|~+#"):  # horizontal rules and dotted lines
            return None
        while start > 0 and text[start - 1] == text[start - 1 + period]:
            start -= 1
        return start
    return None


def _second_time(text: str) -> int:
    """The position of the first line or sentence that occurred before."""
    seen: dict[str, int] = {}
    for match in re.finditer(r"[^\n.!?]{8,}", text):
        sentence = match[0].strip().lower()
        if sentence in seen:
            return match.start()
        seen[sentence] = match.start()
    return 0


def switches_language(reading: Reading) -> Iterator[Span]:
    """Find parts of a text in a script or language that the prompt does not use."""
    prompt = reading.group.prompt
    for part in reading.parts:
        if part.name != TEXT:
            continue
        if _BEYOND_LATIN.search(part.text):
            for name, script in _SCRIPTS.items():
                found = list(script.finditer(part.text))
                letters = sum(len(match[0]) for match in found)
                if letters < OTHER_SCRIPT_LETTERS or letters < OTHER_SCRIPT_SHARE * len(part.text):
                    continue
                if not script.search(prompt) and not _asks_for(name, prompt):
                    yield Span(part.turn, TEXT, found[0].start(), found[-1].end())
        yield from _other_latin(part, reading)


def _asks_for(script: str, prompt: str) -> bool:
    return bool(re.search("|".join(script.split(" or ")) + "|Russian|translat|Hindi", prompt, re.IGNORECASE))


def _other_latin(part: TextPart, reading: Reading) -> Iterator[Span]:
    """Long passages in Latin letters whose language differs from the prompt's."""
    home = _language(reading.page.prompt_words)
    if home is None:
        return
    for paragraph in re.finditer(r"[^\n]{80,}", part.text):
        found = _language(_LATIN_WORD.findall(paragraph[0].lower()))
        if found is not None and found != home and found.lower() not in reading.page.prompt:
            yield Span(part.turn, TEXT, *paragraph.span())


def _language(words: list[str]) -> str | None:
    """The language whose stop words are far more frequent than those of any other; None without one."""
    counts = Counter({name: sum(word in small for word in words) for name, small in _SMALL_WORDS.items()})
    (first, most), (_, second) = counts.most_common(2)
    if most < STOP_WORDS or most < STOP_WORD_SHARE * len(words) or most < 2 * second:
        return None
    return first


def refuses(reading: Reading) -> Iterator[Span]:
    """Find refusals: the model writes that it cannot or will not help."""
    last = reading.last
    if last is None:
        return
    text = last.text
    thoughts = [match.span() for match in _THOUGHT.finditer(text)]
    begin = max((end for start, end in thoughts if start < REFUSAL_REACH), default=0)
    for match in _REFUSAL.finditer(text, begin):
        near = match.start() - begin < REFUSAL_REACH or len(text) - match.end() < REFUSAL_REACH
        if near and not any(a <= match.start() < b for a, b in thoughts):
            yield Span(last.turn, TEXT, *match.span())
            return


def does_not_reason(reading: Reading) -> Iterator[Span]:
    """Find reasoning blocks that are empty or contain only a placeholder from the instruction."""
    for part in reading.parts:
        if part.name != TEXT or "<" not in part.text:
            continue
        for match in _THOUGHT.finditer(part.text):
            inside = match[2]
            if len(lower_words(inside)) < FEWEST_THOUGHTS or (
                _PLACEHOLDER.search(inside) and len(lower_words(inside)) < 2 * FEWEST_THOUGHTS
            ):
                yield Span(part.turn, TEXT, *match.span())


def copies_the_reference(reading: Reading) -> Iterator[Span]:
    """Find answers that contain the reference answer word for word although the prompt does not show it."""
    reference = lower_words(reading.group.answer)
    if len(reference) < COPIED_WORDS:
        return
    shingles = {tuple(reference[place : place + SHINGLE]) for place in range(len(reference) - SHINGLE + 1)}
    shown = reading.page.prompt_words
    known = {tuple(shown[place : place + SHINGLE]) for place in range(len(shown) - SHINGLE + 1)}
    shingles -= known
    if len(shingles) < COPIED_WORDS - SHINGLE:
        return
    for part in reading.parts:
        words = lower_words(part.text)
        part_shingles = {tuple(words[place : place + SHINGLE]) for place in range(len(words) - SHINGLE + 1)}
        if len(shingles & part_shingles) >= COPIED_SHARE * len(shingles):
            yield Span(part.turn, part.name, *_stretch(part.text, reference))


def _stretch(text: str, words: list[str]) -> tuple[int, int]:
    """The span from the first words of a copied text to its last words."""
    head = re.search(r"\W+".join(map(re.escape, words[:SHINGLE])), text, re.IGNORECASE)
    tail = re.search(r"\W+".join(map(re.escape, words[-SHINGLE:])), text, re.IGNORECASE)
    start = head.start() if head else 0
    return start, tail.end() if tail and tail.end() > start else len(text)


def leaks_the_prompt(reading: Reading) -> Iterator[Span]:
    """Find texts that continue with the chat template, or that repeat most of a long prompt."""
    for part in reading.parts:
        if part.name != TEXT:
            continue
        for match in _TEMPLATE.finditer(part.text):
            if match[0].strip() not in reading.group.prompt or match.start() > 0:
                yield Span(part.turn, TEXT, *match.span())
    shown = reading.page.prompt_words
    if len(shown) < LEAKED_WORDS or len(reading.words) < LEAKED_WORDS * LEAKED_SHARE:
        return
    shingles = {tuple(shown[place : place + SHINGLE]) for place in range(len(shown) - SHINGLE + 1)}
    for part in reading.parts:
        # Requested code often begins with code from the prompt.
        words = lower_words(_FENCE.sub(" ", part.text)) if part.name == TEXT else []
        part_shingles = {tuple(words[place : place + SHINGLE]) for place in range(len(words) - SHINGLE + 1)}
        if len(shingles & part_shingles) >= LEAKED_SHARE * len(shingles):
            yield Span(part.turn, TEXT, *_stretch(part.text, shown))


def says_the_same(reading: Reading) -> Iterator[Span]:
    """Find groups in which all rollouts are nearly the same text."""
    if _is_uniform(reading) and (last := reading.last) is not None:
        yield Span(last.turn, TEXT, 0, len(last.text))


def _is_uniform(reading: Reading) -> bool:
    page = reading.page
    if "is_uniform" not in page.__dict__:
        texts = [each.words for each in page.readings]
        page.__dict__["is_uniform"] = (
            len(texts) >= GROUP_ROLLOUTS
            and min(map(len, texts)) >= GROUP_WORDS
            and all(_likeness(texts[0], other) >= GROUP_LIKENESS for other in texts[1:])
        )
    return bool(page.__dict__["is_uniform"])


def _likeness(one: list[str], other: list[str]) -> float:
    """Shared words over all words, counted with their repetitions."""
    a, b = Counter(one), Counter(other)
    return (a & b).total() / max((a | b).total(), 1)
