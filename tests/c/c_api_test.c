/* The C ABI as a C11 program meets it: graphs, a gradient, a launch whose numbers are right, and refusals that leave
 * the process as it was. Linked with librowjit_c alone. A failed check prints where, and the program goes on. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rowjit/rowjit_c.h"

enum { kRows = 5, kColumns = 8 };

static int failures = 0;

static void check(int holds, const char* what, int line) {
    if (holds) return;
    ++failures;
    printf("c_api_test.c:%d: %s\n  last error: %s\n", line, what, rowjit_last_error());
}

#define CHECK(condition) check(condition, #condition, __LINE__)
#define CHECK_OK(call) check((call) == ROWJIT_OK, #call, __LINE__)

/* The call is refused with that status, and the message has those words. */
#define CHECK_REFUSED(call, status, words) \
    check((call) == (status) && strstr(rowjit_last_error(), words) != NULL, #call " -> " #status ": " words, __LINE__)

static const char kScaled[] =
    "rows tokens\n"
    "input x: f32[tokens, 8]\n"
    "input w: f32[8]\n"
    "scalar factor: f32 = 2\n"
    "output y = x * w * factor\n";

static rowjit_graph* parse(const char* text) {
    rowjit_graph* graph = NULL;
    CHECK_OK(rowjit_graph_parse(text, "test.rj", &graph));
    return graph;
}

static rowjit_engine* cpu_engine(void) {
    rowjit_engine* engine = NULL;
    rowjit_engine_options options = {0};
    options.size = sizeof options;
    options.device = "cpu";
    options.cache_directory = "off";
    CHECK_OK(rowjit_engine_create(&options, &engine));
    return engine;
}

static void versions_are_those_of_the_header(void) {
    CHECK(rowjit_abi_version() == ROWJIT_ABI_VERSION);
    CHECK(strchr(rowjit_version(), '.') != NULL);
    CHECK(strcmp(rowjit_status_name(ROWJIT_OK), "ok") == 0);
    CHECK(strcmp(rowjit_status_name(ROWJIT_INVALID_GRAPH), "invalid_graph") == 0);
    CHECK(strcmp(rowjit_status_name(ROWJIT_TIMEOUT), "timeout") == 0);
    CHECK(strcmp(rowjit_status_name(ROWJIT_INTERNAL), "internal") == 0);
    CHECK(strcmp(rowjit_status_name(-1), "unknown") == 0);
    CHECK(strcmp(rowjit_status_name(11), "unknown") == 0);
}

static void a_text_is_written_as_snprintf_does(void) {
    rowjit_graph* graph = parse(kScaled);
    size_t length = 0;
    CHECK_OK(rowjit_graph_text(graph, NULL, 0, &length));
    char* whole = malloc(length + 1);
    char part[8];
    CHECK_OK(rowjit_graph_text(graph, whole, length + 1, NULL));
    CHECK(strlen(whole) == length);
    CHECK_OK(rowjit_graph_text(graph, part, sizeof part, &length));
    CHECK(strlen(part) == sizeof part - 1 && strncmp(part, whole, sizeof part - 1) == 0 && length == strlen(whole));
    CHECK_REFUSED(rowjit_graph_text(graph, NULL, 8, NULL), ROWJIT_INVALID_ARGUMENT, "buffer is NULL");
    free(whole);
    rowjit_graph_destroy(graph);
}

static void a_graph_has_the_digest_of_its_text(void) {
    rowjit_graph* graph = parse(kScaled);
    char text[1024];
    char digest[65];
    char again[65];
    CHECK_OK(rowjit_graph_text(graph, text, sizeof text, NULL));
    CHECK_OK(rowjit_graph_digest(graph, digest, sizeof digest, NULL));
    rowjit_graph* copy = parse(text);
    CHECK_OK(rowjit_graph_digest(copy, again, sizeof again, NULL));
    CHECK(strlen(digest) == 64 && strcmp(digest, again) == 0);
    rowjit_graph_destroy(copy);
    rowjit_graph_destroy(graph);
}

static void a_graph_tells_what_it_takes_and_gives(void) {
    rowjit_graph* graph = parse(kScaled);
    rowjit_counts counts = {.size = sizeof counts};
    rowjit_tensor_info x = {.size = sizeof x};
    rowjit_tensor_info y = {.size = sizeof y};
    rowjit_scalar_info factor = {.size = sizeof factor};
    const char* axis = NULL;
    int32_t place = -1;
    CHECK_OK(rowjit_graph_counts(graph, &counts));
    CHECK(counts.inputs == 2 && counts.outputs == 1 && counts.scalars == 1 && counts.row_axes == 1);
    CHECK_OK(rowjit_graph_tensor(graph, 0, &x));
    CHECK(strcmp(x.name, "x") == 0 && x.dtype == ROWJIT_DTYPE_F32 && !x.is_output && x.alias == NULL);
    CHECK(x.axes == 2 && x.row_axes == 1 && x.extents[0] == ROWJIT_RUNTIME_EXTENT && x.extents[1] == kColumns);
    CHECK(x.column_strides[1] == 1 && strcmp(x.axis_names[0], "tokens") == 0);
    CHECK_OK(rowjit_graph_find_tensor(graph, "y", &place));
    CHECK_OK(rowjit_graph_tensor(graph, place, &y));
    CHECK(place == 2 && y.is_output && strcmp(y.name, "y") == 0);
    CHECK_OK(rowjit_graph_scalar(graph, 0, &factor));
    CHECK(strcmp(factor.name, "factor") == 0 && factor.default_value == 2);
    CHECK_OK(rowjit_graph_row_axis(graph, 0, &axis));
    CHECK(strcmp(axis, "tokens") == 0);

    const rowjit_row_extent rows = {"tokens", kRows};
    int64_t bytes = 0;
    CHECK_OK(rowjit_graph_least_bytes(graph, &rows, 1, &bytes));
    CHECK(bytes == 4 * (2 * kRows * kColumns + kColumns));

    CHECK_REFUSED(rowjit_graph_tensor(graph, 3, &x), ROWJIT_INVALID_ARGUMENT, "no tensor 3; there are 3");
    CHECK_REFUSED(rowjit_graph_find_tensor(graph, "z", &place), ROWJIT_INVALID_ARGUMENT, "x, w, y");
    CHECK_REFUSED(rowjit_graph_least_bytes(graph, NULL, 0, &bytes), ROWJIT_INVALID_ARGUMENT, "tokens");
    rowjit_graph_destroy(graph);
}

static void an_operation_is_a_graph_by_its_name(void) {
    const rowjit_option option = {"weight", "none"};
    rowjit_op_request request = {.size = sizeof request, .op = "rms_norm", .columns = 64, .dtype = "f16"};
    rowjit_graph* graph = NULL;
    rowjit_counts counts = {.size = sizeof counts};
    CHECK_OK(rowjit_graph_of_op(&request, &graph));
    CHECK_OK(rowjit_graph_counts(graph, &counts));
    CHECK(counts.inputs == 2);
    rowjit_graph_destroy(graph);
    request.options = &option;
    request.option_count = 1;
    CHECK_OK(rowjit_graph_of_op(&request, &graph));
    CHECK_OK(rowjit_graph_counts(graph, &counts));
    CHECK(counts.inputs == 1);
    rowjit_graph_destroy(graph);

    request.op = "no_such_op";
    CHECK_REFUSED(rowjit_graph_of_op(&request, &graph), ROWJIT_INVALID_ARGUMENT, "no_such_op");
    CHECK(graph == NULL);
    request.op = "rms_norm";
    request.dtype = "f8";
    CHECK_REFUSED(rowjit_graph_of_op(&request, &graph), ROWJIT_PARSE, "f8");

    size_t length = 0;
    CHECK_OK(rowjit_ops(NULL, 0, &length));
    char* operations = malloc(length + 1);
    CHECK_OK(rowjit_ops(operations, length + 1, NULL));
    CHECK(strstr(operations, "\"rms_norm\"") != NULL);
    free(operations);
}

static void a_gradient_is_a_graph(void) {
    rowjit_graph* graph = parse(kScaled);
    rowjit_graph* forward = NULL;
    rowjit_graph* backward = NULL;
    const char* const wanted[] = {"w"};
    rowjit_gradient_options options = {.size = sizeof options, .inputs = {wanted, 1}};
    int32_t place = -1;
    CHECK_OK(rowjit_differentiate(graph, NULL, &forward, &backward));
    CHECK_OK(rowjit_graph_find_tensor(backward, "d_y", &place));
    CHECK_OK(rowjit_graph_find_tensor(backward, "d_x", &place));
    CHECK_OK(rowjit_graph_find_tensor(forward, "y", &place));
    rowjit_graph_destroy(forward);
    rowjit_graph_destroy(backward);
    CHECK_OK(rowjit_gradient(graph, &options, &backward));
    CHECK_OK(rowjit_graph_find_tensor(backward, "d_w", &place));
    CHECK_REFUSED(rowjit_graph_find_tensor(backward, "d_x", &place), ROWJIT_INVALID_ARGUMENT, "d_x");
    rowjit_graph_destroy(backward);

    rowjit_tensor_info added = {.size = sizeof added};
    options.accumulate = options.inputs;
    CHECK_OK(rowjit_gradient(graph, &options, &backward));
    CHECK_OK(rowjit_graph_find_tensor(backward, "d_w", &place));
    CHECK_OK(rowjit_graph_tensor(backward, place, &added));
    CHECK(added.accumulates == 1 && added.dtype == ROWJIT_DTYPE_F32);
    rowjit_graph_destroy(backward);
    options.accumulate.count = 0;

    options.inputs.names = NULL;
    CHECK_REFUSED(rowjit_gradient(graph, &options, &backward), ROWJIT_INVALID_ARGUMENT, "inputs is NULL");
    options.inputs.count = 0;
    options.joint = 1;
    CHECK_OK(rowjit_gradient(graph, &options, &backward));
    CHECK_OK(rowjit_graph_find_tensor(backward, "y", &place));
    rowjit_graph_destroy(backward);
    rowjit_graph_destroy(graph);
}

static void what_is_null_or_malformed_is_refused(void) {
    rowjit_graph* graph = NULL;
    rowjit_engine* engine = NULL;
    CHECK_REFUSED(rowjit_graph_parse(NULL, NULL, &graph), ROWJIT_INVALID_ARGUMENT, "text is NULL");
    CHECK_REFUSED(rowjit_graph_parse("", NULL, NULL), ROWJIT_INVALID_ARGUMENT, "graph is NULL");
    CHECK_REFUSED(rowjit_graph_parse("rows", "bad.rj", &graph), ROWJIT_PARSE, "bad.rj:1");
    CHECK_REFUSED(rowjit_compile(NULL, NULL, NULL, NULL), ROWJIT_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(rowjit_launch(NULL, NULL), ROWJIT_INVALID_ARGUMENT, "arguments is NULL");
    const rowjit_engine_options nowhere = {.size = sizeof nowhere, .device = "tpu:0"};
    CHECK_REFUSED(rowjit_engine_create(&nowhere, &engine), ROWJIT_INVALID_ARGUMENT, "tpu:0");
    CHECK(engine == NULL);
    rowjit_engine_destroy(NULL);
    rowjit_graph_destroy(NULL);
    rowjit_executable_destroy(NULL);
    rowjit_arguments_destroy(NULL);
}

/* Structs as headers before and after this one have them. */
static void structs_of_other_headers_are_read_by_their_size(void) {
    rowjit_engine* engine = NULL;
    rowjit_engine_options older = {.size = offsetof(rowjit_engine_options, cache_directory), .device = "cpu"};
    older.ignore_tuning = 7; /* beyond what that header has: not read */
    CHECK_OK(rowjit_engine_create(&older, &engine));
    rowjit_engine_destroy(engine);

    struct {
        rowjit_engine_options known;
        int64_t later;
    } newer = {{.size = sizeof newer, .device = "cpu"}, 0};
    CHECK_OK(rowjit_engine_create(&newer.known, &engine));
    rowjit_engine_destroy(engine);
    newer.later = 1;
    CHECK_REFUSED(rowjit_engine_create(&newer.known, &engine), ROWJIT_INVALID_ARGUMENT, "needs a newer one");
    newer.known.size = 0;
    CHECK_REFUSED(rowjit_engine_create(&newer.known, &engine), ROWJIT_INVALID_ARGUMENT, "sizeof");

    rowjit_graph* graph = parse(kScaled);
    rowjit_counts counts = {.size = offsetof(rowjit_counts, scalars), .scalars = -5};
    CHECK_OK(rowjit_graph_counts(graph, &counts));
    CHECK(counts.inputs == 2 && counts.scalars == -5 && counts.size == offsetof(rowjit_counts, scalars));
    rowjit_graph_destroy(graph);
}

static int messages = 0;
static void count_message(void* context, const char* level, const char* message) {
    (void)level;
    if (message[0] != 0) ++*(int*)context;
}

static void a_message_goes_to_the_function_that_was_set(void) {
    /* A name with our prefix that nothing reads is warned about by the next engine. */
    CHECK_OK(rowjit_set_log(count_message, &messages));
    rowjit_engine_destroy(cpu_engine());
    CHECK(messages == 1);
    CHECK_OK(rowjit_set_log(NULL, NULL));
}

#ifdef ROWJIT_TEST_CPU
static rowjit_tensor matrix(float* data, const int64_t* shape) {
    const rowjit_tensor tensor = {
        .size = sizeof tensor, .data = data, .dtype = ROWJIT_DTYPE_F32, .dimensions = 2, .shape = shape};
    return tensor;
}

static void a_launch_computes(void) {
    rowjit_engine* engine = cpu_engine();
    rowjit_graph* graph = parse(kScaled);
    rowjit_executable* executable = NULL;
    rowjit_arguments* arguments = NULL;
    CHECK_OK(rowjit_compile(engine, graph, NULL, &executable));
    CHECK_OK(rowjit_arguments_create(executable, &arguments));
    char info[4096];
    CHECK_OK(rowjit_executable_info(executable, info, sizeof info, NULL));
    CHECK(strstr(info, "\"schedule\"") != NULL);
    CHECK_OK(rowjit_engine_info(engine, info, sizeof info, NULL));
    CHECK(strstr(info, "\"compiled\": 1") != NULL);
    /* What is made from a handle outlives it. */
    rowjit_executable_destroy(executable);
    rowjit_graph_destroy(graph);
    rowjit_engine_destroy(engine);

    float x[kRows][2 * kColumns]; /* every second row's worth is padding */
    float w[kColumns];
    float y[kRows * kColumns];
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < 2 * kColumns; ++c) x[r][c] = (float)(r + c);
    for (int c = 0; c < kColumns; ++c) w[c] = (float)c;
    memset(y, 0, sizeof y);
    const int64_t shape[] = {kRows, kColumns};
    const int64_t strides[] = {2 * kColumns, 1};
    rowjit_tensor tensor = matrix(x[0], shape);
    tensor.strides = strides;
    CHECK_REFUSED(rowjit_launch(arguments, NULL), ROWJIT_INVALID_ARGUMENT, "tokens");
    CHECK_OK(rowjit_arguments_set_tensor(arguments, 0, &tensor));
    CHECK_OK(rowjit_arguments_set_data(arguments, 1, w, NULL, 0));
    CHECK_REFUSED(rowjit_launch(arguments, NULL), ROWJIT_INVALID_ARGUMENT, "'y' is not set");
    tensor = matrix(y, shape);
    CHECK_OK(rowjit_arguments_set_tensor(arguments, 2, &tensor));
    CHECK_OK(rowjit_arguments_set_scalar(arguments, "factor", 3));
    size_t workspace = 1;
    CHECK_OK(rowjit_arguments_workspace_bytes(arguments, &workspace));
    CHECK(workspace == 0);
    CHECK_OK(rowjit_launch(arguments, NULL));
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) CHECK(y[r * kColumns + c] == x[r][c] * w[c] * 3);

    /* One compile serves any number of rows; tensors must agree on it. */
    const int64_t fewer[] = {2, kColumns};
    tensor = matrix(y, fewer);
    CHECK_OK(rowjit_arguments_set_tensor(arguments, 2, &tensor));
    CHECK_REFUSED(rowjit_launch(arguments, NULL), ROWJIT_INVALID_ARGUMENT, "tensor 'x' has other row extents");
    tensor = matrix(x[0], fewer);
    CHECK_OK(rowjit_arguments_set_tensor(arguments, 0, &tensor));
    CHECK_OK(rowjit_launch(arguments, NULL));
    rowjit_arguments_destroy(arguments);
}

