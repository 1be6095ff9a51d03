/* The C interface in one program: an RMS norm by its name, its gradient derived, both launched, and the weight moved
 * along its gradient until the norm gives what was asked of it. Uses the best device there is and copies through the
 * interface, so it runs on a CPU as on a GPU; a program with an allocator and streams of its own hands those in. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "rowjit/rowjit_c.h"

enum { kRows = 64, kColumns = 256, kSteps = 40, kMaxTensors = 16 };

static void require(rowjit_status status) {
    if (status == ROWJIT_OK) return;
    fprintf(stderr, "%s: %s\n", rowjit_status_name(status), rowjit_last_error());
    exit(1);
}

/* A compiled graph with memory for each of its tensors, unless another graph has it already. */
typedef struct Launchable {
    rowjit_graph* graph;
    rowjit_executable* executable;
    rowjit_arguments* arguments;
    void* data[kMaxTensors];
    void* workspace;
} Launchable;

static int32_t find(const Launchable* of, const char* name) {
    int32_t tensor = -1;
    require(rowjit_graph_find_tensor(of->graph, name, &tensor));
    return tensor;
}

static size_t bytes_of(const rowjit_tensor_info* info) {
    size_t elements = 1;
    for (int i = 0; i < info->axes; ++i)
        elements *= (size_t)(info->extents[i] == ROWJIT_RUNTIME_EXTENT ? kRows : info->extents[i]);
    return elements * sizeof(float);
}

/* What `forward` has under a name, the backward reads in place; `forward` may be NULL. */
static void prepare(rowjit_engine* engine, Launchable* self, const Launchable* forward) {
    rowjit_counts counts = {.size = sizeof counts};
    require(rowjit_compile(engine, self->graph, NULL, &self->executable));
    require(rowjit_arguments_create(self->executable, &self->arguments));
    require(rowjit_graph_counts(self->graph, &counts));
    for (int32_t i = 0; i < counts.inputs + counts.outputs; ++i) {
        rowjit_tensor_info info = {.size = sizeof info};
        int32_t shared = -1;
        require(rowjit_graph_tensor(self->graph, i, &info));
        if (forward != NULL && rowjit_graph_find_tensor(forward->graph, info.name, &shared) == ROWJIT_OK) {
            self->data[i] = forward->data[shared];
        } else {
            require(rowjit_allocate(engine, bytes_of(&info), &self->data[i]));
        }
        require(rowjit_arguments_set_data(self->arguments, i, self->data[i], NULL, 0));
    }
    /* The run-time extent. Everything above would do for any other number of rows, too. */
    require(rowjit_arguments_set_rows(self->arguments, "tokens", kRows));
    size_t bytes = 0;
    require(rowjit_arguments_workspace_bytes(self->arguments, &bytes));
    require(rowjit_allocate(engine, bytes, &self->workspace));
    require(rowjit_arguments_set_workspace(self->arguments, self->workspace, bytes));
}

int main(void) {
    rowjit_engine* engine = NULL;
    rowjit_graph* norm = NULL;
    if (rowjit_abi_version() != ROWJIT_ABI_VERSION) return 1;
    require(rowjit_engine_create(NULL, &engine));

    /* The operation, and what training needs of it: a forward that saves, a backward that reads what was saved. */
    const rowjit_op_request request = {.size = sizeof request, .op = "rms_norm", .columns = kColumns, .dtype = "f32"};
    const char* const wanted[] = {"x", "weight"};
    const rowjit_gradient_options gradients = {.size = sizeof gradients, .inputs = {wanted, 2}};
    Launchable forward = {0};
    Launchable backward = {0};
    require(rowjit_graph_of_op(&request, &norm));
    require(rowjit_differentiate(norm, &gradients, &forward.graph, &backward.graph));
    prepare(engine, &forward, NULL);
    prepare(engine, &backward, &forward);

    static float x[kRows * kColumns];
    static float y[kRows * kColumns];
    static float d_y[kRows * kColumns];
    float weight[kColumns];
    float d_weight[kColumns];
    for (int i = 0; i < kRows * kColumns; ++i) x[i] = (float)((i * 37) % 101 - 50) / 25;
    for (int i = 0; i < kColumns; ++i) weight[i] = 1;
    require(rowjit_copy_to_device(engine, forward.data[find(&forward, "x")], x, sizeof x));

    /* Target: twice the norm at weight 1, so every weight should become 2. */
    float loss = 0;
    static float target[kRows * kColumns];
    for (int step = 0; step <= kSteps; ++step) {
        require(rowjit_copy_to_device(engine, forward.data[find(&forward, "weight")], weight, sizeof weight));
        require(rowjit_launch(forward.arguments, NULL));
        require(rowjit_copy_to_host(engine, y, forward.data[find(&forward, "y")], sizeof y));
        loss = 0;
        for (int i = 0; i < kRows * kColumns; ++i) {
            if (step == 0) target[i] = 2 * y[i];
            d_y[i] = (y[i] - target[i]) / kRows;
            loss += d_y[i] * (y[i] - target[i]) / 2;
        }
        if (step % 10 == 0) printf("step %2d: loss %.6f, weight[0] %.4f\n", step, (double)loss, (double)weight[0]);
        require(rowjit_copy_to_device(engine, backward.data[find(&backward, "d_y")], d_y, sizeof d_y));
        require(rowjit_launch(backward.arguments, NULL));
        require(rowjit_copy_to_host(engine, d_weight, backward.data[find(&backward, "d_weight")], sizeof d_weight));
        for (int i = 0; i < kColumns; ++i) weight[i] -= 0.5F * d_weight[i];
    }
    /* Memory of the device goes with its engine; a program that goes on would release each block. */
    rowjit_arguments_destroy(forward.arguments);
    rowjit_arguments_destroy(backward.arguments);
    rowjit_executable_destroy(forward.executable);
    rowjit_executable_destroy(backward.executable);
    rowjit_graph_destroy(forward.graph);
    rowjit_graph_destroy(backward.graph);
    rowjit_graph_destroy(norm);
    rowjit_engine_destroy(engine);
    return loss < 1e-3F ? 0 : 1;
}
