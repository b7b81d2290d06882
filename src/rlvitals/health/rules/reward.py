"""The reward and its quality: collapse, floor, no learning, plateau, groups without signal, hacking."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from rlvitals.health import origins
from rlvitals.health.alarm import Alarm, beyond_doubt, critical, in_company, info, since, warning
from rlvitals.health.case import Case
from rlvitals.health.course import BEYOND_NOISE, by_chance
from rlvitals.health.statistics import FAST_SHARE, NEAR_ZERO, Signal

SEQUENCE_TOKENS = 10.0
"""The least factor by which a KL summed over a sequence is assumed to exceed a mean per token."""

SOLVED_REST = 0.07
"""A reward within this share of its declared range from the top is at the top."""

SOLVED_LEVEL = 0.93
"""Without a declared range, a reward that stays between 0 and 1 is at the top above this level."""

LEAST_SCALE = 1e-6
"""The least size of a reward or a score to which changes are compared."""

TOGETHER = 2
"""Evaluations whose mean is compared: one alone is noise, and more would be too late."""

FALLS = ("reward_collapse", "reward_below_start")
"""The rules that detect a falling reward."""

_AUXILIARY = re.compile(
    r"format|length|len|xml|style|tag|soft|strict|penalty|bonus|int_|think|brevity|verbos|cheat", re.IGNORECASE
)
_MEANT = re.compile(r"correct|accura|answer|success|solve|pass|true|gold|verif|exact|perfect|task|goal", re.IGNORECASE)
"""Parts of a reward that stand for the task itself."""


def is_solved(case: Case, reward: Signal) -> bool:
    """Whether the reward is at the top of its range, as far as the range is known."""
    highest = case.highest_reward
    if highest is not None:
        span = highest - lowest_reward(case, reward)
        return span > 0 and reward.fast > highest - SOLVED_REST * span
    return is_share(reward) and reward.fast > SOLVED_LEVEL


def lowest_reward(case: Case, reward: Signal) -> float:
    """The lowest reward that a sample can have: declared, or the lowest seen if that is below 0."""
    return case.lowest_reward if case.lowest_reward is not None else min(reward.lowest, 0.0)


def _floor_of(case: Case, reward: Signal) -> float | None:
    if case.lowest_reward is not None:
        return case.lowest_reward
    return 0.0 if is_share(reward) else None


def reward_constant(
    reward: Signal,
    case: Case,
    reward_std: Signal | None,
    *,
    points: float,
    relative: float,
    still: float,
    spread_times: float,
    std_alive: float,
    zeros_alive: float,
    always_times: float,
) -> Alarm | None:
    """The reward has hardly changed since the first points: the verifier always returns the same score, or never
    accepts an answer. A reward that has risen and is now exactly constant is a solved task, unless the level it reached
    is low.
    """
    scale = max(abs(reward.slow), LEAST_SCALE)
    if reward.equal_streak < points and reward.spread > spread_times * max(relative, still) * scale:
        return None
    levels = reward.course.levels
    spread = max(levels) - min(levels) if levels else reward.highest - reward.lowest
    flat_always = reward.n > always_times * points and max(spread, reward.noise) <= relative * scale
    lately = levels[-3:]
    stands = len(levels) > len(lately) and max(max(lately) - min(lately), reward.spread / spread_times) <= still * scale
    flat_now = reward.equal_streak >= points or stands
    if not (flat_always or flat_now):
        return None
    gained = reward.gained or reward.course.gain >= BEYOND_NOISE
    if is_solved(case, reward):
        return info(reward, "solved" if gained else "always_top", spread=spread)
    if gained and not flat_always and reward.last > 0:
        return info(reward, "settled", spread=spread)
    alive = reward_std is not None and reward_std.slow > std_alive * scale and reward_std.zero_share < zeros_alive
    return origins.caused((warning if alive and not flat_now else critical)(reward, spread=spread), case.origins)


def reward_at_floor(
    reward: Signal, case: Case, *, share: float, points_critical: float, rising: float, trend: float
) -> Alarm | None:
    """The mean reward is at its lowest possible value: hardly any sample earns anything."""
    floor = _floor_of(case, reward)
    if floor is None:
        return None
    span = (1.0 if case.highest_reward is None else case.highest_reward) - floor
    if span <= 0 or reward.fast - floor > share * span or reward.slow - floor > share * span:
        return None
    if reward.rising > rising or reward.trend > trend:
        return None  # small but rising
    above = (reward.slow - floor) / span
    return origins.caused((critical if reward.n >= points_critical else warning)(reward, above=above), case.origins)


def reward_collapse(
    reward: Signal,
    kl: Signal | None,
    entropy: Signal | None,
    length: Signal | None,
    turns: Signal | None,
    case: Case,
    *,
    give_back: float,
    share: float,
    noises: float,
    least: float,
    far_times: float,
    near_times: float,
    start_times: float,
    depth_times: float,
    kl_times: float,
    kl_least: float,
    entropy_low: float,
    entropy_high: float,
    length_low: float,
    length_high: float,
    turns_low: float,
    turns_high: float,
    lost_times: float,
    back: float,
) -> Alarm | None:
    """The reward has lost its gain, or has fallen below its initial level."""
    if not reward.dropped:
        return None
    drift = max(reward.wander, FAST_SHARE * reward.noise)
    won = reward.top - reward.base
    falling = reward.slow - reward.at_most  # the baseline has only ten points and may be too high
    gave_back = (
        won > far_times * noises * drift and reward.drop > give_back * won and falling > near_times * noises * drift
    )
    below = falling > noises * drift and reward.base - reward.fast > near_times * noises * drift
    if not (gave_back or below):
        return None
    moved = [
        signal.key
        for signal, moved in (
            (kl, kl is not None and kl.median_ratio > kl_times and kl.median5 > kl_least),
            (entropy, entropy is not None and not entropy_low < _or_one(entropy.ratio) < entropy_high),
            (length, length is not None and not length_low < _or_one(length.ratio) < length_high),
            (turns, turns is not None and not turns_low < _or_one(turns.ratio) < turns_high),
        )
        if moved and signal is not None
    ]
    companions = ", ".join(moved) or "nothing else"
    lost_all = gave_back and reward.drop > share * won and won > lost_times * noises * drift
    sunk = below and (bool(moved) or falling > far_times * noises * drift)
    # A fast fall raises the noise it is compared with, so a deep one is also compared with the noise of the start.
    depth = reward.base - reward.at_most
    sunk = sunk or (
        depth > max(start_times * noises * reward.noise_base, noises * reward.wander)
        and reward.drop > depth / depth_times
    )
    # A loss of a few percent of the reward is no collapse, however constant it was before.
    matters = reward.drop > least * max(abs(reward.top), reward.travelled)
    found = (critical if matters and (lost_all or sunk) else warning)(
        reward, drop=reward.drop, best=reward.top, companions=companions
    )
    found.back_at = reward.fast + back * reward.drop
    return origins.caused(since(reward.top_step, found), case.origins)


def kl_unit(case: Case) -> float:
    """The least factor by which the run's KL exceeds a mean per token."""
    return SEQUENCE_TOKENS if case.kl_is_sum else 1.0


