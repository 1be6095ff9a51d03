"""librowjit_c through ctypes, as far as the benchmark needs it. A test compares the structs with the C header's."""

import ctypes
import json

POINTER, INT32, INT64, SIZE, TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t, ctypes.c_char_p
ABI_VERSION = 1
RUNTIME_EXTENT = -1
MAX_AXES = 16
WORKSPACE_ALIGNMENT = 64


class RowjitError(Exception):
    """A call that failed, in the library's words."""


class Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(type(self)), **members)


class Names(ctypes.Structure):
    _fields_ = [("names", ctypes.POINTER(TEXT)), ("count", SIZE)]


class Option(ctypes.Structure):
    _fields_ = [("name", TEXT), ("value", TEXT)]


class RowExtent(ctypes.Structure):
    _fields_ = [("axis", TEXT), ("extent", INT64)]


class EngineOptions(Sized):
    _fields_ = [("size", SIZE), ("device", TEXT), ("cache_directory", TEXT), ("ignore_tuning", INT32),
                ("reserved", INT32)]


class OpRequest(Sized):
    _fields_ = [("size", SIZE), ("op", TEXT), ("columns", INT64), ("dtype", TEXT), ("options", ctypes.POINTER(Option)),
                ("option_count", SIZE)]


class GradientOptions(Sized):
    _fields_ = [("size", SIZE), ("inputs", Names), ("outputs", Names), ("save", Names), ("recompute", Names),
                ("in_place", Names), ("joint", INT32), ("unit_cotangent", INT32), ("accumulate", Names)]


class Counts(Sized):
    _fields_ = [("size", SIZE), ("inputs", INT32), ("outputs", INT32), ("scalars", INT32), ("row_axes", INT32)]


class TensorInfo(Sized):
    _fields_ = [("size", SIZE), ("name", TEXT), ("alias", TEXT), ("dtype", INT32), ("is_output", INT32),
                ("accumulates", INT32), ("axes", INT32), ("row_axes", INT32), ("reserved", INT32),
                ("axis_names", TEXT * MAX_AXES), ("extents", INT64 * MAX_AXES), ("column_strides", INT64 * MAX_AXES)]


class TuneOptions(Sized):
    _fields_ = [("size", SIZE), ("rows", ctypes.POINTER(RowExtent)), ("row_count", SIZE), ("max_candidates", INT32),
                ("force", INT32)]


class ChunkOptions(Sized):
    _fields_ = [("size", SIZE), ("workspace_limit_bytes", INT64), ("chunk_rows", INT64), ("part_columns", INT64),
                ("low_memory", INT32), ("round_each_chunk", INT32)]


class Tensor(Sized):
    _fields_ = [("size", SIZE), ("data", POINTER), ("dtype", INT32), ("dimensions", INT32),
                ("shape", ctypes.POINTER(INT64)), ("strides", ctypes.POINTER(INT64))]


def name_list(words):
    return Names((TEXT * len(words))(*[word.encode() for word in words]), len(words)) if words else Names()


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        self.c.rowjit_last_error.restype = TEXT
        self.c.rowjit_version.restype = TEXT
        self.c.rowjit_status_name.restype = TEXT
        for destroy in ("engine", "graph", "executable", "arguments"):
            getattr(self.c, f"rowjit_{destroy}_destroy").restype = None
        self.version = self.c.rowjit_version().decode()
        if self.c.rowjit_abi_version() != ABI_VERSION:
            raise RowjitError(f"{path} has ABI {self.c.rowjit_abi_version()}; this script is written for {ABI_VERSION}")

    def call(self, name, *arguments):
        status = getattr(self.c, name)(*arguments)
        if status:
            raise RowjitError(f"{self.c.rowjit_status_name(status).decode()}: {self.c.rowjit_last_error().decode()}")

    def made(self, name, *arguments):
        """The handle that the call makes: its last parameter."""
        handle = POINTER()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def text(self, name, *arguments):
        length = SIZE()
        self.call(name, *arguments, None, SIZE(0), ctypes.byref(length))
        buffer = ctypes.create_string_buffer(length.value + 1)
        self.call(name, *arguments, buffer, SIZE(length.value + 1), None)
        return buffer.value.decode()

    def op(self, name, columns, dtype, options=None):
        """The canonical graph of an operation."""
        given = (Option * len(options or {}))(*[Option(key.encode(), str(value).encode())
                                                for key, value in (options or {}).items()])
        request = OpRequest(op=name.encode(), columns=columns, dtype=dtype.encode(), options=given,
                            option_count=len(given))
        return Graph(self, self.made("rowjit_graph_of_op", ctypes.byref(request)))


