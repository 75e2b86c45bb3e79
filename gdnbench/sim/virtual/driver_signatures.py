# SPDX-License-Identifier: Apache-2.0
"""The functions of the CUDA driver API (CUDA Driver API reference, version 13.0), as C calls them.

A row of `SERVED` has the symbols of one function of libcuda, then its parameters in C's order:

    cuMemAlloc_v2: out CUdeviceptr, size_t

`out` is the address of a result. `-` is a parameter that changes nothing on the virtual GPU, such as a flag,
and `stream` a stream that is waited for in any case: everything runs at once. `text` is the address of a
string, `image` that of PTX, `host` an address of the host's memory, and `address` that of a structure or an
array; `x7` repeats a parameter. A symbol with `@N` is found by cuGetProcAddress for programs of CUDA version
N or later.

Imports next to nothing: it is read when Python starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

SERVED = """
cuInit: -
cuDriverGetVersion: out int
cuGetErrorName: int, out char*
cuGetErrorString: int, out char*
cuGetProcAddress: text, out void*, int, -
cuGetProcAddress_v2@12000: text, out void*, int, -, out int

cuDeviceGetCount: out int
cuDeviceGet: out CUdevice, int
cuDeviceGetName: address, int, CUdevice
cuDeviceGetUuid cuDeviceGetUuid_v2: address, CUdevice
cuDeviceGetPCIBusId: address, int, CUdevice
cuDeviceGetAttribute: out int, int, CUdevice
cuDeviceTotalMem_v2: out size_t, CUdevice
cuDeviceComputeCapability: out int, out int, CUdevice
cuDeviceCanAccessPeer: out int, CUdevice, int
cuDevicePrimaryCtxRetain: out CUcontext, CUdevice
cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2: CUdevice
cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2: CUdevice
cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2: CUdevice, -
cuDevicePrimaryCtxGetState: CUdevice, out unsigned, out int
cuDeviceGetDefaultMemPool: out CUmemoryPool, CUdevice
cuDeviceGetMemPool: out CUmemoryPool, CUdevice
cuDeviceSetMemPool: CUdevice, -

cuCtxCreate cuCtxCreate_v2: out CUcontext, -, -
cuCtxCreate_v3@11040: out CUcontext, -, -, -, -
cuCtxCreate_v4@13000: out CUcontext, -, -, -
cuCtxDestroy cuCtxDestroy_v2: -
cuCtxGetCurrent: out CUcontext
cuCtxSetCurrent: -
cuCtxPushCurrent cuCtxPushCurrent_v2: -
cuCtxPopCurrent cuCtxPopCurrent_v2: out CUcontext
cuCtxSynchronize:
cuCtxGetDevice: out CUdevice
cuCtxGetFlags: out unsigned
cuCtxGetId: -, out uint64
cuCtxGetLimit: out size_t, int
cuCtxSetLimit: int, size_t
cuCtxGetCacheConfig: out int
cuCtxSetCacheConfig: -
cuCtxGetStreamPriorityRange: out int, out int