def _or_one(value: float) -> float:
    return 1.0 if math.isnan(value) else value


def reward_below_start(
    reward: Signal,
    true_score: Signal | None,
    case: Case,
    *,
    errors: float,
    errors_critical: float,
    least: float,
    points: float,
    still: float,
) -> Alarm | None:
    """The last part of the run earns less than the first, or has fewer right answers: the policy has become worse, even
    if slowly. With few points the difference must be clear. If the share of right answers fell and has been exactly
    constant since, the policy gives the same answer to everything.
    """
    for score in (reward, true_score):
        if score is None or (score is not reward and reward.won):
            continue
        before = score.head[0] if score.head else score.last
        if score is not reward and score.equal_streak >= still and before - score.last > least * abs(before):
            return origins.caused(critical(score, "right", start=before, now=score.last), case.origins)
        course = score.course
        start = min(course.start, score.start)  # one spike among the first points is not the start level
        fallen = course.in_errors(start - course.now)
        if not fallen >= (errors if score.n >= points else errors_critical) or score.rising > BEYOND_NOISE:
            continue
        if start - course.now < least * max(abs(start), score.travelled):
            continue
        alarm = critical if fallen > errors_critical else warning
        return origins.caused(
            alarm(score, "" if score is reward else "right", start=start, now=course.now), case.origins
        )
    return None


