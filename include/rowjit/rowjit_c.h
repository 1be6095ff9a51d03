/* The C ABI: rowjit embedded in a framework or an engine of another language. One shared library, librowjit_c, that
 * exports the functions below and nothing else, loads with dlopen, and needs no compiler to be used.
 *
 *     rowjit_engine* engine;
 *     rowjit_graph* graph;
 *     rowjit_executable* norm;
 *     rowjit_arguments* args;
 *     const rowjit_op_request request = {.size = sizeof request, .op = "rms_norm", .columns = 4096, .dtype = "bf16"};
 *     rowjit_engine_create(NULL, &engine);
 *     rowjit_graph_of_op(&request, &graph);
 *     rowjit_compile(engine, graph, NULL, &norm);
 *     rowjit_arguments_create(norm, &args);
 *     ... rowjit_arguments_set_tensor(args, index, &tensor) for each ...
 *     rowjit_launch(args, stream);
 *
 * What holds for all functions:
 *   - They return a status; 0 is success. What went wrong is rowjit_last_error(), in words, for the calling thread.
 *   - No exception leaves them, nothing aborts, nothing is printed: see rowjit_set_log.
 *   - A handle belongs to who created it and is destroyed once; destroying NULL does nothing. An executable keeps what
 *     it needs of its engine, and arguments what they need of their executable, so the order of destruction is free.
 *     Strings are UTF-8 and, unless said otherwise, copied by the call.
 *   - Engines, graphs and executables may be used by several threads at once, arguments by one at a time.
 *   - A struct begins with its size, set by the caller to sizeof: a program built against an older header works with a
 *     newer library. (Elements of lists have none and never change.) A member of 0 or NULL stands for its default.
 *   - A text is written as snprintf does: at most `capacity` bytes with the 0 that ends it, its whole length without it
 *     in `*length`. `buffer` may be NULL with a capacity of 0, and `length` may be NULL.
 */
#ifndef ROWJIT_ROWJIT_C_H
#define ROWJIT_ROWJIT_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ROWJIT_API __attribute__((visibility("default")))
#else
#define ROWJIT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function, struct or number below changes its meaning; what is only added leaves it as it is. */
#define ROWJIT_ABI_VERSION 1

/* Of the library that is loaded: a program compares rowjit_abi_version() with ROWJIT_ABI_VERSION once. */
ROWJIT_API int32_t rowjit_abi_version(void);
ROWJIT_API const char* rowjit_version(void); /* "0.1.0" */

/* ---- Status ---------------------------------------------------------------------------------------------------- */

typedef int32_t rowjit_status;
enum {
    ROWJIT_OK = 0,
    ROWJIT_INVALID_GRAPH = 1,    /* shapes, dtypes or axes that do not fit */
    ROWJIT_INVALID_ARGUMENT = 2, /* an argument or option that does not fit */
    ROWJIT_PARSE = 3,            /* a text or an environment variable that cannot be read */
    ROWJIT_UNSUPPORTED = 4,      /* well-formed, but not available for this target, toolchain or version */
    ROWJIT_ENVIRONMENT = 5,      /* a device, driver, toolkit or compiler that is absent or too old */
    ROWJIT_COMPILE = 6,          /* a toolchain refused source that rowjit emitted */
    ROWJIT_LAUNCH = 7,           /* the driver refused a launch */
    ROWJIT_IO = 8,               /* a file or directory that cannot be read or written */
    ROWJIT_MISS = 9,             /* a strict look-up found nothing */
    ROWJIT_TIMEOUT = 10,         /* a bounded wait ran out */
    ROWJIT_OUT_OF_MEMORY = 100,  /* of the host */
    ROWJIT_INTERNAL = 101        /* a bug of rowjit, please report the message */
};

/* "invalid_graph"; "unknown" for a number that is none of the above. */
ROWJIT_API const char* rowjit_status_name(rowjit_status status);

/* The message of this thread's last call that failed: it names the op or file, the values and the remedy. "" when none
 * has. Valid until this thread's next failing call. */
ROWJIT_API const char* rowjit_last_error(void);

/* Where messages go that belong to no call (a damaged cache entry, say): level is "error", "warning", "info" or
 * "debug", as far as ROWJIT_LOG lets them pass. Called from any thread, never from two at once, and must not call
 * rowjit. NULL, the state at load, drops them. */
typedef void (*rowjit_log_function)(void* context, const char* level, const char* message);
ROWJIT_API rowjit_status rowjit_set_log(rowjit_log_function function, void* context);

/* ---- Engine ---------------------------------------------------------------------------------------------------- */

typedef struct rowjit_engine rowjit_engine;

