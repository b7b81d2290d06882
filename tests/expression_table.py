"""Cases for both implementations of the filter's expressions. The last list holds (expression, text, is found)."""

from __future__ import annotations

NAMES = [
    "kl",
    "KL/ref",
    "loss",
    "policy_loss",
    "reward_std",
    "reward/mean",
    "eval/pass@8",
    "a(b",
    "x.y",
    "größe",
    "",
    "a\nb",
]
EXPRESSIONS = [
    "", "kl", "^kl$", "^kl", "loss$", "^(kl|reward_s.d)$", "kl|loss", "|", "(kl|)", "re.*d", "re.+d", "s{2}", "s{3}",
    "s{1,}", "s{0,1}$", "(os){1,2}", "lo?s*s+?", "[kr]l", "[^a-z]", "[a-c]", "[A-C]l?", "[]a]", "[a-]", "[.]", "[\\]x]",
    "\\.", "\\(", "\\d", "\\D", "\\w+/\\w+", "\\W", "\\s", "\\S", "\\bref\\b", "\\Bef", "pass@\\d+", "(?:ab|a)\\(b",
    "x\\.y", "()", "(a|b|c)*$", "((k))l", "^$", "ß", "GRÖSSE", "größe", "a.b", "{", "a{", "{2", "}", "]",
    "[\\d@]+", "[\\w.]+$", "^[^/]+$", "(l|lo|los)+s", "\\n", "a\\nb", "(^k|^l)", "(s$|l$)",
]  # fmt: skip
REFUSED = [
    "(", ")", "kl(", "a)", "[", "[a", "*", "+a", "?", "a**", "a*+", "a{2}{3}", "\\", "(?=a)", "(?<!a)b", "(?P<n>a)",
    "(a)\\1",
    "[z-a]", "a{3,2}", "\\q", "(?i)a", "a{999}", "(" * 60 + ")" * 60, "(a{30}){30}", "|*",
]  # fmt: skip
ENDLESS = [
    ("^(a+)+$", "a" * 34 + "!", False), ("(a*)*b", "a" * 900, False), ("^(a|a)*$", "a" * 500 + "!", False),
    ("(a|aa)+$", "a" * 500 + "!", False), ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 500 + "1", False),
    ("(.*)*(.*)*(.*)*x", "y" * 900, False), ("a*a*a*a*a*a*a*b", "a" * 900, False), ("(a?){100}a{100}", "a" * 100, True),
    ("(x+x+)+y", "x" * 900, False), ("(.*.*.*)*$", "z" * 900 + "\n", True),
]  # fmt: skip
"""Expressions that take practically forever with backtracking."""