def not_learning(
    reward: Signal,
    kl: Signal | None,
    eval_score: Signal | None,
    difficulty: Signal | None,
    truncated: Signal | None,
    case: Case,
    *,
    best: float,
    t: float,
    share: float,
    points: float,
    points_critical: float,
    points_idle: float,
    t_critical: float,
    gain_critical: float,
    late: float,
    still: float,
    evals: float,
    eval_jumps: float,
    points_least: float,
    cut: float,
) -> Alarm | None:
    """The last part of the run is no better than the first, and no line through the reward rises. The case is clearer
    if the policy has not moved from its reference either. If many answers have been cut off from the start, the cause
    is known, and the points of the warm-up are enough. A constant reward on tasks that become harder is not a failure.
    """
    course = reward.course
    is_cut = truncated is not None and min(truncated.slow, truncated.base) > cut
    enough = reward.n >= points if case.progress is None else case.progress >= share and reward.n >= points_least
    if not (enough or is_cut) or not course.levels or is_solved(case, reward):
        return None
    if any(case.raised.get(rule, ("info", 0))[0] != "info" for rule in FALLS):
        return None  # it learned and lost it, or got worse: that was reported, and needs other advice
    if course.best_gain >= best or course.gain >= BEYOND_NOISE or reward.trend >= t or reward.rising > BEYOND_NOISE:
        return None
    if eval_score is not None and eval_score.n >= evals:
        climbed = eval_score.last - eval_score.head[0] > eval_jumps * eval_score.usual_jump
        if climbed or eval_score.trend > BEYOND_NOISE or eval_score.gained:
            return None
    if difficulty is not None and difficulty.keeps_gain:
        return info(reward, "harder", t=reward.trend, gain=course.now - course.start)
    idle = kl is not None and 0 <= kl.slow < still * kl_unit(case)
    over = case.progress is not None and case.progress >= late and reward.n >= points
    grave = over or (case.progress is None and reward.n >= (points_idle if idle else points_critical))
    grave = grave and reward.trend < t_critical and course.gain < gain_critical
    alarm = (critical if grave else warning)(
        reward, "idle" if idle else "", t=reward.trend, gain=course.now - course.start
    )
    return since(reward.first_step, alarm)


def plateau(
    reward: Signal, eval_score: Signal | None, case: Case, *, age: float, share: float, rising: float, evals: float
) -> Alarm | None:
    """The best level was reached long ago, and nothing has risen since: use that checkpoint. Always a remark, because a
    run that has learnt what it can has not failed.
    """
    flat = reward.plateau_age
    if flat < max(age, share * reward.n) or not reward.gained or reward.rising > rising:
        return None
    if eval_score is not None and eval_score.n >= evals and eval_score.rising > rising:
        return None
    variant = "solved" if is_solved(case, reward) else ""
    return info(reward, variant, age=float(flat), best=reward.top, best_step=float(reward.top_step))


