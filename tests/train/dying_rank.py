"""Runs `rlvitals` on several ranks. The first is killed by `kill -9` when it logs the step DIES_AT:
`torchrun ... dying_rank.py train ppo ...`. With ACCELERATE_USE_FSDP the weights are sharded as in `fsdp_on_cpu.py`.
"""

from __future__ import annotations

import os
import runpy
import signal

import fsdp_on_cpu

from rlvitals.capture.run import Run

as_it_is = Run.log


def or_die(self, *arguments, step=None, **further):
    if step == int(os.environ["DIES_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return as_it_is(self, *arguments, step=step, **further)


if __name__ == "__main__":
    Run.log = or_die
    if "ACCELERATE_USE_FSDP" in os.environ:
        fsdp_on_cpu.switch_on()
    runpy.run_module("rlvitals.cli.main", run_name="__main__")
