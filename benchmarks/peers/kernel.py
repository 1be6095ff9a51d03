"""A graph compiled by librowjit_c as a function of torch tensors."""

import ctypes

import torch

from rowjit_c import INT32, INT64, POINTER, SIZE, WORKSPACE_ALIGNMENT, RowjitError, Tensor

# In the order of the header's ROWJIT_DTYPE_… numbers.
DTYPES = [torch.bool, torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64]


class Kernel:
    """A compiled graph for one number of rows. A call takes inputs by name, allocates the outputs and returns them."""

    def __init__(self, engine, graph, rows, device, **chunks):
        library = engine.library
        self.library, self.graph, self.device = library, graph, device
        self.launch = library.c.rowjit_launch
        self.set_tensor = library.c.rowjit_arguments_set_tensor
        executable = engine.compile(graph, **chunks)
        self.schedules = executable.schedules()
        self.arguments = executable.arguments()
        executable.destroy()
        self.places = []
        for info in graph.tensors:
            shape = graph.shape(info.name.decode(), rows)
            tensor = Tensor(dtype=info.dtype, dimensions=info.axes, shape=(INT64 * info.axes)(*shape))
            alias = info.alias.decode() if info.alias else None
            self.places.append((info.name.decode(), bool(info.is_output), alias, shape, DTYPES[info.dtype], tensor))
        for extent in graph.extents(rows):
            library.call("rowjit_arguments_set_rows", self.arguments, extent.axis, INT64(extent.extent))
        bytes_needed = SIZE()
        library.call("rowjit_arguments_workspace_bytes", self.arguments, ctypes.byref(bytes_needed))
        self.workspace_bytes = bytes_needed.value

    def __del__(self):
        if hasattr(self, "arguments"):
            self.library.c.rowjit_arguments_destroy(self.arguments)

    def __call__(self, inputs):
        outputs = {}
        for place, (name, is_output, alias, shape, dtype, tensor) in enumerate(self.places):
            if not is_output:
                value = inputs[name]
            elif alias and alias in inputs:
                value = outputs[name] = inputs[alias]
            else:
                value = outputs[name] = torch.empty(shape, dtype=dtype, device=self.device)
            if value.dtype != dtype or list(value.shape) != shape or not value.is_contiguous():
                raise RowjitError(f"'{name}' is {value.dtype} {list(value.shape)}; {dtype} {shape} is declared")
            tensor.data = value.data_ptr()
            if self.set_tensor(self.arguments, INT32(place), ctypes.byref(tensor)):
                raise RowjitError(self.library.c.rowjit_last_error().decode())
        if self.workspace_bytes:
            block = torch.empty(self.workspace_bytes + WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=self.device)
            address = -(-block.data_ptr() // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
            self.library.c.rowjit_arguments_set_workspace(self.arguments, POINTER(address), SIZE(self.workspace_bytes))
        stream = torch.cuda.current_stream().cuda_stream if self.device == "cuda" else 0
        if self.launch(self.arguments, POINTER(stream)):
            raise RowjitError(self.library.c.rowjit_last_error().decode())
        return outputs
