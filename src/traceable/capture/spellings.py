"""How others write "steps 10 to 30", as windows of ours. docs/windows.md has the table and where each meaning is from.

Each function takes the arguments by the names that the other tool gives them. Steps are those of one process, counted
from 0: a loop that goes on from a checkpoint at iteration 1000 counts its first step 0 here, and 1000 in Megatron.
"""

from __future__ import annotations

from traceable.protocol.window_spec import PeriodicWindows, Spec, Window


def from_vllm(delay_iterations: int = 0, max_iterations: int = 0) -> Spec:
    """Return the steps that vLLM's worker records after `start_profile`, counted from that request.

    The step numbered `delay_iterations` from 1 on is the first that is recorded, so a delay of 0 and of 1 are the same.

    Args:
        delay_iterations, max_iterations: as in vLLM's `ProfilerConfig`.

    Raises:
        ValueError: `max_iterations` is 0: such a recording ends with `stop_profile`, which no number of steps says.
    """
    if max_iterations <= 0:
        raise ValueError("max_iterations must be at least 1: 0 records until stop_profile")
    first = max(delay_iterations - 1, 0)
    return Spec([Window(first, first + max_iterations)])


def from_sglang(start_step: int, num_steps: int) -> Spec:
    """Return the steps that SGLang records on `POST /start_profile` with both numbers, if asked before `start_step`.

    SGLang numbers forward batches from 1.

    Raises:
        ValueError: one of them is below 1.
    """
    if start_step < 1 or num_steps < 1:
        raise ValueError("start_step and num_steps must be at least 1: without them SGLang counts from the request")
    return Spec([Window(start_step - 1, start_step - 1 + num_steps)])


def from_tensorrt_llm(iterations: str) -> Spec:
    """Return the steps of `TLLM_PROFILE_START_STOP`: `A-B` with B included, `A` for one step, several with commas.

    Raises:
        ValueError: it is not of this form.

    Examples:
        >>> str(from_tensorrt_llm("100-150,200"))
        '100:151,200:201'
    """
    windows = []
    for part in iterations.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{part[:40]!r} is neither A nor A-B")
        windows.append(Window(int(first), int(last if dash else first) + 1))
    return Spec(windows)


def from_megatron(profile_step_start: int, profile_step_end: int) -> Spec:
    """Return the steps of Megatron-LM's `--profile-step-start` and `--profile-step-end`: half-open, as ours."""
    return Spec([Window(profile_step_start, profile_step_end)])


def from_nemo(start_step: int, end_step: int) -> Spec:
    """Return the steps of NeMo 2.0's `NsysCallback`, in global batches.

    The callback starts when `start_step` optimizer steps are complete and stops at the end of the batch that completes
    the `end_step`th, so it records `start_step` until before `end_step`. With both equal and one batch a step, it never
    stops: that is refused here.

    Raises:
        ValueError: `end_step` is not above `start_step`.
    """
    if end_step <= start_step:
        raise ValueError("end_step must be above start_step: NeMo 2.0 does not stop a recording of equal ones")
    return Spec([Window(start_step, end_step)])


def from_nemo_1(start_step: int, end_step: int) -> Spec:
    """Return the steps of NeMo 1.0's `nsys_profile` section, where `end_step` is recorded too."""
    return Spec([Window(start_step, end_step + 1)])


def from_torch_schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Spec:
    """Return the steps that `torch.profiler.schedule` records, its warm-up left out. Arguments as there.

    Examples:
        >>> str(from_torch_schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=10))
        '12:14,16:18'
        >>> str(from_torch_schedule(wait=1, warmup=1, active=3))
        'every:5:3:2'
    """
    period = wait + warmup + active
    first = skip_first + warmup + (0 if skip_first_wait else wait)
    if not repeat:
        return Spec(every=PeriodicWindows(period, active, first))
    return Spec([Window(first + period * i, first + period * i + active) for i in range(repeat)])
