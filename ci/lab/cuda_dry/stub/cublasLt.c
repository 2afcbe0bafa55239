/* Matrix products of cuBLASLt, recorded. */
#include "record.h"

typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;
typedef struct { int64_t rows, columns, type; } Layout;
static int create(void **handle) { return *handle = calloc(1, 256), 0; }
int cublasLtCreate(void **handle) { return create(handle); }
int cublasLtDestroy(void *handle) { return free(handle), 0; }
int cublasLtMatmulDescCreate(void **handle) { return create(handle); }
int cublasLtMatmulDescDestroy(void *handle) { return free(handle), 0; }
int cublasLtMatmulPreferenceCreate(void **handle) { return create(handle); }
int cublasLtMatmulPreferenceDestroy(void *handle) { return free(handle), 0; }
int cublasLtMatrixTransformDescCreate(void **handle) { return create(handle); }
int cublasLtMatrixTransformDescDestroy(void *handle) { return free(handle), 0; }
int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    (void)ld;
    create((void **)layout);
    **layout = (Layout){(int64_t)rows, (int64_t)columns, type};
    return 0;
}
int cublasLtMatrixLayoutDestroy(void *handle) { return free(handle), 0; }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, Heuristic *results, int *found) {
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = wanted > 0;
    if (*found) memset(results, 0, sizeof *results), results->waves = 1;
    return 0;
}
int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, const Layout *a_layout,
                   const void *b, const Layout *b_layout, const void *beta, const void *c, const Layout *c_layout) {
    (void)handle, (void)operation, (void)alpha, (void)a, (void)b, (void)beta, (void)c;
    int64_t size = a_layout->rows * a_layout->columns, m = c_layout ? c_layout->rows : 0;
    RECORD("product", "cublasLtMatmul", m, c_layout ? c_layout->columns : 0, m ? size / m : 0, 1, a_layout->type);
    (void)b_layout;
    return 0;
}