typedef struct rowjit_engine_options {
    size_t size;
    const char* device;          /* "cuda:0", "hip:1", "cpu"; NULL: the best there is */
    const char* cache_directory; /* NULL: ROWJIT_CACHE_DIR, else the user's cache; "off" keeps nothing on disk */
    int32_t ignore_tuning;       /* not 0: only schedules of the static rules */
    int32_t reserved;
} rowjit_engine_options;

/* `options` may be NULL. */
ROWJIT_API rowjit_status rowjit_engine_create(const rowjit_engine_options* options, rowjit_engine** engine);
ROWJIT_API void rowjit_engine_destroy(rowjit_engine* engine);

/* JSON: "rowjit", "device", "target", and "compiled", "memory_hits", "disk_hits", "bundle_hits", "compile_ms" so far.
 */
ROWJIT_API rowjit_status rowjit_engine_info(const rowjit_engine* engine, char* buffer, size_t capacity, size_t* length);

/* Memory and streams of the engine's device, for programs that have no allocator of their own. Kernels take any address
 * of that device. A stream is a cudaStream_t or hipStream_t; the CPU has none, and NULL is the default stream. */
ROWJIT_API rowjit_status rowjit_allocate(const rowjit_engine* engine, size_t bytes, void** address);
ROWJIT_API rowjit_status rowjit_release(const rowjit_engine* engine, void* address);
ROWJIT_API rowjit_status rowjit_copy_to_device(const rowjit_engine* engine, void* destination, const void* source,
                                               size_t bytes);
ROWJIT_API rowjit_status rowjit_copy_to_host(const rowjit_engine* engine, void* destination, const void* source,
                                             size_t bytes);
ROWJIT_API rowjit_status rowjit_stream_create(const rowjit_engine* engine, void** stream);
ROWJIT_API rowjit_status rowjit_stream_destroy(const rowjit_engine* engine, void* stream);
ROWJIT_API rowjit_status rowjit_synchronize(const rowjit_engine* engine, void* stream);

/* ---- Graphs ---------------------------------------------------------------------------------------------------- */

/* A computation over rows; never changes. */
typedef struct rowjit_graph rowjit_graph;

/* From the text form, docs/text-form.md; `source_name` is what messages call it, NULL for "<text>". */
ROWJIT_API rowjit_status rowjit_graph_parse(const char* text, const char* source_name, rowjit_graph** graph);

typedef struct rowjit_option {
    const char* name;
    const char* value; /* a number, a word, or "true" and "false" */
} rowjit_option;

/* A composite operation of docs/ops.md with its canonical operands. */
typedef struct rowjit_op_request {
    size_t size;
    const char* op;
    int64_t columns;   /* what a row is wide, as the operation's row says; 0: 4096 */
    const char* dtype; /* of x and of what has no dtype of its own; NULL: "bf16" */
    const rowjit_option* options;
    size_t option_count;
} rowjit_op_request;

ROWJIT_API rowjit_status rowjit_graph_of_op(const rowjit_op_request* request, rowjit_graph** graph);
ROWJIT_API void rowjit_graph_destroy(rowjit_graph* graph);

/* The operations, JSON: an array of "name", "summary", "formula", "columns", "operands", "results", "in_place",
 * "options". */
ROWJIT_API rowjit_status rowjit_ops(char* buffer, size_t capacity, size_t* length);

/* The text form: parsing it gives the same graph. */
ROWJIT_API rowjit_status rowjit_graph_text(const rowjit_graph* graph, char* buffer, size_t capacity, size_t* length);

/* SHA-256 of the text form, 64 hexadecimal digits: equal graphs, equal digests, in every process. */
ROWJIT_API rowjit_status rowjit_graph_digest(const rowjit_graph* graph, char* buffer, size_t capacity, size_t* length);

/* A list of names. */
typedef struct rowjit_names {
    const char* const* names;
    size_t count;
} rowjit_names;

typedef struct rowjit_gradient_options {
    size_t size;
    rowjit_names inputs;     /* whose gradients are wanted, or labels of values; none: every float input tensor */
    rowjit_names outputs;    /* that are differentiated; none: every float one */
    rowjit_names save;       /* labels of values that the forward saves, if the backward reads them */
    rowjit_names recompute;  /* labels of values that the backward computes again */
    rowjit_names in_place;   /* inputs, or values that the forward saves, that their gradient overwrites */
    int32_t joint;           /* rowjit_gradient: the forward's outputs as well, from one graph */
    int32_t unit_cotangent;  /* d_<output> is 1 and no input: the gradient of a loss */
    rowjit_names accumulate; /* inputs whose gradient is added to what its f32 buffer holds */
} rowjit_gradient_options;

