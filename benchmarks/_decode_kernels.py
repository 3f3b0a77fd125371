"""The kernels of the synthetic decode server, and which of them a layer launches in which order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel in one geometry; `duration` in ns."""

    name: str
    short_name: str
    duration: float
    grid: tuple[int, int, int]
    block: int
    registers: int
    static_shared: int = 0
    dynamic_shared: int = 0
    driver: bool = False


def make_kernels(batch: int) -> dict[str, Kernel]:
    """Return the kernels of one batch size by what they are for."""
    rows = 64 * batch
    loop = "at::native::vectorized_elementwise_kernel"
    gemm = "cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_{}_tn_align8>(T1::Params)"
    norm = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, long, T1 *, const T1 *, float, int, int)"
    flash = (
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, (int)4, (bool)0, "
        "(bool)0, cutlass::bfloat16_t, Flash_kernel_traits<(int)128, (int)64, (int)128, (int)4, "
        "cutlass::bfloat16_t>>, (bool)1, (bool)0, (bool)0, (bool)0, (bool)1, (bool)1, (bool)0>(Flash_fwd_params)"
    )
    combine = (
        "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)128, (int)64, (int)128, (int)4, "
        "(bool)0, (bool)0, cutlass::bfloat16_t>, (int)4, (int)5, (bool)1>(Flash_fwd_params)"
    )
    return {
        "embed": Kernel(
            "void at::native::<unnamed>::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, (int)2, (int)2, "
            "(int)-2>(at::cuda::detail::TensorInfo<T1, T3>, long)",
            "indexSelectSmallIndex", 2600, (rows, 1, 1), 128, 32,
        ),
        "norm": Kernel(norm, "fused_add_rms_norm_kernel", 2900, (rows, 1, 1), 1024, 24, 36),
        "qkv": Kernel(gemm.format("128x128_64x3"), "Kernel2", 14500, (48, batch, 1), 256, 234, 0, 98304, True),
        "rope": Kernel(
            "void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *, T1 *, const T1 *, int, "
            "long, long, int, int, int)",
            "rotary_embedding_kernel", 2300, (rows, 1, 1), 512, 30,
        ),
        "cache": Kernel(
            "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>"
            "(const T1 *, const T1 *, T2 *, T2 *, const long *, long, long, long, int, int, int, const float *)",
            "reshape_and_cache_flash_kernel", 2100, (rows, 1, 1), 512, 22,
        ),
        "flash": Kernel(flash, "flash_fwd_splitkv_kernel", 16800, (1, 8, 8 * batch), 128, 255, 0, 81920),
        "combine": Kernel(combine, "flash_fwd_splitkv_combine_kernel", 3300, (32 * batch, 1, 1), 128, 48, 4160),
        "output": Kernel(gemm.format("64x64_128x4"), "Kernel2", 10200, (64, batch, 1), 128, 168, 0, 65536, True),
        "add": Kernel(
            f"void {loop}<(int)4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char *, (unsigned long)3>>"
            "(int, T2, T3)",
            "vectorized_elementwise_kernel", 1900, (rows // 2, 1, 1), 128, 18,
        ),
        "gate_up": Kernel(gemm.format("256x128_64x3"), "Kernel2", 27500, (86, batch, 1), 256, 238, 0, 147456, True),
        "silu": Kernel(
            "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>"
            "(T1 *, const T1 *, int)",
            "act_and_mul_kernel", 3100, (rows, 1, 1), 1024, 26,
        ),
        "down": Kernel(gemm.format("64x128_64x6"), "Kernel2", 16100, (32, batch, 2), 128, 210, 0, 98304, True),
        "reduce": Kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 13500, (16, 1, 1), 512, 96, 0, 82240,
        ),
        "head": Kernel(gemm.format("128x256_64x3"), "Kernel2", 58000, (501, batch, 1), 256, 236, 0, 147456, True),
        "softmax": Kernel(
            "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, "
            "at::native::<unnamed>::SoftMaxForwardEpilogue>(T4 *, const T2 *, int)",
            "cunn_SoftMaxForward", 8200, (4 * batch, 1, 1), 1024, 30, 0, 4096,
        ),
        "argmax": Kernel(
            "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, "
            "at::native::ArgMaxOps<float>, unsigned int, long, (int)4, (int)4>>(T3)",
            "reduce_kernel", 11400, (1, 4 * batch, 1), 512, 38, 16384,
        ),
        "grad_gemm": Kernel(
            "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nt",
            "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nt",
            24500, (32, 8 * batch, 1), 256, 230, 0, 98304,
        ),
        "grad_attention": Kernel(
            "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<(int)128, (int)64, (int)128, "
            "(int)8, (int)2, (int)4, (int)2, (bool)0, (bool)0, cutlass::bfloat16_t>, (bool)0, (bool)1>"
            "(Flash_bwd_params)",
            "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", 41000, (4, 1, 32 * batch), 256, 255, 0, 147456,
        ),
        "adam": Kernel(
            "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)4>, "
            "at::native::<unnamed>::FusedAdamMathFunctor<float, (int)4, (at::native::ADAM_MODE)0, (bool)0>, float>"
            "(T1, T2, T3)",
            "multi_tensor_apply_kernel", 36500, (320, 1, 1), 512, 62,
        ),
    }  # fmt: skip


BATCHES = (1, 8)
"""The batch sizes that a graph is captured for."""

ATTENTION = ("norm", "qkv", "rope", "cache", "flash", "combine", "output", "add")
MLP = ("norm", "gate_up", "silu", "down")
BACKWARD = ("grad_gemm", "grad_gemm", "add", "grad_attention", "grad_gemm", "grad_gemm", "norm", "add")
