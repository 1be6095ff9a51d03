/* Calls the installed library, and says which it is. */
#include <rowjit/rowjit_c.h>
#include <stdio.h>

int main(void) {
    rowjit_graph* graph = NULL;
    if (rowjit_graph_parse("input x: f32[8]\noutput y = x + x\n", NULL, &graph) != ROWJIT_OK) {
        printf("%s\n", rowjit_last_error());
        return 1;
    }
    rowjit_graph_destroy(graph);
    printf("rowjit %s, ABI %d\n", rowjit_version(), (int)rowjit_abi_version());
    return rowjit_abi_version() == ROWJIT_ABI_VERSION ? 0 : 1;
}