/* docs/gradient.md. `options` may be NULL. A forward with the original outputs and "saved_…" ones, and a backward with
 * inputs "d_<output>", what was saved and some of the original inputs, and outputs "d_<input>". */
ROWJIT_API rowjit_status rowjit_differentiate(const rowjit_graph* graph, const rowjit_gradient_options* options,
                                              rowjit_graph** forward, rowjit_graph** backward);
/* The backward that needs nothing saved. */
ROWJIT_API rowjit_status rowjit_gradient(const rowjit_graph* graph, const rowjit_gradient_options* options,
                                         rowjit_graph** backward);

/* ---- What a graph takes and gives ------------------------------------------------------------------------------- */

enum {
    ROWJIT_DTYPE_BOOL = 0, /* a byte, 0 or 1 */
    ROWJIT_DTYPE_I32 = 1,
    ROWJIT_DTYPE_I64 = 2,
    ROWJIT_DTYPE_BF16 = 3,
    ROWJIT_DTYPE_F16 = 4,
    ROWJIT_DTYPE_F32 = 5,
    ROWJIT_DTYPE_F64 = 6, /* on the CPU only */
    ROWJIT_DTYPE_I8 = 7,
    ROWJIT_DTYPE_E4M3 = 8, /* torch.float8_e4m3fn */
    ROWJIT_DTYPE_E5M2 = 9  /* torch.float8_e5m2 */
};

#define ROWJIT_RUNTIME_EXTENT (-1)
#define ROWJIT_MAX_AXES 16

/* Tensors are numbered inputs first, in the order of their declaration, then outputs; an executable numbers them as its
 * graph does. */
typedef struct rowjit_counts {
    size_t size;
    int32_t inputs;
    int32_t outputs;
    int32_t scalars;
    int32_t row_axes; /* those with a run-time extent */
} rowjit_counts;

typedef struct rowjit_tensor_info {
    size_t size;
    const char* name;  /* lives as long as the handle that was asked, as all strings here */
    const char* alias; /* of an output: the input that it may overwrite; else NULL */
    int32_t dtype;
    int32_t is_output;
    int32_t accumulates; /* an output that is added to what the buffer holds */
    int32_t axes;        /* row axes, then column axes, outermost first */
    int32_t row_axes;    /* how many of them are row axes: their strides are the launch's to choose */
    int32_t reserved;
    const char* axis_names[ROWJIT_MAX_AXES]; /* "" for an axis that is only an extent */
    int64_t extents[ROWJIT_MAX_AXES];        /* ROWJIT_RUNTIME_EXTENT, or the extent */
    int64_t column_strides[ROWJIT_MAX_AXES]; /* elements, of a column axis; 0 for a row axis */
} rowjit_tensor_info;

typedef struct rowjit_scalar_info {
    size_t size;
    const char* name;
    double default_value;
    int32_t dtype;
    int32_t reserved;
} rowjit_scalar_info;

ROWJIT_API rowjit_status rowjit_graph_counts(const rowjit_graph* graph, rowjit_counts* counts);
ROWJIT_API rowjit_status rowjit_graph_tensor(const rowjit_graph* graph, int32_t tensor, rowjit_tensor_info* info);
ROWJIT_API rowjit_status rowjit_graph_scalar(const rowjit_graph* graph, int32_t scalar, rowjit_scalar_info* info);
ROWJIT_API rowjit_status rowjit_graph_row_axis(const rowjit_graph* graph, int32_t axis, const char** name);

/* The number of the tensor of that name. */
ROWJIT_API rowjit_status rowjit_graph_find_tensor(const rowjit_graph* graph, const char* name, int32_t* tensor);

typedef struct rowjit_row_extent {
    const char* axis;
    int64_t extent;
} rowjit_row_extent;

/* The fewest bytes a launch must move: every input read once, every output written once. */
ROWJIT_API rowjit_status rowjit_graph_least_bytes(const rowjit_graph* graph, const rowjit_row_extent* rows,
                                                  size_t row_count, int64_t* bytes);

/* ---- Compiling -------------------------------------------------------------------------------------------------- */

/* A compiled graph on the engine's device. */
typedef struct rowjit_executable rowjit_executable;

/* The one slow call: memory, disk, else a compiler. `stream` is the one about to be launched on, or NULL: while it is
 * being captured, a kernel that is not loaded yet is refused with ROWJIT_LAUNCH, since loading would break the capture.
 */
ROWJIT_API rowjit_status rowjit_compile(rowjit_engine* engine, const rowjit_graph* graph, void* stream,
                                        rowjit_executable** executable);