static void tensors_that_do_not_fit_are_refused_by_name(void) {
    rowjit_engine* engine = cpu_engine();
    rowjit_graph* graph = parse(kScaled);
    rowjit_executable* executable = NULL;
    rowjit_arguments* arguments = NULL;
    float data[kRows * kColumns] = {0};
    const int64_t shape[] = {kRows, kColumns};
    const int64_t narrow[] = {kRows, kColumns - 1};
    const int64_t negative[] = {-1, kColumns};
    const int64_t transposed[] = {1, kRows};
    CHECK_OK(rowjit_compile(engine, graph, NULL, &executable));
    CHECK_OK(rowjit_arguments_create(executable, &arguments));
    rowjit_tensor tensor = matrix(data, shape);
    tensor.dtype = ROWJIT_DTYPE_BF16;
    CHECK_REFUSED(rowjit_arguments_set_tensor(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT, "'x' has dtype 3");
    tensor = matrix(data, narrow);
    CHECK_REFUSED(rowjit_arguments_set_tensor(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT,
                  "7 elements along axis 1");
    tensor = matrix(data, negative);
    CHECK_REFUSED(rowjit_arguments_set_tensor(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT, "-1 elements");
    tensor = matrix(data, shape);
    tensor.strides = transposed;
    CHECK_REFUSED(rowjit_arguments_set_tensor(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT, "stride 5");
    tensor.dimensions = 1;
    CHECK_REFUSED(rowjit_arguments_set_tensor(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT, "1 dimensions");
    CHECK_REFUSED(rowjit_arguments_set_tensor(arguments, 9, &tensor), ROWJIT_INVALID_ARGUMENT, "no tensor 9");
    CHECK_REFUSED(rowjit_arguments_set_data(arguments, -1, data, NULL, 0), ROWJIT_INVALID_ARGUMENT, "no tensor -1");
    CHECK_REFUSED(rowjit_arguments_set_scalar(arguments, "f", 1), ROWJIT_INVALID_ARGUMENT, "factor");
    CHECK_REFUSED(rowjit_arguments_set_rows(arguments, "t", 1), ROWJIT_INVALID_ARGUMENT, "tokens");
    rowjit_arguments_destroy(arguments);
    rowjit_executable_destroy(executable);
    rowjit_graph_destroy(graph);
    rowjit_engine_destroy(engine);
}

/* DLTensor as dlpack.h of version 1 lays it out. */
typedef struct DLTensor {
    void* data;
    struct {
        int32_t device_type;
        int32_t device_id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
} DLTensor;

static void a_flat_axis_has_as_many_rows_as_its_axes_together(void) {
    rowjit_engine* engine = cpu_engine();
    rowjit_graph* graph = parse(
        "rows batch\nrows heads = 2\nrows s\nrows all = batch * heads * s\n"
        "input x: f32[all]\ninput w: f32[batch, s]\noutput y = x * 2\noutput z = w * 3\n");
    rowjit_executable* executable = NULL;
    rowjit_arguments* arguments = NULL;
    CHECK_OK(rowjit_compile(engine, graph, NULL, &executable));
    CHECK_OK(rowjit_arguments_create(executable, &arguments));
    float x[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    float w[6] = {0};
    float y[12] = {0};
    float z[6] = {0};
    float* const data[] = {x, w, y, z};
    for (int rows = 12; rows >= 11; --rows) {
        const int64_t flat[] = {rows};
        const int64_t apart[] = {3, 2};
        for (int i = 0; i < 4; ++i) {
            rowjit_tensor tensor = {.size = sizeof tensor, .data = data[i], .dtype = ROWJIT_DTYPE_F32};
            tensor.dimensions = i % 2 == 0 ? 1 : 2;
            tensor.shape = i % 2 == 0 ? flat : apart;
            CHECK_OK(rowjit_arguments_set_tensor(arguments, i, &tensor));
        }
        if (rows == 12) CHECK_OK(rowjit_launch(arguments, NULL));
    }
    for (int i = 0; i < 12; ++i) CHECK(y[i] == 2 * x[i]);
    CHECK_REFUSED(rowjit_launch(arguments, NULL), ROWJIT_INVALID_ARGUMENT, "tensor 'x' has other row extents");
    rowjit_arguments_destroy(arguments);
    rowjit_executable_destroy(executable);
    rowjit_graph_destroy(graph);
    rowjit_engine_destroy(engine);
}

static void a_tensor_of_another_framework_is_an_argument(void) {
    rowjit_engine* engine = cpu_engine();
    rowjit_graph* graph = parse(kScaled);
    rowjit_executable* executable = NULL;
    rowjit_arguments* arguments = NULL;
    float x[1 + kColumns];
    float w[kColumns];
    float y[kColumns];
    int64_t shape[] = {1, kColumns};
    CHECK_OK(rowjit_compile(engine, graph, NULL, &executable));
    CHECK_OK(rowjit_arguments_create(executable, &arguments));
    for (int c = 0; c <= kColumns; ++c) x[c] = (float)c;
    for (int c = 0; c < kColumns; ++c) w[c] = 5;
    DLTensor tensor = {x, {1, 0}, 2, {2, 32, 1}, shape, NULL, sizeof(float)}; /* from the second element on */
    CHECK_OK(rowjit_arguments_set_dlpack(arguments, 0, &tensor));
    DLTensor weight = {w, {1, 0}, 1, {2, 32, 1}, shape + 1, NULL, 0};
    CHECK_OK(rowjit_arguments_set_dlpack(arguments, 1, &weight));
    DLTensor result = {y, {1, 0}, 2, {2, 32, 1}, shape, NULL, 0};
    CHECK_OK(rowjit_arguments_set_dlpack(arguments, 2, &result));
    CHECK_OK(rowjit_launch(arguments, NULL));
    for (int c = 0; c < kColumns; ++c) CHECK(y[c] == 10 * (float)(c + 1));

    tensor.dtype.code = 4;
    CHECK_REFUSED(rowjit_arguments_set_dlpack(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT, "code 4, 32 bits");
    tensor.dtype.bits = 16;
    CHECK_REFUSED(rowjit_arguments_set_dlpack(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT, "'x' has dtype 3");
    tensor.device.device_type = 2;
    CHECK_REFUSED(rowjit_arguments_set_dlpack(arguments, 0, &tensor), ROWJIT_INVALID_ARGUMENT, "device type 2");
    CHECK_REFUSED(rowjit_arguments_set_dlpack(arguments, 0, NULL), ROWJIT_INVALID_ARGUMENT, "dl_tensor is NULL");
    rowjit_arguments_destroy(arguments);
    rowjit_executable_destroy(executable);
    rowjit_graph_destroy(graph);
    rowjit_engine_destroy(engine);
}

/* The weight's gradient is a sum over rows, which takes a workspace; `tune` chooses its schedule and changes no number.
 */
static void a_gradient_computes_tuned_or_not(void) {
    rowjit_engine* engine = cpu_engine();
    rowjit_graph* graph = parse(kScaled);
    rowjit_graph* backward = NULL;
    const char* const wanted[] = {"w"};
    const rowjit_gradient_options options = {.size = sizeof options, .inputs = {wanted, 1}};
    const rowjit_row_extent rows = {"tokens", kRows};
    const rowjit_tune_options tuning = {.size = sizeof tuning, .rows = &rows, .row_count = 1, .max_candidates = 2};
    CHECK_OK(rowjit_gradient(graph, &options, &backward));
    for (int tuned = 0; tuned < 2; ++tuned) {
        rowjit_executable* executable = NULL;
        rowjit_arguments* arguments = NULL;
        if (tuned) CHECK_OK(rowjit_tune(engine, backward, &tuning));
        CHECK_OK(rowjit_compile(engine, backward, NULL, &executable));
        CHECK_OK(rowjit_arguments_create(executable, &arguments));
        float x[kRows * kColumns];
        float d_y[kRows * kColumns];
        float d_w[kColumns];
        for (int i = 0; i < kRows * kColumns; ++i) {
            x[i] = (float)i;
            d_y[i] = 1;
        }
        struct {
            const char* name;
            float* data;
        } const tensors[] = {{"x", x}, {"d_y", d_y}, {"d_w", d_w}};
        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) {
            int32_t place = -1;
            CHECK_OK(rowjit_graph_find_tensor(backward, tensors[i].name, &place));
            CHECK_OK(rowjit_arguments_set_data(arguments, place, tensors[i].data, NULL, 0));
        }
        CHECK_OK(rowjit_arguments_set_rows(arguments, "tokens", kRows));
        size_t bytes = 0;
        void* block = NULL;
        CHECK_OK(rowjit_arguments_workspace_bytes(arguments, &bytes));
        CHECK_OK(rowjit_allocate(engine, bytes, &block));
        CHECK_OK(rowjit_arguments_set_workspace(arguments, block, bytes));
        CHECK_OK(rowjit_launch(arguments, NULL));
        for (int c = 0; c < kColumns; ++c)
            CHECK(d_w[c] == 2 * (float)(kRows * c + kColumns * (kRows * (kRows - 1) / 2)));
        CHECK_OK(rowjit_release(engine, block));
        rowjit_arguments_destroy(arguments);
        rowjit_executable_destroy(executable);
    }
    rowjit_graph_destroy(backward);
    rowjit_graph_destroy(graph);
    rowjit_engine_destroy(engine);
}
#endif

int main(void) {
    a_message_goes_to_the_function_that_was_set(); /* first: it is said once in a process */
    versions_are_those_of_the_header();
    a_text_is_written_as_snprintf_does();
    a_graph_has_the_digest_of_its_text();
    a_graph_tells_what_it_takes_and_gives();
    an_operation_is_a_graph_by_its_name();
    a_gradient_is_a_graph();
    what_is_null_or_malformed_is_refused();
    structs_of_other_headers_are_read_by_their_size();
#ifdef ROWJIT_TEST_CPU
    a_launch_computes();
    tensors_that_do_not_fit_are_refused_by_name();
    a_flat_axis_has_as_many_rows_as_its_axes_together();
    a_tensor_of_another_framework_is_an_argument();
    a_gradient_computes_tuned_or_not();
#endif
    printf("c_api_test: %d failure%s\n", failures, failures == 1 ? "" : "s");
    return failures == 0 ? 0 : 1;
}