def groups_without_spread(
    zero_variance: Signal,
    reward: Signal | None,
    true_score: Signal | None,
    all_pass: Signal | None,
    all_fail: Signal | None,
    truncated: Signal | None,
    case: Case,
    *,
    share: float,
    share_critical: float,
    excess: float,
    small_group: float,
    share_small: float,
    points_small: float,
    base_share: float,
    risen_share: float,
    points_risen: float,
    share_sure: float,
    p_low: float,
    p_high: float,
    p_hard: float,
    p_easy: float,
    share_most: float,
    truncated_share: float,
    excess_times: float,
    pass_times: float,
    constant: float,
) -> Alarm | None:
    """Groups whose samples all earn the same reward give no gradient. With a binary reward, a share of p^G + (1-p)^G of
    them occurs by chance.
    """
    level = (zero_variance.slow + zero_variance.fast) / 2
    now = zero_variance.at_least
    size = case.group_size
    # A reward of several parts does not show which share of the answers is right; another logged score may.
    right = next((score for score in (reward, true_score) if score is not None and is_share(score)), None)
    binary = right is not None
    chance = math.nan
    p = right.slow if right is not None else reward.slow if reward is not None else math.nan
    if binary and size:
        chance = p**size + (1 - p) ** size
    if size is not None and size <= small_group and (now < share_small or zero_variance.n < points_small):
        return None  # pairs and triples agree most of the time
    leapt = now > share_critical and zero_variance.base < base_share * share
    risen = zero_variance.base < base_share * level
    beyond = (
        risen
        and zero_variance.n >= points_risen
        and min(level, now) > risen_share * share
        and level - chance > excess_times * excess
    )
    if not leapt and not beyond and min(level, now) < share:
        return None
    if level - chance < excess and not (p <= p_low or p >= p_high) and level < share_sure:
        return None
    # With prompts that are always or never solved, the mean changes from batch to batch; a constant reward does not.
    stands = reward is not None and reward.highest - reward.lowest < constant * abs(reward.slow)
    if reward is not None and stands and level > share_sure and not (binary and (p <= p_low or p >= p_high)):
        return critical(zero_variance, "constant", share=level, level=level, reward=reward.slow)
    variant = ""
    # With a binary reward, the share of groups that fail entirely is at most the share of failed answers. If twice as
    # many groups have no spread, most of them pass.
    mostly_pass = binary and level > pass_times * (1 - p)
    if (all_pass is not None and all_pass.fast > share_most) or (binary and p >= p_easy) or mostly_pass:
        variant = "too_easy"
    elif (all_fail is not None and all_fail.fast > share_most) or (binary and p <= p_hard):
        variant = "too_hard"
    solved = reward is not None and (is_solved(case, reward) or (variant == "too_easy" and reward.gained))
    gained = reward is not None and reward.keeps_gain
    cut = truncated is not None and truncated.fast > truncated_share
    if solved:
        return info(zero_variance, "solved", share=level, level=level, chance=chance)
    if (level > share_critical or leapt) and (not gained or cut or (reward is not None and reward.stalled)):
        return critical(zero_variance, variant, share=level, level=level, chance=chance)
    if reward is not None and reward.won and not reward.stalled and max(level, now) < share_critical:
        return info(zero_variance, variant, share=level, level=level, chance=chance)  # the other groups teach enough
    return warning(zero_variance, variant, share=level, level=level, chance=chance)


def is_share(score: Signal) -> bool:
    """Whether all values so far are between 0 and 1, like a share of right answers."""
    return score.n > 0 and score.lowest >= 0 and score.highest <= 1


def no_reward_spread(
    reward_std: Signal,
    reward: Signal,
    zero_variance: Signal | None,
    case: Case,
    *,
    share: float,
    relative: float,
    points: float,
) -> Alarm | None:
    """All rewards are equal: no sample is better than another."""
    if zero_variance is not None:
        return None  # it shows the same more precisely
    grouped = (case.group_size or 0) > 1
    if reward_std.highest == 0.0 and not grouped:
        return None  # with one sample per prompt there is no spread to expect
    gone = reward_std.zero_share > share and reward_std.n >= points
    shrunk = reward_std.n >= points and reward_std.ratio < relative and reward_std.median_ratio < relative
    if not (gone or shrunk):
        return None
    if is_solved(case, reward) or reward.gained:
        return info(reward_std, "solved", share=reward_std.zero_share)
    return (
        critical(reward_std, share=reward_std.zero_share) if gone else warning(reward_std, share=reward_std.zero_share)
    )


def proxy_gap(case: Case, reward: Signal, *, gain: float, times: float, share_highest: float) -> Alarm | None:
    """The reward rises and a score logged beside it, which is not part of it, does not: the policy exploits the
    reward.
    """
    scores = case.parts | case.others
    if len(scores) < 2 or not 0 <= reward.lowest <= reward.highest <= share_highest:
        return None
    proxies = [part for part in scores.values() if part.n == reward.n and abs(part.slow - reward.slow) < NEAR_ZERO]
    if not proxies:
        return None
    won = reward.fast - reward.base
    if won < gain or not reward.gained:
        return None
    for name, part in scores.items():
        if (
            part in proxies
            or part.n < reward.n - 2
            or "minus" in name
            or not 0 <= part.lowest <= part.highest <= share_highest
        ):
            continue
        if _AUXILIARY.search(name) or part.highest == part.lowest:
            continue  # a constant shows nothing yet: see task_part_dead
        real = part.fast - part.base
        if real * times < won:
            found = critical(reward, gain=won, true_gain=real, true_metric=part.key)
            found.onset_step = reward.onset_step
            return found
    return None