/* How products of too many rows are divided, a head's logits above all; 0 leaves a choice to the compiler. */
typedef struct rowjit_chunk_options {
    size_t size;
    int64_t workspace_limit_bytes; /* what a launch's workspace shall stay below where that is possible */
    int64_t chunk_rows;            /* rows of a chunk */
    int64_t part_columns;          /* columns of a part, with low_memory */
    int32_t low_memory;            /* gradients in parts of their columns, from products that are made once more */
    int32_t round_each_chunk;      /* gradients rounded after every chunk */
} rowjit_chunk_options;

/* rowjit_compile with a choice of how products are divided. */
ROWJIT_API rowjit_status rowjit_compile_chunked(rowjit_engine* engine, const rowjit_graph* graph,
                                                const rowjit_chunk_options* options, void* stream,
                                                rowjit_executable** executable);
ROWJIT_API void rowjit_executable_destroy(rowjit_executable* executable);

/* JSON: "kernels", each with "name" and "schedule", and "notes" of the planner. */
ROWJIT_API rowjit_status rowjit_executable_info(const rowjit_executable* executable, char* buffer, size_t capacity,
                                                size_t* length);

typedef struct rowjit_tune_options {
    size_t size;
    const rowjit_row_extent* rows; /* of every row axis with a run-time extent */
    size_t row_count;
    int32_t max_candidates; /* 0: the tuner's own bound */
    int32_t force;          /* measure again what the database already answers */
} rowjit_tune_options;

/* Measures schedules of every kernel of the graph on the device, which must be otherwise idle, and keeps the best in
 * the engine's cache directory. Executables compiled after it use them. */
ROWJIT_API rowjit_status rowjit_tune(rowjit_engine* engine, const rowjit_graph* graph,
                                     const rowjit_tune_options* options);

/* ---- Launching -------------------------------------------------------------------------------------------------- */

/* The arguments of one executable, to be set once and changed where they change. */
typedef struct rowjit_arguments rowjit_arguments;

ROWJIT_API rowjit_status rowjit_arguments_create(const rowjit_executable* executable, rowjit_arguments** arguments);
ROWJIT_API void rowjit_arguments_destroy(rowjit_arguments* arguments);

/* A tensor in the device's memory. */
typedef struct rowjit_tensor {
    size_t size;
    void* data; /* of the first element; not written unless an output or what an output overwrites */
    int32_t dtype;
    int32_t dimensions;
    const int64_t* shape;
    const int64_t* strides; /* in elements; NULL: contiguous */
} rowjit_tensor;

/* Checks dtype, shape and column strides against the declaration, and gives every run-time row axis of the tensor its
 * extent. A launch refuses tensors whose extents disagree. Row strides may be of any sign. */
ROWJIT_API rowjit_status rowjit_arguments_set_tensor(rowjit_arguments* arguments, int32_t tensor,
                                                     const rowjit_tensor* value);

/* The same of a tensor as frameworks exchange it: `dl_tensor` points at a DLTensor of DLPack 1.x, which the call reads
 * and does not keep. Its memory must be of the engine's kind of device. */
ROWJIT_API rowjit_status rowjit_arguments_set_dlpack(rowjit_arguments* arguments, int32_t tensor,
                                                     const void* dl_tensor);

/* The same with nothing checked but alignment: an address, and a stride in elements for each row axis, or NULL for rows
 * that follow each other. Extents are then set by rowjit_arguments_set_rows. */
ROWJIT_API rowjit_status rowjit_arguments_set_data(rowjit_arguments* arguments, int32_t tensor, void* data,
                                                   const int64_t* row_strides, size_t row_stride_count);

/* The extent of a run-time row axis that no tensor with a shape has. */
ROWJIT_API rowjit_status rowjit_arguments_set_rows(rowjit_arguments* arguments, const char* axis, int64_t extent);
ROWJIT_API rowjit_status rowjit_arguments_set_scalar(rowjit_arguments* arguments, const char* name, double value);

#define ROWJIT_WORKSPACE_ALIGNMENT 64

/* Bytes that a launch with the extents set so far needs besides its tensors; 0 for most graphs. */
ROWJIT_API rowjit_status rowjit_arguments_workspace_bytes(const rowjit_arguments* arguments, size_t* bytes);

/* Device memory, aligned to ROWJIT_WORKSPACE_ALIGNMENT, free to reuse once the launch has run. */
ROWJIT_API rowjit_status rowjit_arguments_set_workspace(rowjit_arguments* arguments, void* block, size_t bytes);

/* Queues the kernels on the caller's stream; on the CPU it returns when they have run. Arguments are checked first:
 * nothing is queued when one does not fit. No allocation, synchronisation or compilation, and safe while the stream is
 * being captured. */
ROWJIT_API rowjit_status rowjit_launch(const rowjit_arguments* arguments, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* ROWJIT_ROWJIT_C_H */
