"""What the processes of a made-up decode server do: its kernels, and the programs of its steps. No time, no files.

The model's layers are spread over the devices; each layer ends in an all-reduce on a second stream. A step runs
eagerly, replays CUDA graphs, or learns: its backward kernels are launched by a thread without ranges, as by autograd.
"""

from __future__ import annotations

from _decode_kernels import ATTENTION, BACKWARD, BATCHES, MLP, Kernel, make_kernels
from _program import (
    COMPUTE,
    CONTEXT,
    COPY,
    EVENT,
    KERNEL,
    LANES,
    MEMCPY,
    MEMSET,
    NCCL,
    STREAM,
    STREAM_WAIT,
    Allocation,
    Copy,
    Memset,
    Node,
    Program,
    Sync,
)

MAIN, AUTOGRAD, WATCHDOG, HTTP = 0, 1, 2, 3
"""The threads of a process, as the programs number them."""

DEFAULT_DOMAIN, NCCL_DOMAIN, SERVER_DOMAIN = 0, 1, 2

ASYNC_COPY, LAUNCH, DRIVER_LAUNCH = "cudaMemcpyAsync_v3020", "cudaLaunchKernel_v7000", "cuLaunchKernelEx"


class Server:
    """Writes the programs of one server; all its processes run the same ones.

    Attributes:
        kernels, copies, memsets: what the operations' `what` counts into.
    """

    def __init__(self, layers: int, devices: int) -> None:
        self.layers = layers
        self.devices = devices
        self.kernels: list[Kernel] = []
        self.copies: list[Copy] = []
        self.memsets: list[Memset] = []
        self._kernel: dict[tuple[int, str], int] = {}
        for batch in BATCHES:
            for use, kernel in make_kernels(batch).items():
                self._kernel[batch, use] = len(self.kernels)
                self.kernels.append(kernel)

    # ---- single operations

    def _put(self, program: Program, item: int, lane: int, batch: int, use: str, after: int = -1, node: int = 0) -> int:
        number = self._kernel[batch, use]
        scale = 1.0 if batch == 1 else 1.6
        return program.operation(KERNEL, item, lane, number, self.kernels[number].duration * scale, after, node)

    def _launch(self, program: Program, lane: int, batch: int, use: str, thread: int = MAIN, after: int = -1) -> int:
        if self.kernels[self._kernel[batch, use]].driver:
            program.call("cuKernelGetAttribute", 350, 1400, driver=True, thread=thread)
            item = program.call(DRIVER_LAUNCH, 4300, 500, driver=True, thread=thread)
        else:
            if use == "flash":
                program.call("cudaFuncSetAttribute_v9000", 420, 600, thread=thread)
            item = program.call(LAUNCH, 4600, 2100, thread=thread)
        return self._put(program, item, lane, batch, use, after)

    def _copy(self, program: Program, copy: Copy, lane: int, after: int = -1, blocking: bool = False) -> int:
        pageable = 0 in (copy.source, copy.target)
        item = program.call(ASYNC_COPY, 9500 if pageable else 5200, 1800)
        self.copies.append(copy)
        # 24 GB/s over PCIe, 6 through the driver's staging buffer, 240 between devices, 1300 within one.
        rate = {8: 1300.0, 10: 240.0}.get(copy.kind, 6.0 if pageable else 24.0)
        duration = 900 + copy.size / rate
        number = program.operation(MEMCPY, item, lane, len(self.copies) - 1, duration, after)
        if blocking:
            program.block(item, [lane])
        return number

    def _call_memset(self, program: Program, size: int, lane: int, item: int = -1, node: int = 0) -> int:
        if item < 0:
            item = program.call("cudaMemsetAsync_v3020", 4900, 1500)
        self.memsets.append(Memset(size))
        return program.operation(MEMSET, item, lane, len(self.memsets) - 1, 1000 + size / 1000, node=node)

    def _wait(self, program: Program, device: int, stream: int) -> None:
        """Let `stream` wait for an event on another stream of the device."""
        program.call("cudaEventRecord_v3020", 900, 500)
        item = program.call("cudaStreamWaitEvent_v3020", 1100, 400)
        program.syncs.append(Sync(item, STREAM_WAIT, device, stream))

    # ---- parts of a step

    def _reduce(self, program: Program, device: int, batch: int, after: int) -> None:
        with program.range("ncclAllReduce", NCCL_DOMAIN):
            program.call("cudaStreamIsCapturing_v10000", 450, 300)
            self._wait(program, device, NCCL)
            program.call("cudaThreadExchangeStreamCaptureMode_v10010", 300, 200)
            self._launch(program, device * LANES + NCCL, batch, "reduce", after=after)
            program.call("cudaThreadExchangeStreamCaptureMode_v10010", 280, 200)
            program.call("cudaEventRecordWithFlags_v11010", 850, 400)

    def _run_layer(self, program: Program, layer: int, device: int, batch: int) -> None:
        lane = device * LANES + COMPUTE
        with program.range(f"layer {layer}", before=2500):
            with program.range("attention"):
                for use in ATTENTION:
                    last = self._launch(program, lane, batch, use)
            with program.range("mlp"):
                for use in MLP:
                    last = self._launch(program, lane, batch, use)
            self._reduce(program, device, batch, last)

    def _find_device(self, layer: int) -> int:
        return layer * self.devices // self.layers

    def _list_layers(self, device: int) -> list[int]:
        return [layer for layer in range(self.layers) if self._find_device(layer) == device]

    def _hand_over(self, program: Program, device: int) -> None:
        """Send the activations to the next device, which then waits for them; the last one waits for its reductions."""
        self._wait(program, device, COMPUTE)
        program.join()
        if device + 1 == self.devices:
            return
        size = 8 << 20
        sent = self._copy(program, Copy(size, 10, 2, 2), device * LANES + COMPUTE)
        self._wait(program, device + 1, COMPUTE)
        program.join()
        self._launch(program, (device + 1) * LANES + COMPUTE, 1, "add", after=sent)

    def _copy_input(self, program: Program, pinned: bool) -> None:
        lane = COPY
        with program.range("h2d"):
            if pinned:
                last = self._copy(program, Copy(1 << 18, 1, 1, 2), lane)
            else:
                for size in (512, 512, 2048, 16384):
                    last = self._copy(program, Copy(size, 1, 0, 2), lane, blocking=True)
            self._wait(program, 0, COMPUTE)
        program.join()
        self._launch(program, COMPUTE, 1, "embed", after=last)

    def _sample(self, program: Program, batch: int) -> int:
        lane = (self.devices - 1) * LANES + COMPUTE
        with program.range("sample"):
            for use in ("norm", "head", "softmax", "argmax"):
                last = self._launch(program, lane, batch, use)
        program.join()
        return last

    def _copy_output(self, program: Program, wait: int, pinned: bool, after: int) -> None:
        """Copy the tokens back and wait: by an event, a stream, the whole device, or in a pageable copy itself."""
        device = self.devices - 1
        lanes = list(range(device * LANES, (device + 1) * LANES))
        with program.range("d2h"):
            copy = Copy(2 << 20, 2, 2, 1) if pinned else Copy(2048, 2, 2, 0)
            self._copy(program, copy, lanes[COPY], after, blocking=not pinned)
            if wait == EVENT:
                program.call("cudaEventRecord_v3020", 900, 500)
                item = program.call("cudaEventSynchronize_v3020", 1500, 600)
                program.block(item, [lanes[COPY]], Sync(item, EVENT, device, COPY))
            elif wait == STREAM:
                item = program.call("cudaStreamSynchronize_v3020", 1700, 600)
                program.block(item, [lanes[COPY]], Sync(item, STREAM, device, COPY))
            else:
                item = program.call("cudaDeviceSynchronize_v3020", 2500, 600)
                program.block(item, lanes, Sync(item, CONTEXT, device, -1))

    def _poll(self, program: Program) -> None:
        """NCCL's watchdog, on its own thread, finds the work unfinished (error 600) and then finished."""
        program.call("cudaEventQuery_v3020", 800, 200, thread=WATCHDOG, result=600)
        program.call("cudaEventQuery_v3020", 700, 200, thread=WATCHDOG)

    # ---- whole programs

    def eager(self, batch: int, pinned: bool, wait: int, grow: int = -1) -> Program:
        """One step that launches every kernel.

        Args:
            pinned: the copies are from and to pinned memory.
            wait: how the host waits at the end: EVENT, STREAM or CONTEXT.
            grow: 0 to allocate memory amid the forward pass, 1 to free it; -1 for neither.
        """
        program = Program()
        with program.range("decode_step"):
            with program.range("pack"):
                program.work(42000)
            self._copy_input(program, pinned)
            with program.range("forward"):
                self._forward(program, batch, grow)
                self._poll(program)
                last = self._sample(program, batch)
            self._copy_output(program, wait, pinned, last)
        program.compile()
        return program

    def _forward(self, program: Program, batch: int, grow: int = -1) -> None:
        for device in range(self.devices):
            for layer in self._list_layers(device):
                if grow >= 0 and layer == self.layers // 2:
                    self._allocate(program, device, 64 << 20, grow)
                self._run_layer(program, layer, device, batch)
            self._call_memset(program, 4096, device * LANES + COMPUTE)
            self._hand_over(program, device)

    def _allocate(self, program: Program, device: int, size: int, release: int) -> None:
        item = program.call(("cudaMalloc_v3020", "cudaFree_v3020")[release], 185000, 3000)
        program.allocations.append(Allocation(item, device, size, release, False))
        if release:
            # cudaFree waits for the device.
            program.block(item, list(range(device * LANES, (device + 1) * LANES)))

    def replay(self, batch: int) -> Program:
        """One step whose forward pass is one graph a device."""
        program = Program()
        with program.range("decode_step"):
            with program.range("pack"):
                program.work(38000)
            self._copy_input(program, pinned=True)
            with program.range("forward"):
                for device in range(self.devices):
                    item = program.call("cudaGraphLaunch_v10000", 21000, 1500)
                    self._execute_nodes(program, device, batch, item)
                    self._hand_over(program, device)
                self._poll(program)
                last = self._sample(program, batch)
            self._copy_output(program, STREAM, True, last)
        program.compile()
        return program

    def _number_graph(self, device: int, batch: int) -> int:
        """Return the number of the captured graph; that of the executable one is one more."""
        return 1 + 2 * (device * len(BATCHES) + BATCHES.index(batch))

    def _execute_nodes(self, program: Program, device: int, batch: int, item: int) -> None:
        """Execute the graph's nodes by the launch `item`."""
        node = (self._number_graph(device, batch) + 1) << 32
        compute = device * LANES + COMPUTE
        for _ in self._list_layers(device):
            for use in (*ATTENTION, *MLP):
                node += 1
                last = self._put(program, item, compute, batch, use, node=node)
            node += 1
            self._put(program, item, device * LANES + NCCL, batch, "reduce", last, node)
        self._call_memset(program, 4096, compute, item, node + 1)

    def capture(self) -> Program:
        """Capture the graphs, inside the ranges of the layers, and make them executable."""
        program = Program()
        with program.range("capture_graphs"):
            for batch in BATCHES:
                for device in range(self.devices):
                    self._capture(program, device, batch)
        program.compile()
        return program

    def _capture(self, program: Program, device: int, batch: int) -> None:
        program.call("cudaStreamBeginCapture_v10000", 6000)
        first = number = self._number_graph(device, batch) << 32
        for layer in self._list_layers(device):
            with program.range(f"layer {layer}"):
                for name, uses in (("attention", ATTENTION), ("mlp", MLP), ("ncclAllReduce", ("reduce",))):
                    with program.range(name, NCCL_DOMAIN if name == "ncclAllReduce" else DEFAULT_DOMAIN):
                        for _ in uses:
                            number += 1
                            program.nodes.append(Node(program.call(LAUNCH, 6500, 2000), number, 0))
        number += 1
        program.nodes.append(Node(program.call("cudaMemsetAsync_v3020", 5500, 1500), number, 0))
        program.call("cudaStreamEndCapture_v10000", 9000)
        item = program.call("cudaGraphInstantiateWithFlags_v11040", 850000)
        shift = 1 << 32
        program.nodes += [Node(item, node + shift, node) for node in range(first + 1, number + 1)]

    def learn(self, batch: int) -> Program:
        """One step with a backward pass, launched by a second thread while the first one waits in `backward`."""
        program = Program()
        with program.range("learn_step"):
            with program.range("pack"):
                program.work(55000)
            self._copy_input(program, pinned=False)
            pooled = program.call("cudaMallocAsync_v11020", 7000, 900)
            program.allocations.append(Allocation(pooled, 0, 256 << 20, 0, True))
            with program.range("forward"):
                self._forward(program, batch)
                last = self._sample(program, batch)
            with program.range("backward"):
                for layer in reversed(range(self.layers)):
                    lane = self._find_device(layer) * LANES + COMPUTE
                    for use in BACKWARD:
                        self._launch(program, lane, batch, use, AUTOGRAD, last)
                    program.join()
            with program.range("optimizer"):
                for device in range(self.devices):
                    for _ in range(4):
                        self._launch(program, device * LANES + COMPUTE, batch, "adam")
            freed = program.call("cudaFreeAsync_v11020", 2400, 900)
            program.allocations.append(Allocation(freed, 0, 256 << 20, 1, True))
            self._copy_output(program, CONTEXT, False, last)
        program.compile()
        return program

    def load(self) -> Program:
        """Allocate and fill the weights, out of pageable memory, device by device."""
        program = Program()
        with program.range("load_weights"):
            program.call("cudaGetDeviceCount_v3020", 1200)
            for device in range(self.devices):
                for number in range(12):
                    self._allocate(program, device, (96 + 32 * number) << 20, 0)
                    copy = Copy((96 + 32 * number) << 20, 1, 0, 2)
                    self._copy(program, copy, device * LANES + COMPUTE, blocking=True)
                with program.range("kv_cache"):
                    # More than there is: after error 2 the server requests less.
                    program.call("cudaMalloc_v3020", 240000, result=2)
                    self._allocate(program, device, 20 << 30, 0)
                    self._call_memset(program, 20 << 30, device * LANES + COMPUTE)
            item = program.call("cudaDeviceSynchronize_v3020", 2500)
            lanes = list(range(self.devices * LANES))
            program.block(item, lanes, Sync(item, CONTEXT, 0, -1))
        program.compile()
        return program
