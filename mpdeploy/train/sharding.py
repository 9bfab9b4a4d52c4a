"""FSDP2: a model whose parameters are spread over the processes."""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from mpdeploy.amp.dtypes import TORCH_DTYPES
from mpdeploy.amp.fp32_modules import Fp32Modules
from mpdeploy.amp.levels import AmpConfig
from mpdeploy.amp.masters import KEPT_FP32


def shard(model: nn.Module, config: AmpConfig) -> None:
    """Shard the model's parameters in place.

    The shards stay FP32.  At a level with master weights each pass gathers them in the level's low format, except
    those of normalisation layers and of modules that compute in FP32, and reduces gradients in FP32; at other levels
    it gathers FP32.
    """
    if config.master_weights:
        low = MixedPrecisionPolicy(
            param_dtype=TORCH_DTYPES[config.weights], reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        whole = MixedPrecisionPolicy(cast_forward_inputs=False)
        for module in model.modules():
            if isinstance(module, KEPT_FP32):
                fully_shard(module, mp_policy=whole)
        for module in Fp32Modules(model, config.fp32_modules).outermost:
            for part in module if isinstance(module, nn.ModuleList) else (module,):
                if not isinstance(part, KEPT_FP32):
                    fully_shard(part, mp_policy=whole)
    else:
        low = MixedPrecisionPolicy(cast_forward_inputs=False)
    for block in _blocks(model):
        fully_shard(block, mp_policy=low)
    fully_shard(model, mp_policy=low)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated parts of a model, such as a transformer's blocks: gathered one at a time, they save memory."""
    return [block for parts in model.modules() if isinstance(parts, nn.ModuleList) for block in parts]