cuModuleLoad: out CUmodule, text
cuModuleLoadData: out CUmodule, image
cuModuleLoadDataEx: out CUmodule, image, -, -, -
cuModuleLoadFatBinary: out CUmodule, image
cuModuleUnload: CUmodule
cuModuleGetLoadingMode: out int
cuModuleGetFunction: out CUfunction, CUmodule, text
cuModuleGetFunctionCount: out unsigned, CUmodule
cuModuleEnumerateFunctions: address, unsigned, CUmodule
cuModuleGetGlobal_v2: out CUdeviceptr, out size_t, CUmodule, text
cuLibraryLoadData: out CUlibrary, image, -, -, -, -, -, -
cuLibraryLoadFromFile: out CUlibrary, text, -, -, -, -, -, -
cuLibraryUnload: CUlibrary
cuLibraryGetKernel: out CUkernel, CUlibrary, text
cuLibraryGetKernelCount: out unsigned, CUlibrary
cuLibraryEnumerateKernels: address, unsigned, CUlibrary
cuLibraryGetModule: out CUmodule, CUlibrary
cuLibraryGetGlobal: out CUdeviceptr, out size_t, CUlibrary, text
cuKernelGetFunction: out CUfunction, CUkernel
cuKernelGetLibrary: out CUlibrary, CUkernel
cuKernelGetName: out char*, CUkernel
cuKernelGetAttribute: out int, int, CUkernel, -
cuKernelSetAttribute: int, int, CUkernel, -
cuKernelSetCacheConfig: CUkernel, -, -
cuKernelGetParamInfo: CUkernel, size_t, out size_t, out size_t
cuKernelGetParamCount: CUkernel, out size_t
cuFuncGetModule: out CUmodule, CUfunction
cuFuncGetName: out char*, CUfunction
cuFuncGetAttribute: out int, int, CUfunction
cuFuncSetAttribute: CUfunction, int, int
cuFuncSetCacheConfig: CUfunction, -
cuFuncSetSharedMemConfig: CUfunction, -
cuFuncGetParamInfo: CUfunction, size_t, out size_t, out size_t
cuFuncGetParamCount: CUfunction, out size_t
cuFuncIsLoaded: out int, CUfunction
cuFuncLoad: CUfunction
cuLaunchKernel: CUfunction, unsigned x7, stream, address, address
cuLaunchKernelEx: address, CUfunction, address, address
cuLaunchHostFunc: stream, address, address
cuStreamAddCallback: CUstream, address, address, -
cuOccupancyMaxActiveBlocksPerMultiprocessor: out int, CUfunction, int, size_t
cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: out int, CUfunction, int, size_t, -
cuOccupancyMaxActiveClusters: out int, CUfunction, address
cuOccupancyMaxPotentialClusterSize: out int, CUfunction, address
cuTensorMapEncodeTiled: address, int, unsigned, address x5, int x4
cuTensorMapReplaceAddress: address, address

cuMemAlloc_v2: out CUdeviceptr, size_t
cuMemAllocAsync: out CUdeviceptr, size_t, stream
cuMemAllocFromPoolAsync: out CUdeviceptr, size_t, -, stream
cuMemAllocManaged: out CUdeviceptr, size_t, -
cuMemFree_v2: CUdeviceptr
cuMemFreeAsync: CUdeviceptr, stream
cuMemAllocHost_v2: out void*, size_t
cuMemHostAlloc: out void*, size_t, -
cuMemFreeHost: host
cuMemHostRegister cuMemHostRegister_v2: host, size_t, -
cuMemHostUnregister: host
cuMemHostGetDevicePointer_v2: out CUdeviceptr, host, -
cuMemGetInfo_v2: out size_t, out size_t
cuMemGetAddressRange_v2: out CUdeviceptr, out size_t, CUdeviceptr
cuMemAdvise_v2@12020: -, -, -, -
cuMemPrefetchAsync_v2@12020: -, -, -, -, stream
cuMemAdvise: -, -, -, -
cuMemPrefetchAsync: -, -, -, stream
cuMemPoolCreate: out CUmemoryPool, -
cuMemPoolDestroy: CUmemoryPool
cuMemPoolTrimTo: CUmemoryPool, -
cuMemPoolSetAccess: CUmemoryPool, -, -
cuMemPoolSetAttribute: CUmemoryPool, int, address
cuMemPoolGetAttribute: CUmemoryPool, int, address
cuPointerGetAttribute: address, int, CUdeviceptr
cuPointerGetAttributes: unsigned, address, address, CUdeviceptr
cuPointerSetAttribute: -, -, -
cuMemcpy: CUdeviceptr, CUdeviceptr, size_t
cuMemcpyAsync: CUdeviceptr, CUdeviceptr, size_t, stream
cuMemcpyHtoD_v2: CUdeviceptr, host, size_t
cuMemcpyHtoDAsync_v2: CUdeviceptr, host, size_t, stream
cuMemcpyDtoH_v2: host, CUdeviceptr, size_t
cuMemcpyDtoHAsync_v2: host, CUdeviceptr, size_t, stream
cuMemcpyDtoD_v2: CUdeviceptr, CUdeviceptr, size_t
cuMemcpyDtoDAsync_v2: CUdeviceptr, CUdeviceptr, size_t, stream
cuMemcpy2D_v2: address
cuMemcpy2DUnaligned_v2: address
cuMemcpy2DAsync_v2: address, stream
cuMemsetD8_v2: CUdeviceptr, uint8, size_t
cuMemsetD16_v2: CUdeviceptr, uint16, size_t
cuMemsetD32_v2: CUdeviceptr, unsigned, size_t
cuMemsetD8Async: CUdeviceptr, uint8, size_t, stream
cuMemsetD16Async: CUdeviceptr, uint16, size_t, stream
cuMemsetD32Async: CUdeviceptr, unsigned, size_t, stream
cuMemsetD2D8_v2: CUdeviceptr, size_t, uint8, size_t, size_t
cuMemsetD2D16_v2: CUdeviceptr, size_t, uint16, size_t, size_t
cuMemsetD2D32_v2: CUdeviceptr, size_t, unsigned, size_t, size_t
cuMemsetD2D8Async: CUdeviceptr, size_t, uint8, size_t, size_t, stream
cuMemsetD2D16Async: CUdeviceptr, size_t, uint16, size_t, size_t, stream
cuMemsetD2D32Async: CUdeviceptr, size_t, unsigned, size_t, size_t, stream

