"""Finds secrets in settings, command lines and messages, and replaces them with a mask.

A secret is recognised by the name of its setting (`openai_key`, `db_password`), by its form (a JSON web token, a cloud
key, a signed URL, the login in a URL), or by the settings `mask` and `unmask`, which are patterns of names. Column
names, a model's special tokens and measures (`prompt_key`, `eos_token`, `max_tokens`) are not secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import Any

MASK = "***"

SHORTEST_REPEATED = 6
"""The fewest characters of a secret that is searched for in other texts. A shorter one may be part of any word."""
SHORTEST_VARIABLE = 12
"""The same for the values of environment variables, which were not passed to rlvitals."""

# By name


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ALWAYS = re.compile(r"secret(?!ar)|passw|passphrase|passwd|credential|apikey|privatekey|connectionstring|seedphrase")
"""Matches anywhere in a name without its separators."""
_LAST_WORDS = _set("pwd creds authorization jwt bearer cookie cookies webhook mnemonic passcode")
_LOGINS = _set("db database smtp imap email mail ftp sftp user http proxy ldap admin root")
"""Words before `pass` that make it a password: `smtp_pass`, but not `forward_pass`."""
_PLACES = _set(
    """file files path paths dir folder env var variable name names length len size count num type format index
    policy manager provider required enabled style prefix dim dims ttl expiry expires field fields column version
    hash rate strength min max timeout attempts bonus penalty weight reward score mode"""
)
"""Last words of names that give a secret's location or a property, not its value: `password_file`, `secret_name`."""
_HARMLESS_KEYS = _set(
    """primary foreign sort cache partition shard group join dict index input output label labels prompt prompts
    response answer answers image images video videos audio chosen rejected text texts message messages tool tools
    reward fn feature features target targets column data dataset source question query context reference solution
    score metric metrics user assistant system role content turn turns conversation conversations name id image
    column state step dedup hash lookup registry routing object row idempotency map json yaml extra info monitor
    ground truth num key enable thinking tokenizer config model value values sample task domain category attention
    head padding eval"""
)
"""Words before `key` that make it the name of a column or an entry: `prompt_key`, `reward_fn_key`."""
_HARMLESS_TOKENS = _set(
    """pad padding eos bos unk sep cls mask image video audio think thinking stop start end special begin prefix
    suffix call per first last next previous delimiter separator newline placeholder fim middle response answer
    prompt instruction assistant user system im turn eot eom eod bot eoh boi eoi tool num max min new extra
    additional modality observation action vision object ref box quad empty dummy control logit target label blank
    speech"""
)
"""Words before `token` that make it a token of a model: `eos_token`, `tool_call_token`."""
_SECRET_KINDS = _set(
    """api access private auth account service master encryption encrypt signing sign license licence ssh deploy app
    bot client server admin root storage hub refresh bearer session csrf security personal shared write read login
    ingest oauth webhook subscription project org team machine publish upload openai anthropic claude hf
    huggingface wandb swanlab trackio mlflow comet neptune clearml aim aws s3 gcp gcs google gemini vertex azure
    oci ibm aliyun alibaba oss tencent volc volcengine dashscope qwen deepseek moonshot kimi zhipu mistral cohere
    groq together replicate fireworks perplexity xai openrouter nvidia ngc databricks snowflake slack telegram tg
    discord teams github gh gitlab bitbucket jira atlassian notion linear sentry datadog dd grafana newrelic
    pagerduty twilio sendgrid mailgun stripe paypal shopify npm pypi docker dockerhub kaggle modal runpod vast
    lambda digitalocean heroku vercel netlify cloudflare linode hetzner pinecone weaviate qdrant serpapi serper
    tavily bing brave exa firecrawl e2b langsmith langchain langfuse helicone portkey elevenlabs assemblyai
    deepgram redis mongo mongodb postgres mysql rabbitmq kafka supabase firebase vault consul ray k8s kubernetes
    jupyter"""
)
"""Words before `key`, `token` or `pat` that make it a secret, whatever its value looks like."""
_JOINED = re.compile(rf"({'|'.join(sorted(_SECRET_KINDS, key=len, reverse=True))})(keys?|tokens?|pat)\d*")
"""The same without separators: `hftoken`, `wandbkey`."""
_MODEL_WORD = re.compile(r"<[^<>\s]{0,60}>|\[[A-Z0-9_ ]{1,20}\]|\W{0,4}")
"""A special token of a model: `<pad>`, `<|im_end|>`, `[CLS]`."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    """A name's words without numbers.

    >>> _words("OPENAI_API-Key2"), _words("hubToken")
    (('openai', 'api', 'key'), ('hub', 'token'))
    """
    return tuple(word.lower() for word in _WORDS.findall(name[-200:]) if not word.isdigit())


@lru_cache(maxsize=4096)
def _strength(name: str) -> str:
    """How strongly a name indicates a secret. "sure": it is one. "likely": it is one unless the value looks harmless.
    "login", "random": it is one if the value looks like a login or a random text. Empty: it is none.
    """
    words = _words(name)
    if not words:
        return ""
    joined, last, before = "".join(words), words[-1], words[:-1]
    kind = before[-1] if before else ""
    if last in _PLACES or last == "id":
        return "sure" if joined.endswith("accesskeyid") else ""
    if _ALWAYS.search(joined) or last in _LAST_WORDS or words[-2:] in (("webhook", "url"), ("webhook", "uri")):
        return "sure"
    if last == "pass":
        return "sure" if not before or kind in _LOGINS | _SECRET_KINDS else ""
    if _JOINED.fullmatch(last) or (last in ("keys", "tokens", "pat") and kind in _SECRET_KINDS):
        return "" if kind in _HARMLESS_KEYS | _HARMLESS_TOKENS else "sure"
    if last in ("key", "token"):
        if not before:
            return "sure" if last == "token" else "random"
        if kind in (_HARMLESS_KEYS if last == "key" else _HARMLESS_TOKENS):
            return "likely" if kind in _SECRET_KINDS else "random"
        return "sure" if _SECRET_KINDS & set(before[-2:]) else "likely"
    if last in ("auth", "login", "dsn"):
        return "login"
    return "random" if last in ("sas", "signature", "sig") else ""


def _is_secret(name: str, value: Any) -> bool:
    """Whether a setting is a secret, judged by its name and value. Switches and measures are not."""
    strength = _strength(name)
    if not strength or value is None or isinstance(value, bool | float) or _is_nothing(value):
        return False
    if isinstance(value, int):
        return strength == "sure" and abs(value) >= 1000
    text = str(value)
    if strength in ("random", "login"):
        return _looks_random(text) or (strength == "login" and bool(_LOGIN.fullmatch(text)))
    if _MODEL_WORD.fullmatch(text) or _REFERENCE.fullmatch(text):
        return False
    if strength == "likely":
        return text.lower() not in ("true", "false", "none", "null", "auto", "default")
    return not (name.lower().endswith("pwd") and re.match(r"/\w|~|[A-Za-z]:\\", text))  # the working directory


def _is_nothing(value: Any) -> bool:
    return isinstance(value, str) and value in ("", MASK)


_LOGIN = re.compile(r"[^\s:/]+:[^\s/]+")
_REFERENCE = re.compile(r"\$\{[^{}]+\}|\$[A-Z_]+")
"""A reference to a secret is not a secret: `${oc.env:HF_TOKEN}`."""


def _looks_random(text: str) -> bool:
    """Whether a text was probably generated: long, with letters and digits mixed.

    >>> _looks_random("9f8a7b6c5d4e3f2a1b0c"), _looks_random("extra_info.problem"), _looks_random("checkpoint-000100")
    (True, False, False)
    """
    if not re.fullmatch(r"[\w+/=.~-]{16,}", text) or not re.search(r"[A-Za-z]", text):
        return False
    return sum(one.isdigit() != two.isdigit() for one, two in pairwise(text)) >= 4


# By form

_FORMS = re.compile(
    r"\b(?:hf_|api_org_)[A-Za-z0-9]{20,}"
    r"|\b(?:sk|rk|pk)[-_](?=[A-Za-z0-9_-]{0,60}\d)[A-Za-z0-9_-]{16,}"
    r"|\b(?:sk|rk|pk)[-_](?:[a-z0-9]{2,12}-){0,2}[A-Za-z0-9_]{32,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bgl(?:pat|rt|dt|ptt|cbt)-[\w-]{16,}"
    r"|\bxox[a-z]-[\w-]{10,}|\bxapp-[\w-]{10,}"
    r"|\b(?:AKIA|ASIA|ABIA|ACCA|AIDA|AROA)[0-9A-Z]{16}\b"
    r"|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}|\bGOCSPX-[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*"
    r"|\b\d{8,12}:[A-Za-z0-9_-]{30,}"
    r"|\b(?:npm|dop_v1|doo_v1|shpat|shpss|lin_api|rpa|r8|gsk|tgp_v1|fw|secret|ntn|pat|wandb_v1|lsv2_pt|lsv2_sk|phc|phx"
    r"|glsa|glc|dckr_pat|ddp|pul|sbp|csk|key|hfj|nvapi|xai|pplx|pypi|tvly|exa|e2b|jina|voyage|pa|esecret|ops)"
    r"[-_][A-Za-z0-9_-]{28,}"
    r"|\bdapi[0-9a-f]{32}|\bSG\.[\w-]{16,}\.[\w-]{16,}|\bhv[sbr]\.[\w-]{20,}|\bATATT3[\w=-]{20,}"
    r"|\bAGE-SECRET-KEY-1[0-9A-Z]{20,}|\blocal-[0-9a-f]{40}\b"
)
"""Each form is within one match of _RUN, and at least as long as the shortest match."""
_RUN = re.compile(r"[\w.:=-]{15,}")
"""The places where such a form can be. Most of a long text has none, and trying every position of 10 MB takes
seconds.
"""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----(?:.*?-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|.*)", re.DOTALL
)
_WEBHOOK = re.compile(
    r"https://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks|[\w.-]*\.webhook\.office\.com)/[^\s\"']+"
)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@?#\"']+@")
_PARAMETER = re.compile(r"(?<=[?&;#])([\w.%-]{1,80})=([^&;\s\"'<>#]+)")
_SIGNATURES = re.compile(
    r"(?i)(x-(amz|goog|oss|cos|obs)-)?(signature|credential|security-token)|sig|awsaccesskeyid|googleaccessid|sas"
    r"|ossaccesskeyid|.*_sig"
)
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-[\w-]{0,40}?(?:key|token|auth|secret)[\w-]{0,40}|set-cookie|cookie)(\s*[:=]\s*)[^\"'\n\r]+"
)
_BEARER = re.compile(r"\b([Bb]earer|[Bb]asic|[Tt]oken)\s+(?=[\w.~+/=-]{0,60}\d)[\w.~+/-]{8,}=*")
_ASSIGNED = re.compile(
    r"""(?<![\w.])(["']?)([A-Za-z_][\w.-]{0,80})\1(\s?=\s?|\s?:\s|:(?=["']))("[^"\n]*"|'[^'\n]*'|[^\s,;&"'(){}\[\]]+)"""
)
_IN_PAIRS = re.compile(r"(?i)\b(AccountKey|SharedAccessKey|SharedAccessSignature|Password|Pwd)=([^;\s\"']+)")


def mask_text(text: str, settings: Mapping[str, Any] | None = None) -> str:
    """Mask the parts of a text that look like secrets, and every secret in the settings or the environment.

    >>> mask_text("401 for key abc123 at https://me:pw@host", {"login": {"api_key": "abc123"}})
    '401 for key *** at https://***@host'
    """
    return Masking.of(settings or {}).text(text)


def masked(value: Any) -> Any:
    """The same tree with its secrets replaced. `mask` and `unmask` in its `rlvitals` section are applied.

    >>> masked({"wandb": {"api_key": "0123456789abcdef", "project": "kto"}, "max_tokens": 512, "repo": "https://me:pw@host/x"})
    {'wandb': {'api_key': '***', 'project': 'kto'}, 'max_tokens': 512, 'repo': 'https://***@host/x'}
    """
    return Masking.of(value if isinstance(value, Mapping) else {}).tree(value, ())


@dataclass(frozen=True, slots=True)
class Masking:
    """What to mask: patterns of names in addition to the known ones, and values that are masked everywhere."""

    mask: tuple[str, ...] = ()
    """Patterns of additional secret names: `license_code`, `internal.*`."""
    unmask: tuple[str, ...] = ()
    """Patterns of names that are not secret, even if they look like it."""
    values: tuple[str, ...] = ()
    """Secret values, longest first."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Masking:
        """The masking for these settings: the patterns in their `rlvitals` section, and the secrets that the settings
        and the environment hold.
        """
        own = settings.get("rlvitals")
        own = own if isinstance(own, Mapping) else {}
        by_name = cls(_patterns(own.get("mask")), _patterns(own.get("unmask")))
        values = {value for value in by_name._found(settings, ()) if len(value) >= SHORTEST_REPEATED}
        values |= by_name._from_environment()
        return cls(by_name.mask, by_name.unmask, tuple(sorted(values, key=lambda value: (-len(value), value))))

    def tree(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Nested settings with every secret replaced. Every value below a secret name is a secret."""
        if isinstance(value, Mapping):
            named = _named_value(value)
            return {
                self._key(name): self.tree(item, (*path, named if named and name in _VALUE_FIELDS else str(name)))
                for name, item in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self.tree(item, path) for item in value]
        if self.hides(path, value):
            return MASK
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        stored = str(value)  # its text when it is stored
        return value if self.text(stored) == stored else self.text(stored)

    def hides(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether a value is a secret, judged by its path of names."""
        if value is None or isinstance(value, bool) or _is_nothing(value):
            return False
        if not path or path[:2] in (("rlvitals", "mask"), ("rlvitals", "unmask")) or matches(self.unmask, path):
            return False
        if matches(self.mask, path):
            return True
        if any(_strength(name) == "sure" for name in path[:-1]):  # every value below a secret name is a secret
            return not isinstance(value, float)
        whole = "_".join(path[-2:])
        return _is_secret(path[-1], value) or (_strength(whole) == "sure" and _is_secret(whole, value))

    def _may_hide(self, path: tuple[str, ...]) -> bool:
        """Whether `hides` may return True for a value under these names."""
        names = (*path, "_".join(path[-2:]))
        return matches(self.mask, path) or any(_strength(name) for name in names)

    def text(self, text: str) -> str:
        """A text in which known secrets, and parts that look like secrets, are masked."""
        for value in self.values:
            if value in text:
                text = text.replace(value, MASK)
        text = _PRIVATE_KEY.sub(MASK, text)
        text = _WEBHOOK.sub(MASK, text)
        text = _RUN.sub(lambda found: _FORMS.sub(MASK, found[0]), text)
        if "://" in text:
            text = _URL_LOGIN.sub(f"{MASK}@", text)
        if "=" in text or ":" in text:
            text = _PARAMETER.sub(self._parameter, text)
            text = _HEADER.sub(rf"\1\2{MASK}", text)
            text = _IN_PAIRS.sub(rf"\1={MASK}", text)
            text = self._without_assigned(text)
        return _BEARER.sub(rf"\1 {MASK}", text)

    def command(self, words: Iterable[str]) -> str:
        """A masked command line. Handles `--api-key KEY`, `--api-key=KEY`, Hydra's `api_key=KEY`, `-u me:KEY`."""
        parts: list[str] = []
        flag = ""
        for word in words:
            name, equals, value = word.partition("=")
            key = name.lstrip("-+~")
            if flag and not word.startswith("--") and self._hides_argument(flag, word):
                parts.append(MASK)
                flag = ""
            elif equals and self.hides(_dotted(key), value):
                parts.append(f"{name}={MASK}")
                flag = ""
            else:
                parts.append(self.text(word))
                flag = key if word.startswith("-") and not equals else ""
        return _BEARER.sub(rf"\1 {MASK}", " ".join(parts))

    def _hides_argument(self, flag: str, word: str) -> bool:
        if flag in ("u", "user"):
            return bool(_LOGIN.fullmatch(word))
        return self.hides(_dotted(flag), word) or (len(flag) == 1 and _looks_random(word))

    def _from_environment(self) -> frozenset[str]:
        """The values of environment variables with secret names."""
        return _in_environment(self, tuple(os.environ.items()))

    def _key(self, name: Any) -> Any:
        return self.text(name) if isinstance(name, str) and len(name) >= 16 else name

    def _parameter(self, found: re.Match[str]) -> str:
        name = found[1]
        hidden = _SIGNATURES.fullmatch(name) or name.lower() == "key" or self.hides(_dotted(name), found[2])
        return f"{name}={MASK}" if hidden else found[0]

    def _without_assigned(self, text: str) -> str:
        """Mask the values of secret names. A value may be an assignment itself: `ValueError: password=hunter2`."""
        kept, at = [], 0
        telling: dict[str, bool] = {}  # program code assigns to the same few names repeatedly
        while found := _ASSIGNED.search(text, at):
            quote, name, between, value = found.groups()
            kept.append(text[at : found.start()])
            if name not in telling:
                telling[name] = self._may_hide(_dotted(name))
            if telling[name] and self.hides(_dotted(name), _typed(value.strip("\"'"))):
                edge = value[0] if value[0] in "\"'" else ""
                kept.append(f"{quote}{name}{quote}{between}{edge}{MASK}{edge}")
                at = found.end()
            else:
                kept.append(text[found.start() : found.start(4)])
                at = found.start(4)
        return "".join([*kept, text[at:]])

    def _found(self, value: Any, path: tuple[str, ...]) -> Iterable[str]:
        """The secrets of a tree that are recognised by name."""
        if isinstance(value, Mapping):
            named = _named_value(value)
            for name, item in value.items():
                yield from self._found(item, (*path, named if named and name in _VALUE_FIELDS else str(name)))
        elif isinstance(value, list | tuple | set | frozenset):
            for item in value:
                yield from self._found(item, path)
        elif isinstance(value, str) and value != MASK and self.hides(path, value):
            yield value


_VALUE_FIELDS = ("value", "default")


def _named_value(value: Mapping[Any, Any]) -> str | None:
    """The name in `{"name": "OPENAI_API_KEY", "value": ...}`, a form used in lists of environment variables."""
    name = value.get("name", value.get("key"))
    return name if isinstance(name, str) and any(field in value for field in _VALUE_FIELDS) else None


def _patterns(given: Any) -> tuple[str, ...]:
    given = [given] if isinstance(given, str) else given
    return tuple(str(item).lower() for item in given) if isinstance(given, list | tuple) else ()


def matches(patterns: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether a pattern matches the name of a setting, of one of its parents, or its dotted path."""
    lowered = [name.lower() for name in path]
    names = [*lowered, *(".".join(lowered[: place + 1]) for place in range(len(lowered)))]
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _dotted(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.replace("/", ".").split(".") if part)


def _typed(text: str) -> Any:
    """The typed value of a text: a number if it is one."""
    if text.isdigit():
        return int(text[:18])
    try:
        return float(text)
    except ValueError:
        return text


@lru_cache(maxsize=8)
def _in_environment(masking: Masking, variables: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Cached, because the settings of every run of a folder are masked with the same environment."""
    return frozenset(
        value
        for name, value in variables
        if len(value) >= SHORTEST_VARIABLE and _strength(name) == "sure" and masking.hides((name,), value)
    )