def task_part_dead(
    case: Case, reward: Signal, true_score: Signal | None, *, points: float, points_critical: float
) -> Alarm | None:
    """The part of the reward for the task itself has never changed: the policy learns something else."""
    scores = case.parts | case.others
    if true_score is not None and true_score is not reward:
        scores[true_score.key] = true_score
    for name, part in scores.items():
        if part.n < points or part.highest != part.lowest or _AUXILIARY.search(name) or not _MEANT.search(name):
            continue
        if part.last > 0 and part.last >= reward.slow:
            continue  # always right
        return (critical if part.n >= points_critical else warning)(part, part=name)
    return None


def eval_falls(
    reward: Signal,
    eval_score: Signal,
    case: Case,
    *,
    noises: float,
    evals: float,
    noise_least: float,
    climb_noises: float,
    rising: float,
    slide_share: float,
    evals_reward: float,
    deep_times: float,
    rising_apart: float,
    climb_noises_apart: float,
    errors_flat: float,
    errors_apart: float,
    room: float,
) -> Alarm | None:
    """The held-out score falls while the training reward rises, or no longer follows it: the reward is over-optimised
    or exploited.
    """
    at_evals = case.reward_at_evals
    if eval_score.n < evals or reward.dropped or len(at_evals) < evals_reward or eval_score.seen_at != case.points:
        return None
    window = eval_score.window
    best = eval_score.highest
    noise = max(eval_score.noise, noise_least * abs(best), LEAST_SCALE)
    won = at_evals[-1] - min(at_evals[:-1])
    climbs = won > climb_noises * FAST_SHARE * reward.noise and (reward.gained or reward.rising > rising)
    # A score that falls steadily looks noisy. It slides if each evaluation is below the one before and little is left.
    slides = window[-1] < slide_share * window[0] and all(later < earlier for earlier, later in pairwise(window))
    if climbs and slides:
        alarm = critical if len(window) > evals else warning
        found = alarm(reward, eval_metric=eval_score.key, eval_best=best, eval_now=window[-1])
        return beyond_doubt(found) if alarm is critical else found
    fallen = best - max(window[-2:])
    if climbs and fallen > noises * noise:
        deep = best - max(window[-3:]) > noises * noise or fallen > deep_times * noises * noise
        alarm = critical if deep and window[-1] <= min(window[-3:]) + noise else warning
        return alarm(reward, eval_metric=eval_score.key, eval_best=best, eval_now=window[-1])
    if len(at_evals) < TOGETHER + TOGETHER or reward.rising < rising_apart:
        return None
    # Two evaluations against the two before them: has the score followed the reward as it did until then?
    then, now = _mean(window[-2 * TOGETHER : -TOGETHER]), _mean(window[-TOGETHER:])
    reward_then, reward_now = _mean(at_evals[-2 * TOGETHER : -TOGETHER]), _mean(at_evals[-TOGETHER:])
    drift = FAST_SHARE * reward.noise
    climb, before = reward_now - reward_then, reward_then - reward.start
    error = max(eval_score.course.fall_of_last(TOGETHER)[2], noise_least * abs(then), LEAST_SCALE)
    if climb < climb_noises_apart * drift or before < climb_noises * drift or now - then > errors_flat * error:
        return None
    expected = climb * (then - eval_score.head[0]) / before
    if is_share(eval_score):
        expected = min(expected, room * (1.0 - then))  # near its top a score can rise little
    if expected - (now - then) < errors_apart * error:
        return None
    return in_company(warning(reward, "apart", eval_metric=eval_score.key, eval_then=then, eval_now=now, climb=climb))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def eval_left_behind(
    eval_score: Signal,
    reward: Signal,
    case: Case,
    *,
    evals: float,
    together: float,
    errors: float,
    errors_critical: float,
    least: float,
) -> Alarm | None:
    """The held-out score has lost its gain while the reward keeps its own, even if the reward stopped rising long ago:
    the reward no longer measures what is wanted.
    """
    if eval_score.n < evals or eval_score.seen_at != case.points or not reward.won or reward.dropped:
        return None
    best, fallen, error = eval_score.course.fall_of_last(int(together))
    chance = by_chance(eval_score.n)  # the best of many evaluations is high by chance
    if not fallen > max((errors + chance) * error, least * max(abs(best), eval_score.highest - eval_score.lowest)):
        return None
    # Below its very first values it has lost everything.
    everything = fallen > (errors_critical + chance) * error and max(eval_score.window[-2:]) < eval_score.start
    return (critical if everything else warning)(
        reward, eval_metric=eval_score.key, eval_best=best, eval_now=eval_score.last
    )