cuStreamCreate: out CUstream, -
cuStreamCreateWithPriority: out CUstream, -, -
cuStreamDestroy cuStreamDestroy_v2: -
cuStreamSynchronize: stream
cuStreamQuery: stream
cuStreamWaitEvent: stream, -, -
cuStreamGetPriority: stream, out int
cuStreamGetFlags: stream, out unsigned
cuStreamGetDevice: stream, out CUdevice
cuStreamGetCtx: stream, out CUcontext
cuStreamGetId: CUstream, out uint64
cuStreamIsCapturing: stream, out CUstreamCaptureStatus
cuStreamGetCaptureInfo: stream, out CUstreamCaptureStatus, out uint64
cuStreamGetCaptureInfo_v2@11030: stream, out CUstreamCaptureStatus, out uint64, -, -, -
cuStreamGetCaptureInfo_v3@12030: stream, out CUstreamCaptureStatus, out uint64, -, -, -, -
cuThreadExchangeStreamCaptureMode: -
cuEventCreate: out CUevent, -
cuEventDestroy cuEventDestroy_v2: -
cuEventRecord: CUevent, stream
cuEventRecordWithFlags: CUevent, stream, -
cuEventQuery: -
cuEventSynchronize: -
cuEventElapsedTime cuEventElapsedTime_v2: out float, CUevent, CUevent
cuProfilerStart:
cuProfilerStop:
"""

# The others, which are refused.
REFUSED = """
cuArray3DCreate cuArray3DCreate_v2 cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayCreate
cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor cuArrayGetDescriptor_v2 cuArrayGetMemoryRequirements
cuArrayGetPlane cuArrayGetSparseProperties cuCheckpointOperationComplete cuCheckpointProcessCheckpoint
cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState cuCheckpointProcessLock
cuCheckpointProcessRestore cuCheckpointProcessUnlock cuCoredumpDeregisterCompleteCallback
cuCoredumpDeregisterStartCallback cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal
cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback cuCoredumpSetAttribute
cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxDetach cuCtxDisablePeerAccess cuCtxEnablePeerAccess
cuCtxFromGreenCtx cuCtxGetApiVersion cuCtxGetDevResource cuCtxGetDevice_v2 cuCtxGetExecAffinity
cuCtxGetSharedMemConfig cuCtxRecordEvent cuCtxResetPersistingL2Cache cuCtxSetFlags cuCtxSetSharedMemConfig
cuCtxSynchronize_v2 cuCtxWaitEvent cuDestroyExternalMemory cuDestroyExternalSemaphore
cuDevResourceGenerateDesc cuDevSmResourceSplit cuDevSmResourceSplitByCount cuDeviceGetByPCIBusId
cuDeviceGetCliqueCount cuDeviceGetCliqueInfo cuDeviceGetDevResource cuDeviceGetExecAffinitySupport
cuDeviceGetFabricClusterUuid cuDeviceGetGraphMemAttribute cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid
cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute
cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGraphMemTrim
cuDeviceRegisterAsyncNotification cuDeviceSetGraphMemAttribute cuDeviceTotalMem
cuDeviceUnregisterAsyncNotification cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
cuFabricCpyBatchAsync cuFlushGPUDirectRDMAWrites cuFuncSetBlockShape cuFuncSetSharedSize cuGetExportTable
cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddDependencies_v2
cuGraphAddEmptyNode cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddKernelNode_v2
cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode
cuGraphAddNode_v2 cuGraphAddNode_v3 cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphConditionalHandleCreate cuGraphCreate cuGraphDebugDotPrint
cuGraphDestroy cuGraphDestroyNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent cuGraphExecBatchMemOpNodeSetParams
cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy cuGraphExecEventRecordNodeSetEvent
cuGraphExecEventWaitNodeSetEvent cuGraphExecExternalSemaphoresSignalNodeSetParams
cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags cuGraphExecGetId
cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate
cuGraphExecUpdate_v2 cuGraphExternalSemaphoresSignalNodeGetParams
cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetId cuGraphGetNodes
cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphInstantiate
cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphInstantiate_v2
cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams
cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams
cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams
cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams
cuGraphNodeFindInClone cuGraphNodeGetContainingGraph cuGraphNodeGetDependencies
cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2
cuGraphNodeGetEnabled cuGraphNodeGetLocalId cuGraphNodeGetParams cuGraphNodeGetToolsId cuGraphNodeGetType
cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphNodeSetParams_v2 cuGraphReleaseUserObject
cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 cuGraphRetainUserObject cuGraphUpload
cuGraphicsMapResources cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer
cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2
cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnregisterResource cuGreenCtxCreate
cuGreenCtxDestroy cuGreenCtxGetDevResource cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxStreamCreate
cuGreenCtxWaitEvent cuImportExternalMemory cuImportExternalSemaphore cuIpcCloseMemHandle cuIpcGetEventHandle
cuIpcGetMemHandle cuIpcOpenEventHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuLaunch
cuLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice cuLaunchGrid cuLaunchGridAsync
cuLaunchHostFunc_v2 cuLibraryGetManaged cuLibraryGetUnifiedFunction cuLinkAddData cuLinkAddData_v2
cuLinkAddFile cuLinkAddFile_v2 cuLinkComplete cuLinkCreate cuLinkCreate_v2 cuLinkDestroy
cuLogicalEndpointAddDevice cuLogicalEndpointBindAddr cuLogicalEndpointBindMem cuLogicalEndpointCreate
cuLogicalEndpointDestroy cuLogicalEndpointExport cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease
cuLogicalEndpointIdReserve cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind
cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback
cuMemAddressFree cuMemAddressReserve cuMemAlloc cuMemAllocHost cuMemAllocPitch cuMemAllocPitch_v2
cuMemBatchDecompressAsync cuMemCreate cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync
cuMemExportToShareableHandle cuMemFree cuMemGetAccess cuMemGetAddressRange cuMemGetAllocationGranularity
cuMemGetAllocationPropertiesFromHandle cuMemGetDefaultMemPool cuMemGetHandleForAddressRange cuMemGetInfo
cuMemGetLocationInfo cuMemGetMemPool cuMemHostGetDevicePointer cuMemHostGetFlags
cuMemImportFromShareableHandle cuMemMap cuMemMapArrayAsync cuMemPoolExportPointer
cuMemPoolExportToShareableHandle cuMemPoolGetAccess cuMemPoolImportFromShareableHandle
cuMemPoolImportPointer cuMemPrefetchBatchAsync cuMemRangeGetAttribute cuMemRangeGetAttributes cuMemRelease
cuMemRetainAllocationHandle cuMemSetAccess cuMemSetMemPool cuMemUnmap cuMemcpy2D cuMemcpy2DAsync
cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpy3DAsync_v2 cuMemcpy3DBatchAsync
cuMemcpy3DBatchAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3DWithAttributesAsync cuMemcpy3D_v2
cuMemcpyAtoA cuMemcpyAtoA_v2 cuMemcpyAtoD cuMemcpyAtoD_v2 cuMemcpyAtoH cuMemcpyAtoHAsync
cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyBatchAsync cuMemcpyBatchAsync_v2 cuMemcpyDtoA cuMemcpyDtoA_v2
cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync
cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2 cuMemcpyHtoD cuMemcpyHtoDAsync cuMemcpyPeer cuMemcpyPeerAsync
cuMemcpyWithAttributesAsync cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8
cuMipmappedArrayCreate cuMipmappedArrayDestroy cuMipmappedArrayGetLevel
cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties cuModuleGetGlobal
cuModuleGetSurfRef cuModuleGetTexRef cuMulticastAddDevice cuMulticastBindAddr cuMulticastBindAddr_v2
cuMulticastBindMem cuMulticastBindMem_v2 cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind
cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxPotentialBlockSize
cuOccupancyMaxPotentialBlockSizeWithFlags cuParamSetSize cuParamSetTexRef
cuParamSetf cuParamSeti cuParamSetv cuSignalExternalSemaphoresAsync cuStreamAttachMemAsync
cuStreamBatchMemOp cuStreamBatchMemOp_v2 cuStreamBeginCapture cuStreamBeginCaptureToCig
cuStreamBeginCaptureToGraph cuStreamBeginCapture_v2 cuStreamBeginRecaptureToGraph cuStreamCopyAttributes
cuStreamEndCapture cuStreamEndCaptureToCig cuStreamGetAttribute cuStreamGetCtx_v2 cuStreamGetDevResource
cuStreamGetGreenCtx cuStreamSetAttribute cuStreamUpdateCaptureDependencies
cuStreamUpdateCaptureDependencies_v2 cuStreamWaitValue32 cuStreamWaitValue32_v2 cuStreamWaitValue64
cuStreamWaitValue64_v2 cuStreamWriteValue32 cuStreamWriteValue32_v2 cuStreamWriteValue64
cuStreamWriteValue64_v2 cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuSurfRefGetArray
cuSurfRefSetArray cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide cuTensorMapSetAllocationClass
cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
cuTexObjectGetTextureDesc cuTexRefCreate cuTexRefDestroy cuTexRefGetAddress cuTexRefGetAddressMode
cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode cuTexRefGetFlags
cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetAddress cuTexRefSetAddress2D
cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2
cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat
cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp
cuTexRefSetMipmappedArray cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain
cuWaitExternalSemaphoresAsync
"""

_SUFFIXED = re.compile(r"_v\d+$")


class Parameter(NamedTuple):
    """A parameter: its type as in a row, and whether it is the address of a result."""

    kind: str
    out: bool


class Symbol(NamedTuple):
    """A symbol of libcuda: the `function` of the API that it is, without a version; `since` which CUDA
    version cuGetProcAddress finds it."""

    name: str
    function: str
    since: int
    parameters: tuple[Parameter, ...]


def _symbols() -> dict[str, Symbol]:
    found: dict[str, Symbol] = {}
    for row in filter(None, SERVED.split("\n")):
        names, _, text = row.partition(":")
        parameters = parameters_of(text)
        for named in names.split():
            name, _, since = named.partition("@")
            function = _SUFFIXED.sub("", name)
            for symbol in (name, *_per_thread(name, parameters)):
                found[symbol] = Symbol(symbol, function, int(since or 0), parameters)
    return found


def parameters_of(text: str) -> tuple[Parameter, ...]:
    """The parameters of a row, after its colon."""
    return tuple(_parameters(text))


def _parameters(text: str) -> Iterator[Parameter]:
    for kind in filter(None, map(str.strip, text.split(","))):
        kind, _, count = kind.partition(" x")
        yield from [Parameter(kind.removeprefix("out "), kind.startswith("out "))] * int(count or 1)


def _per_thread(name: str, parameters: tuple[Parameter, ...]) -> list[str]:
    """The symbol of a function for programs that are compiled for a default stream of each thread."""
    if any(parameter.kind in ("stream", "CUstream") for parameter in parameters):
        return [f"{name}_ptsz"]
    return [f"{name}_ptds"] if name.startswith(("cuMemcpy", "cuMemset")) else []


SYMBOLS = _symbols()
REFUSED_SYMBOLS = tuple(name for name in REFUSED.split() if name not in SYMBOLS)


def symbol_of(function: str, version: int) -> str | None:
    """The symbol that a program of a CUDA version, such as 12080, means by the name of a function; None for a
    function that there is not."""
    served = [one for one in SYMBOLS.values() if one.function == function and one.since <= version]
    if served:
        newest = max(served, key=lambda one: (one.since, one.name.count("_pt") == 0, one.name))
        return newest.name
    return function if function in SYMBOLS or function in REFUSED_SYMBOLS else None
