"""verl without a GPU: a platform and a rollout engine, registered in verl's own registries.

verl imports this module in each of its processes (VERL_USE_EXTERNAL_MODULES). The training loop, FSDP engine, agent
loop, weight synchronisation and TransferQueue are verl's; `generate` of `transformers` samples.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry, set_platform
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "generate"
SERVER = "generate_server"


def nothing(*given, **named):
    return None


def none_used(*given):
    return 0


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The CPU. Ray gets one fictitious GPU, because verl places its workers by GPUs."""

    device_name = vendor_name = "cpu"
    device_module = SimpleNamespace(
        is_available=lambda: False, empty_cache=nothing, synchronize=nothing, set_device=nothing,
        max_memory_allocated=none_used, max_memory_reserved=none_used, memory_allocated=none_used,
        memory_reserved=none_used, mem_get_info=lambda: (0, 0), get_device_name=lambda: "CPU",
        get_rng_state=torch.get_rng_state, set_rng_state=torch.set_rng_state,
    )  # fmt: skip
    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = nothing
    profiler_start = profiler_stop = cudart = nothing

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        # verl passes "cpu:gloo,cpu:THIS" to torch (verl/utils/distributed.py), which torch refuses. If a process group
        # exists, verl creates none.
        if "RANK" in os.environ and not torch.distributed.is_initialized():
            where = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
            torch.distributed.init_process_group("gloo", init_method=os.environ.get("DIST_INIT_METHOD"), **where)
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False


class Server:
    """One inference engine: a separate model that gets its weights from the trainer."""

    def __init__(self, path, longest):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_pretrained(path)
        self.longest, self.version = longest, None

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        prompt = torch.tensor([list(prompt_ids)])
        temperature = sampling_params["temperature"]
        made = self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=self.longest, do_sample=temperature > 0,
            temperature=temperature or None, return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        tokens = made.sequences[0, prompt.shape[1] :]
        log_probs = torch.cat(made.logits).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        return TokenOutput(
            token_ids=tokens.tolist(), log_probs=log_probs.tolist(), stop_reason="completed",
            extra_fields={"global_steps": self.version},
        )  # fmt: skip

    async def load(self, weights, version):
        self.model.load_state_dict(weights, strict=False)  # the output layer shares the input's weights
        self.version = version

    async def sleep(self):
        """There is no memory to release."""

    async def wake_up(self):
        """No memory was released."""


class Replica(RolloutReplica):
    """Starts the server."""

    async def launch_servers(self):
        import ray

        server = ray.remote(num_cpus=0)(Server).options(name=f"{SERVER}_{self.replica_rank}")
        handle = server.remote(self.model_config.path, self.config.response_length)
        self.servers, self._server_handle, self._server_address = [handle], handle, f"{SERVER}_{self.replica_rank}"


class Rollout(base.BaseRollout):
    """The trainer's side of the server: sends it the weights."""

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, wire_format="named_tensors", *, global_steps=None, **_):
        import ray

        state = {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in weights}
        await ray.get_actor(f"{SERVER}_0").load.remote(state, global_steps)


set_platform(CpuPlatform())
base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{Rollout.__name__}"
RolloutReplicaRegistry.register(NAME, lambda: Replica)
