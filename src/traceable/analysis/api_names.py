"""What the names and return codes of CUDA API calls mean. No times, no trace."""

from __future__ import annotations

import re

from traceable.analysis.naming import ALLOCATING, COPYING, SYNCHRONISING

KINDS = (
    *("launch", "copy", "memset", "allocation", "synchronisation"),
    *("graph", "event", "stream", "module", "other"),
)
"""What calls are for, in the order in which tables of equal totals show them."""

_KINDS = (
    ("launch", re.compile(r"cu(da)?(Launch|GraphLaunch)")),
    ("graph", re.compile(r"cu(da)?(Graph|Stream\w*Captur|ThreadExchangeStreamCaptureMode)")),
    ("synchronisation", SYNCHRONISING),
    ("event", re.compile(r"cu(da)?(Event|StreamWaitEvent|IpcGetEventHandle|IpcOpenEventHandle)")),
    ("stream", re.compile(r"cu(da)?Stream")),
    ("copy", re.compile(rf"{COPYING.pattern}|cu(da)?MemPrefetch")),
    ("memset", re.compile(r"cu(da)?Memset")),
    ("allocation", re.compile(rf"{ALLOCATING.pattern}|cu(Mipmapped)?Array(3D)?(Create|Destroy)")),
    ("module", re.compile(r"cu(Module|Library|Kernel|Link|Func|Occupancy|GetProcAddress)")),
    ("module", re.compile(r"cuda(Module|Library|Kernel|Func|Occupancy|GetFuncBySymbol|GetDriverEntryPoint|GetKernel)")),
)

NOT_READY = 600
"""What cudaEventQuery and cudaStreamQuery return while the GPU still works: an answer, not a failure."""

_ERRORS = {
    1: ("cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE"),
    2: ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"),
    3: ("cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED"),
    4: ("cudaErrorCudartUnloading", "CUDA_ERROR_DEINITIALIZED"),
    9: ("cudaErrorInvalidConfiguration", ""),
    35: ("cudaErrorInsufficientDriver", ""),
    46: ("cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    98: ("cudaErrorInvalidDeviceFunction", ""),
    100: ("cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE"),
    101: ("cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE"),
    200: ("cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE"),
    201: ("cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT"),
    205: ("cudaErrorMapBufferObjectFailed", "CUDA_ERROR_MAP_FAILED"),
    209: ("cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    214: ("cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE"),
    217: ("cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    218: ("cudaErrorInvalidPtx", "CUDA_ERROR_INVALID_PTX"),
    222: ("cudaErrorUnsupportedPtxVersion", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    304: ("cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM"),
    400: ("cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE"),
    401: ("cudaErrorIllegalState", "CUDA_ERROR_ILLEGAL_STATE"),
    500: ("cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND"),
    700: ("cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    701: ("cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    702: ("cudaErrorLaunchTimeout", "CUDA_ERROR_LAUNCH_TIMEOUT"),
    704: ("cudaErrorPeerAccessAlreadyEnabled", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"),
    705: ("cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"),
    708: ("cudaErrorSetOnActiveProcess", "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"),
    709: ("cudaErrorContextIsDestroyed", "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    710: ("cudaErrorAssert", "CUDA_ERROR_ASSERT"),
    712: ("cudaErrorHostMemoryAlreadyRegistered", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    713: ("cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    715: ("cudaErrorIllegalInstruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    716: ("cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS"),
    717: ("cudaErrorInvalidAddressSpace", "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    718: ("cudaErrorInvalidPc", "CUDA_ERROR_INVALID_PC"),
    719: ("cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED"),
    720: ("cudaErrorCooperativeLaunchTooLarge", "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"),
    800: ("cudaErrorNotPermitted", "CUDA_ERROR_NOT_PERMITTED"),
    801: ("cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED"),
    802: ("cudaErrorSystemNotReady", "CUDA_ERROR_SYSTEM_NOT_READY"),
    803: ("cudaErrorSystemDriverMismatch", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    900: ("cudaErrorStreamCaptureUnsupported", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    901: ("cudaErrorStreamCaptureInvalidated", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    905: ("cudaErrorStreamCaptureImplicit", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"),
    906: ("cudaErrorCapturedEvent", "CUDA_ERROR_CAPTURED_EVENT"),
    908: ("cudaErrorTimeout", "CUDA_ERROR_TIMEOUT"),
    910: ("cudaErrorGraphExecUpdateFailure", "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"),
    999: ("cudaErrorUnknown", "CUDA_ERROR_UNKNOWN"),
}
"""Names of return codes in the runtime and in the driver API, from driver_types.h and cuda.h of CUDA 12. The two share
their numbers since CUDA 10.1; the runtime of before numbered otherwise."""


def kind_of(name: str) -> str:
    """Return what the API call of this name is for, one of KINDS.

    Examples:
        >>> kind_of("cudaLaunchKernel"), kind_of("cuMemAllocAsync"), kind_of("cudaStreamWaitEvent")
        ('launch', 'allocation', 'event')
        >>> kind_of("cudaStreamIsCapturing"), kind_of("cudaGetDevice")
        ('graph', 'other')
    """
    return next((kind for kind, pattern in _KINDS if pattern.match(name)), "other")


def error_name(code: int, driver: bool) -> str:
    """Return the name of a return code other than success, as the runtime or the driver API calls it.

    Examples:
        >>> error_name(700, driver=False), error_name(700, driver=True), error_name(12345, driver=False)
        ('cudaErrorIllegalAddress', 'CUDA_ERROR_ILLEGAL_ADDRESS', 'error 12345')
    """
    return _ERRORS.get(code, ("", ""))[driver] or f"error {code}"
