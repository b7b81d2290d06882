"""How often a series without a trend is called gained or lost, and how often a real change is detected.

    python benchmarks/course_noise.py [--runs 400]

All other judgements of the rules depend on whether the reward rose (`rlvitals.health.course`). Trainers log raw rewards
and running means. Both tables show white noise, AR(1) noise and running means, by the number of points. In the second
table the change is in standard deviations of one point before averaging.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from doctor import table
from rlvitals.health.course import Course

POINTS = (20, 40, 60, 100, 300, 1000)
CHANGED = ((40, 2), (40, 4), (100, 2), (100, 4), (300, 2), (300, 4))
"""Points of a run, and the size of the change."""


def remembering(draw, points, share):
    """AR(1) noise of variance 1."""
    fresh = draw.standard_normal(points + 200) * math.sqrt(1 - share * share)
    values = [0.0]
    for one in fresh:
        values.append(share * values[-1] + one)
    return np.array(values[-points:])


def running_mean(draw, points, memory):
    """The mean of the last `memory` values of white noise."""
    return np.convolve(draw.standard_normal(points + memory - 1), np.ones(memory) / memory, "valid")


NOISES = {
    "white": lambda draw, points: draw.standard_normal(points),
    "AR(1), 0.5": lambda draw, points: remembering(draw, points, 0.5),
    "AR(1), 0.8": lambda draw, points: remembering(draw, points, 0.8),
    "AR(1), 0.95": lambda draw, points: remembering(draw, points, 0.95),
    "running mean of 5": lambda draw, points: running_mean(draw, points, 5),
    "running mean of 10": lambda draw, points: running_mean(draw, points, 10),
    "running mean of 20": lambda draw, points: running_mean(draw, points, 20),
}
SHAPES = {
    "straight rise": lambda time: time,
    "S-shaped rise": lambda time: 1 / (1 + np.exp(-12 * (time - 0.5))),
    "quick rise, plateau": lambda time: 1 - np.exp(-8 * time),
    "late rise": lambda time: np.clip(5 * (time - 0.8), 0, 1),
    "rise and fall back": lambda time: np.clip(1 - 2.5 * abs(time - 0.4), 0, 1),
}


def course_of(values):
    course = Course()
    for value in values:
        course.add(float(value))
    return course


def called(courses):
    return f"{np.mean([course.won for course in courses]):.0%} / {np.mean([course.lost for course in courses]):.0%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400)
    runs = parser.parse_args().runs
    draw = np.random.default_rng(2026)
    rows = [
        [name, *(called([course_of(noise(draw, points)) for _ in range(runs)]) for points in POINTS)]
        for name, noise in NOISES.items()
    ]
    table("No trend: called gained / lost", ["noise", *(f"{points} points" for points in POINTS)], rows)
    rows = []
    for name, shape in SHAPES.items():
        for noise in ("white", "running mean of 5"):
            cells = [
                np.mean([
                    getattr(course_of(size * shape(np.arange(points) / points) + NOISES[noise](draw, points)), seen)
                    for _ in range(runs)
                ])
                for points, size in CHANGED
                for seen in ["lost" if "fall" in name else "won"]
            ]  # fmt: skip
            rows.append([f"{name}, {noise}", *(f"{cell:.0%}" for cell in cells)])
    table("A change: seen", ["", *(f"{size} sd, {points} points" for points, size in CHANGED)], rows)


if __name__ == "__main__":
    main()
