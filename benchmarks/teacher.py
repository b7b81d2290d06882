"""A model that judges small functions, compared with the deterministic judge that runs them: agreement, order, cost.

    python benchmarks/teacher.py export out/smollm2                        # the packaged model as a folder
    python benchmarks/teacher.py teach out/smollm2 out/taught --steps 300  # the same after supervised steps of judging
    transformers serve out/smollm2 --port 8000                             # in another terminal
    python benchmarks/teacher.py audit out/audit --url http://localhost:8000/v1 --model out/smollm2
    rlvitals audit-judge out/audit/answers.jsonl --threshold 1
    rlvitals audit-judge out/audit/pairs.jsonl

`audit` asks the model for scores of answers to held-out tasks with the trainer's own question, and which of two answers
is better, in both orders. It writes two held-out sets for `rlvitals audit-judge` and prints the cost of judging.
`teach` trains on the deterministic judge's scores of answers to the training tasks, which include no held-out task.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch

from rlvitals.train import functions, models, supervised
from rlvitals.train.teachers.base import WEIGHTS, AnswerToJudge, BadVerdict, Judgement, messages
from rlvitals.train.teachers.endpoint import EndpointAnswer, EndpointTeacher, JudgeClient
from rlvitals.train.teachers.offline import OfflineTeacher

SAME = 6
"""Answers per task whose order by the teacher is compared with that of the deterministic judge."""

INSTRUCTION = (
    "Two Python functions answer the same task. Which one is better? A correct one is better than one that is not. "
    'Answer with one JSON object and nothing else: {"better": "first"} or {"better": "second"}'
)
EXAMPLES = (
    ("double(x): multiply x by 2", "def double(x): return x + x", "def double(x): return x + 1", "first"),
    ("negate(n): give n with the other sign", "def negate(n): return n", "def negate(n): return -n", "second"),
)


def questions(count: int, *, seed: int, split: Literal["train", "held_out"]) -> Iterator[list[AnswerToJudge]]:
    """For each of `count` tasks the answers that a student would give after the warm-up, in random order."""
    rng = random.Random(f"teacher {split} {seed}")
    for task in functions.tasks(count, seed=seed, split=split):
        yield [AnswerToJudge(task, answer) for answer, _ in functions.answers(task, rng)]


def is_right(judgement: Judgement) -> bool:
    assert judgement.scores is not None
    return judgement.scores["correctness"] == 1.0


def export(folder: Path) -> None:
    """Write the packaged weights in the format of transformers."""
    models.write(folder, models.load(None, models.PACKAGED))


def teach(start: Path, folder: Path, *, steps: int, batch: int, rate: float, seed: int) -> None:
    """Supervised steps: the trainer's question, and the deterministic judge's scores as the verdict."""
    models.without_cudnn_attention()
    loaded = models.load(str(start), None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked = [one for every in questions(400, seed=seed, split="train") for one in every[:SAME]]
    with closing(OfflineTeacher()) as tests:
        judged = tests.judge(asked)
    pairs = [
        (_ids(loaded.tokenizer, messages(one)), _verdict_ids(loaded.tokenizer, judgement))
        for one, judgement in zip(asked, judged, strict=True)
    ]
    loaded.model.to(device)
    began = time.perf_counter()
    torch.set_float32_matmul_precision("high")
    course = supervised.TrainingCourse(
        steps, batch, rate, torch.Generator().manual_seed(seed),
        on_step=lambda step, loss: print(f"step {step}: loss {loss:.3f}") if step in (1, steps // 2) else None,
    )  # fmt: skip
    loss = supervised.warm_up(loaded.model, pairs, course, loaded.tokenizer.pad_token_id)
    print(f"{steps} steps of {batch} in {time.perf_counter() - began:.0f} s, loss {loss:.3f}")
    models.write(folder, models.Loaded(loaded.model.cpu(), loaded.tokenizer))


def _ids(tokenizer: Any, asked: Sequence[dict[str, str]]) -> list[int]:
    text = tokenizer.apply_chat_template(list(asked), tokenize=False, add_generation_prompt=True)
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def _verdict_ids(tokenizer: Any, judgement: Judgement) -> list[int]:
    assert judgement.scores is not None
    verdict = json.dumps({name: round(judgement.scores[name], 1) for name in WEIGHTS})
    found: list[int] = tokenizer(verdict, add_special_tokens=False)["input_ids"]
    return [*found, tokenizer.eos_token_id]


def audit(folder: Path, client: JudgeClient, *, tasks: int, pairs: int, concurrency: int, seed: int) -> dict[str, Any]:
    """Ask the model, write the two held-out sets, and print the cost and how similarly the two judges rank."""
    folder.mkdir(parents=True, exist_ok=True)
    every = list(questions(tasks, seed=seed, split="held_out"))
    asked = [one for of_task in every for one in of_task[:SAME]]
    with closing(OfflineTeacher()) as tests, closing(EndpointTeacher(client, concurrency=concurrency)) as teacher:
        gold = tests.judge(asked)
        alone = _seconds(lambda: teacher.judge(asked[:1]))
        began = time.perf_counter()
        judgements = teacher.judge(asked)
        seconds = time.perf_counter() - began
        again = teacher.judge(asked[: len(asked) // 4])
        both = list(_both(every, tests, seed))[:pairs]
    repeated = [[one] for one in judgements]
    for verdicts, one in zip(repeated, again, strict=False):  # some are asked twice
        verdicts.append(one)
    rows = [
        {"gold": is_right(truth), "score": [_correctness(one) for one in verdicts], "answer": question.answer}
        for question, truth, verdicts in zip(asked, gold, repeated, strict=True)
    ]
    _write(folder / "answers.jsonl", rows)
    with ThreadPoolExecutor(concurrency) as threads:
        preferred = list(threads.map(lambda pair: _prefers(client, *pair), both))
        swapped = list(threads.map(lambda pair: _prefers(client, pair[0], pair[2], pair[1]), both))
    names, swapped_names = {"first": "a", "second": "b"}, {"first": "b", "second": "a"}
    _write(folder / "pairs.jsonl", [
        {"gold": "a" if is_first else "b", "preferred": names.get(one.verdict or "", ""),
         "preferred_swapped": swapped_names.get(other.verdict or "", ""), "a": a, "b": b}
        for (_, a, b, is_first), one, other in zip(both, preferred, swapped, strict=True)
    ])  # fmt: skip
    return {
        "answers": len(asked), "right by the tests": round(fmean(map(is_right, gold)), 3), "pairs": len(both),
        "seconds for one alone": round(alone, 3), "judgements a second": round(len(asked) / seconds, 2),
        "at a time": concurrency,
        "prompt tokens": round(fmean(one.prompt_tokens for one in judgements), 1),
        "completion tokens": round(fmean(one.completion_tokens for one in judgements), 1),
        "no verdict": round(fmean(one.scores is None for one in judgements), 3),
        "different verdicts": len({json.dumps(one.scores) for one in judgements if one.scores}),
        "order within a task, reward": _ordered_alike(asked, judgements, gold),
        "the commonest verdict": _commonest(judgements),
    }  # fmt: skip


def _both(
    every: Sequence[Sequence[AnswerToJudge]], tests: OfflineTeacher, seed: int
) -> Iterator[tuple[str, str, str, bool]]:
    """Right and wrong answers to the same task, and whether the right one comes first."""
    rng = random.Random(f"pairs {seed}")
    for of_task in every:
        judged = tests.judge(of_task)
        right = [one for one, found in zip(of_task, judged, strict=True) if is_right(found)]
        wrong = [one for one, found in zip(of_task, judged, strict=True) if not is_right(found)]
        for one, other in zip(right, wrong, strict=False):
            is_first = rng.random() < 0.5
            first, second = (one, other) if is_first else (other, one)
            yield one.task.prompt.strip(), first.answer, second.answer, is_first


def _prefers(client: JudgeClient, prompt: str, first: str, second: str, *_: object) -> EndpointAnswer[str]:
    def asked(prompt: str, first: str, second: str) -> dict[str, str]:
        return {
            "role": "user",
            "content": f"Task: {prompt}\nfirst: {first}\nsecond: {second}\nWhich is better, as JSON:",
        }

    conversation = [{"role": "system", "content": INSTRUCTION}]
    for *shown, better in EXAMPLES:
        conversation += [asked(*shown), {"role": "assistant", "content": json.dumps({"better": better})}]
    return client.ask([*conversation, asked(prompt, first, second)], _read_preference)


def _read_preference(verdict: dict[str, Any]) -> str:
    if verdict.get("better") not in ("first", "second"):
        raise BadVerdict(f"better is {str(verdict.get('better'))[:40]}, not first or second")
    return str(verdict["better"])


def _ordered_alike(
    asked: Sequence[AnswerToJudge], judgements: Sequence[Judgement], gold: Sequence[Judgement]
) -> float | None:
    """For two answers to one task with different true rewards: how often the teacher's rewards have the same order. A
    tie counts half; 0.5 is chance.
    """
    alike = []
    judged = [(q.task.prompt, s.reward, g.reward) for q, s, g in zip(asked, judgements, gold, strict=True)]
    for place, (prompt, reward, truth) in enumerate(judged):
        for other_prompt, other_reward, other_truth in judged[place + 1 : place + SAME]:
            if other_prompt != prompt or None in (reward, other_reward) or truth == other_truth:
                continue
            alike.append(0.5 if reward == other_reward else float((reward > other_reward) == (truth > other_truth)))
    return round(fmean(alike), 3) if alike else None


def _commonest(judgements: Sequence[Judgement]) -> str:
    verdicts = [json.dumps(one.scores) for one in judgements if one.scores is not None]
    if not verdicts:
        return "none"
    most = max(sorted(set(verdicts)), key=verdicts.count)
    return f"{most} in {verdicts.count(most)} of {len(verdicts)}"


def _correctness(judgement: Judgement) -> float | None:
    return None if judgement.scores is None else judgement.scores["correctness"]


def _seconds(ask: Any) -> float:
    began = time.perf_counter()
    ask()
    return time.perf_counter() - began


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    exporting = verbs.add_parser("export")
    exporting.add_argument("folder", type=Path)
    teaching = verbs.add_parser("teach")
    teaching.add_argument("start", type=Path)
    teaching.add_argument("folder", type=Path)
    teaching.add_argument("--steps", type=int, default=300)
    teaching.add_argument("--batch", type=int, default=32)
    teaching.add_argument("--rate", type=float, default=1e-4)
    auditing = verbs.add_parser("audit")
    auditing.add_argument("folder", type=Path)
    auditing.add_argument("--url", required=True)
    auditing.add_argument("--model", required=True)
    auditing.add_argument("--tasks", type=int, default=50, help=f"{SAME} answers are judged of each")
    auditing.add_argument("--pairs", type=int, default=150)
    auditing.add_argument("--concurrency", type=int, default=8)
    for each in (teaching, auditing):
        each.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.verb == "export":
        export(given.folder)
    elif given.verb == "teach":
        teach(given.start, given.folder, steps=given.steps, batch=given.batch, rate=given.rate, seed=given.seed)
    else:
        client = JudgeClient(given.url, given.model, max_tokens=120, tries=1, seconds=300)
        found = audit(
            given.folder, client, tasks=given.tasks, pairs=given.pairs, concurrency=given.concurrency, seed=given.seed
        )
        for name, value in found.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
