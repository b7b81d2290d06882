"""Runs `rlvitals` with the weights sharded over processes that have no GPU: `torchrun ... fsdp_on_cpu.py train ppo ...`

accelerate shards only on accelerators such as GPUs: with ACCELERATE_USE_CPU it reads the FSDP settings and then wraps
the model for data parallelism. torch itself shards on CPUs too (`fully_shard` over gloo). So this file changes only the
kind of job that accelerate detects. Everything after that is the code of accelerate and torch.
"""

from __future__ import annotations

import runpy

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

as_it_is = AcceleratorState.__init__


def sharded_instead(self, *arguments, fsdp_plugin=None, **further):
    as_it_is(self, *arguments, fsdp_plugin=fsdp_plugin, **further)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)


def switch_on():
    AcceleratorState.__init__ = sharded_instead


if __name__ == "__main__":
    switch_on()
    runpy.run_module("rlvitals.cli.main", run_name="__main__")