def eval_collapse(eval_score: Signal, *, evals: float, jumps: float, in_a_row: float) -> Alarm | None:
    """The held-out score had risen and is below its first value, three evaluations in a row."""
    window = eval_score.window
    if eval_score.n < evals or len(window) < in_a_row:
        return None
    first, best, now = eval_score.head[0], eval_score.highest, max(window[-int(in_a_row) :])
    usual = eval_score.usual_jump
    if now >= first or best - first < jumps * usual:
        return None
    alarm = critical if first - now > usual else warning
    return alarm(eval_score, eval_best=best, eval_now=window[-1])


def reward_takeover(
    case: Case,
    reward: Signal,
    true_score: Signal | None,
    eval_score: Signal | None,
    *,
    share: float,
    shift: float,
    variance: float,
    share_critical: float,
    least: float,
    points: float,
    points_critical: float,
    sum_slack: float,
    momentum: float,
    rising: float,
) -> Alarm | None:
    """One part of the reward has become nearly all of it while the others are constant or fall, or it grows while
    another falls. Parts below `least` of the reward are ignored: partial credit falls when complete answers are right.
    Nor does it count if the part that grew is the task itself, by its name or because a measure of success rose as
    well.
    """
    parts = [(name, part) for name, part in case.parts.items() if part.n >= reward.n - 2 and part.n >= points]
    if len(parts) < 2 or reward.dropped:
        return None
    now = sum(abs(part.median5) for _, part in parts)
    then = sum(abs(part.base) for _, part in parts)
    if now <= 0 or then <= 0 or abs(now - abs(reward.median5)) > sum_slack * now:
        return None  # the parts are not what the reward is made of
    succeeds = any(score is not None and score is not reward and score.keeps_gain for score in (true_score, eval_score))
    growing = [(name, part) for name, part in parts if _AUXILIARY.search(name) or not (succeeds or _MEANT.search(name))]
    for name, part in growing:
        mine = abs(part.median5) / now
        if mine < share or mine - abs(part.base) / then < shift or not part.gained or part.fast <= part.base:
            continue
        others = [other for other_name, other in parts if other_name != name]
        if any(other.gained and other.momentum > momentum for other in others):
            continue
        if not _AUXILIARY.search(name) and not any(other.lost for other in others):
            continue  # the real task has become the larger part: that is the point of training
        if part.noise**2 < variance * sum(one.noise**2 for _, one in parts):
            continue  # the others still decide which sample is better
        return (critical if mine > share_critical and reward.n >= points_critical else warning)(
            part, part=name, share=mine
        )
    for name, part in growing:
        if abs(part.fast) < least * now or not (part.gained and part.rising > rising):
            continue
        losers = [
            other for other_name, other in parts
            if other_name != name and abs(other.base) >= least * then and other.dropped and other.lost
        ]  # fmt: skip
        if losers and not _AUXILIARY.search(losers[0].name):
            found = warning(part, "loser", part=name, share=abs(part.fast) / now, loser=losers[0].name)
            if _MEANT.search(losers[0].name):
                found.kind = "reward_hacking"
            return found
    return None