class Graph:
    def __init__(self, library, handle):
        self.library, self.handle = library, handle
        counts = Counts()
        library.call("rowjit_graph_counts", handle, ctypes.byref(counts))
        self.tensors = []
        for number in range(counts.inputs + counts.outputs):
            info = TensorInfo()
            library.call("rowjit_graph_tensor", handle, INT32(number), ctypes.byref(info))
            self.tensors.append(info)
        self.row_axes = []
        for number in range(counts.row_axes):
            axis = TEXT()
            library.call("rowjit_graph_row_axis", handle, INT32(number), ctypes.byref(axis))
            self.row_axes.append(axis.value.decode())

    def __del__(self):
        self.library.c.rowjit_graph_destroy(self.handle)

    def inputs(self):
        return [info.name.decode() for info in self.tensors if not info.is_output]

    def outputs(self):
        return [info.name.decode() for info in self.tensors if info.is_output]

    def shape(self, name, rows):
        info = next(info for info in self.tensors if info.name.decode() == name)
        return [rows if extent == RUNTIME_EXTENT else extent for extent in info.extents[:info.axes]]

    def differentiate(self, inputs):
        forward, backward = POINTER(), POINTER()
        options = GradientOptions(inputs=name_list(inputs))
        self.library.call("rowjit_differentiate", self.handle, ctypes.byref(options), ctypes.byref(forward),
                          ctypes.byref(backward))
        return Graph(self.library, forward), Graph(self.library, backward)

    def one_pass(self, inputs, in_place):
        """A loss and its gradient from one graph, the gradient over the inputs of `in_place`."""
        options = GradientOptions(inputs=name_list(inputs), in_place=name_list(in_place), joint=1, unit_cotangent=1)
        return Graph(self.library, self.library.made("rowjit_gradient", self.handle, ctypes.byref(options)))

    def extents(self, rows):
        return (RowExtent * len(self.row_axes))(*[RowExtent(axis.encode(), rows) for axis in self.row_axes])

    def least_bytes(self, rows):
        extents, count = self.extents(rows), INT64()
        self.library.call("rowjit_graph_least_bytes", self.handle, extents, SIZE(len(extents)), ctypes.byref(count))
        return count.value


class Engine:
    def __init__(self, library, device, cache, tuned):
        options = EngineOptions(device=device.encode(), cache_directory=cache.encode() if cache else None,
                                ignore_tuning=0 if tuned else 1)
        self.library = library
        self.handle = library.made("rowjit_engine_create", ctypes.byref(options))

    def __del__(self):
        if hasattr(self, "handle"):
            self.library.c.rowjit_engine_destroy(self.handle)

    def info(self):
        return json.loads(self.library.text("rowjit_engine_info", self.handle))

    def tune(self, graph, rows, candidates):
        extents = graph.extents(rows)
        options = TuneOptions(rows=extents, row_count=len(extents), max_candidates=candidates)
        self.library.call("rowjit_tune", self.handle, graph.handle, ctypes.byref(options))

    def compile(self, graph, **chunks):
        options = ChunkOptions(**chunks)
        return Executable(self.library, self.library.made("rowjit_compile_chunked", self.handle, graph.handle,
                                                          ctypes.byref(options), None))


class Executable:
    """A compiled graph."""

    def __init__(self, library, handle):
        self.library, self.handle = library, handle

    def destroy(self):
        self.library.c.rowjit_executable_destroy(self.handle)

    def schedules(self):
        info = json.loads(self.library.text("rowjit_executable_info", self.handle))
        return [kernel["schedule"] for kernel in info["kernels"]]

    def arguments(self):
        return self.library.made("rowjit_arguments_create", self.handle)
