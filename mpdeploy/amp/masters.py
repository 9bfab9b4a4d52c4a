"""FP32 master weights: the model holds and computes with low-precision weights, the optimizer updates FP32 ones.

An update smaller than half an ulp of a BF16 or FP16 weight would round away; in the FP32 master it adds up.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from mpdeploy.amp.weights import LowWeight, MasterWeight
from mpdeploy.errors import UsageError

# Their few weights scale and shift what the statistics were taken of; torch's kernels take them in FP32 beside
# a low-precision input, and nothing is gained by rounding them.
KEPT_FP32 = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


@dataclass(eq=False)
class Pair:
    """A low-precision parameter of the model and its FP32 master.

    ``low_in_step`` and ``master_in_step`` are what torch's counters said when they last agreed.
    """

    low: LowWeight
    master: MasterWeight
    low_in_step: tuple[int, int] = (0, 0)
    master_in_step: tuple[int, int] = (0, 0)

    @property
    def low_moved(self) -> bool:
        """Whether the low weight was written to since, except through ``data``."""
        return _stamp(self.low) != self.low_in_step

    @property
    def master_moved(self) -> bool:
        """Whether the master was written to since, or may have been."""
        return self.master.exposed or _stamp(self.master) != self.master_in_step

    def note_agreement(self) -> None:
        """Take note that the two agree."""
        self.low.cover()
        self.master.cover()
        self.low_in_step, self.master_in_step = _stamp(self.low), _stamp(self.master)


def _stamp(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor._version, tensor.data_ptr()


class MasterWeights:
    """The pairs of a low-precision parameter of the model and its FP32 master in the optimizer.

    Making one converts the model: parameters that an optimizer holds, except those that stay FP32, become ``dtype``,
    and the optimizers' groups hold FP32 masters in their place, with options and any state kept.  Parameters that
    were ``dtype`` before get masters all the same.  Buffers, frozen parameters and those that no optimizer knows stay
    as they are.  Without ``dtype`` there are no pairs.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], dtype: torch.dtype | None, to_round: Sequence[nn.Parameter]
    ) -> None:
        self._optimizers, self._dtype = optimizers, dtype
        self._pairs: list[Pair] = []
        self._by_parameter: dict[int, Pair] = {}
        self._moved = False
        if dtype is None:
            return
        # Of an earlier engine, whose optimizer this may be.
        behind = {id(p.master): p for p in to_round if isinstance(p, LowWeight) and p.master is not None}
        self._split({id(parameter) for parameter in to_round}, behind)
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._note_move)

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    def master_of(self, parameter: _Tensor) -> _Tensor | nn.Parameter:
        """Return the FP32 tensor that the optimizer updates for this parameter of the model, itself if no other."""
        pair = self._by_parameter.get(id(parameter))
        return pair.master if pair else parameter

    @property
    def stand_ins(self) -> dict[int, nn.Parameter]:
        """The masters by the ids of the model's parameters that they stand behind."""
        return {key: pair.master for key, pair in self._by_parameter.items()}

    def publish(self) -> None:
        """Round the masters into the model's low-precision parameters."""
        self._moved = False
        self._round(self._pairs)

    def refresh(self) -> None:
        """Carry what was edited since they last agreed to the other side; where both were, the model's side counts."""
        edited = [pair for pair in self._pairs if pair.low.exposed or pair.low_moved or pair.master_moved]
        for pair in edited:
            _take_over(pair, optimizer_moved=self._moved)
        if self._moved:
            self.publish()
        else:
            self._round(edited)  # no others: a graph of an earlier forward pass may still need them as they are

    def show(self) -> None:
        """Round masters that moved into weights that nobody edited, for an evaluation: edits may be undone after it."""
        untouched = [pair for pair in self._pairs if not (pair.low.exposed or pair.low_moved)]
        self._round([pair for pair in untouched if pair.master_moved or self._moved])

    def admit(self, names: Callable[[], dict[int, str]]) -> None:
        """Make masters for low-precision weights that came to the optimizers, or were unfrozen, after the making.

        Raises ``UsageError`` for one of another format, or where there are no masters.
        """
        news = [p for p in self._strangers() if p.requires_grad]
        for parameter in news:
            if parameter.dtype != self._dtype:
                name = names().get(id(parameter), "outside the model")
                raise UsageError(
                    f"the weight `{name}` came to the optimizer in {parameter.dtype}: its updates would round away",
                    remedy="convert it with .float() before add_param_group() or requires_grad_()",
                )
        if news:
            self._split({id(parameter) for parameter in news}, {})

    def refuse_replaced(self, held: Collection[int]) -> None:
        """Raise ``UsageError`` if the model does not hold a parameter of these any more; ``held`` are ids."""
        for pair in self._pairs:
            if id(pair.low) not in held:
                raise UsageError(
                    f"a weight of shape {list(pair.low.shape)} that the engine trains is no longer in the model",
                    remedy="change the model before making the optimizer and the engine, and load without assign=True",
                )
            if pair.low.dtype != self._dtype or pair.low.device != pair.master.device:
                raise UsageError(
                    "the model was converted or moved after the engine was made, its masters were not",
                    remedy="convert or move it before making the optimizer and the engine; full_precision() lends "
                    "the FP32 weights",
                )

    def _strangers(self) -> Iterator[nn.Parameter]:
        """Yield low-precision parameters that an optimizer holds itself."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.is_floating_point() and parameter.dtype.itemsize < torch.float32.itemsize:
                        yield parameter

    def _split(self, low: Collection[int], behind: Mapping[int, LowWeight]) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for place, parameter in enumerate(group["params"]):
                    if id(parameter) in behind:
                        self._pair(behind[id(parameter)], parameter)
                    elif id(parameter) in low:
                        group["params"][place] = self._master_for(parameter, optimizer)

    def _master_for(self, parameter: nn.Parameter, optimizer: Optimizer) -> nn.Parameter:
        pair = self._by_parameter.get(id(parameter))  # of another optimizer that moves it, too
        if pair is None:
            master = nn.Parameter(parameter.detach().to(torch.float32, copy=True))
            parameter.grad = None
            parameter.data = parameter.data.to(self._dtype)
            pair = self._pair(parameter, master)
        elif any(pair.master is held for group in optimizer.param_groups for held in group["params"]):
            raise UsageError("a weight is twice in one optimizer", remedy="add each parameter to one group")
        if parameter in optimizer.state:
            optimizer.state[pair.master] = optimizer.state.pop(parameter)
        return pair.master

    def _pair(self, parameter: nn.Parameter, master: nn.Parameter) -> Pair:
        pair = Pair(LowWeight.made_of(parameter), MasterWeight.made_of(master))
        pair.low.master = pair.master
        self._pairs.append(pair)
        self._by_parameter[id(parameter)] = pair
        pair.note_agreement()
        return pair

    @torch.no_grad()
    def _round(self, pairs: Sequence[Pair]) -> None:
        if pairs:
            torch._foreach_copy_([pair.low for pair in pairs], [pair.master for pair in pairs])
            for pair in pairs:
                pair.note_agreement()

    def _note_move(self, *_: object) -> None:
        self._moved = True  # fused steps leave no trace in the counters


@torch.no_grad()
def _take_over(pair: Pair, *, optimizer_moved: bool) -> None:
    """Give the master the values that somebody gave the low weight; what only rounding tells apart stays."""
    low, master = pair.low.detach(), pair.master
    if low.shape != master.shape:
        raise UsageError(
            f"a weight of shape {list(master.shape)} now has the shape {list(low.shape)}",
            remedy="change the model before making the optimizer and the engine",
        )
    if pair.low_moved:
        before = master.to(low.dtype)
    elif pair.low.before is not None:
        before = pair.low.before
    elif pair.low.exposed and not (pair.master_moved or optimizer_moved):
        before = master.to(low.dtype)
    else:
        return
    master.copy_(torch.where(low != before, low.float(), master))


def round_weights(to_round: Sequence[nn.Parameter], optimizers: Sequence[Optimizer], dtype: torch.dtype) -> None:
    """Make weights ``dtype``, and with them the optimizers' state; no masters."""
    for parameter in to_round:
        parameter.grad = None
        parameter.data = parameter.data.to(dtype)
    for optimizer in optimizers:
        optimizer.load_state_dict(optimizer.state_dict())  # casts what it holds to its parameters' dtypes


def weights_to_round(model: nn.Module, fp32: Collection[nn.Module]) -> list[nn.Parameter]:
    """Return the weights that a level with low-precision weights rounds.

    Those of normalisation layers and of the modules in ``fp32`` are made FP32, in case the whole model was given in
    low precision.  Those in FP64 stay as they are: autocast, too, leaves them alone.
    """
    kept = set()
    for module in model.modules():
        if isinstance(module, KEPT_FP32) or module in fp32:
            for parameter in module.parameters(recurse=False):
                if parameter.is_floating_point() and parameter.dtype != torch.float64:
                    parameter.data = parameter.data.float()
                kept.add(id(parameter))
    rounded = [p for p in model.parameters() if p.is_floating_point() and p.dtype != torch.float64]
    return [p for p in rounded if p.requires_grad and id(p) not in kept]


def repack(model: nn.Module) -> None:
    """Put the weights of recurrent modules side by side again, as cuDNN wants them; does nothing on a CPU."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
