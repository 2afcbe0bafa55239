/* Matrix products of cuBLAS, recorded. */
#include "record.h"

int cublasCreate_v2(void **handle) { return *handle = calloc(1, 64), 0; }
int cublasDestroy_v2(void *handle) { return free(handle), 0; }
int cublasGetMathMode(void *handle, int *mode) { return (void)handle, *mode = 0, 0; }
const char *cublasGetStatusName(int status) { return status ? "CUBLAS_STATUS" : "CUBLAS_STATUS_SUCCESS"; }
const char *cublasGetStatusString(int status) { return cublasGetStatusName(status); }

#define HEAD void *handle, int ta, int tb, int m, int n, int k
int cublasSgemm_v2(HEAD) { RECORD("product", "cublasSgemm", m, n, k, 1); return 0; }
int cublasDgemm_v2(HEAD) { RECORD("product", "cublasDgemm", m, n, k, 1); return 0; }
int cublasGemmEx(HEAD, const void *alpha, const void *a, int a_type) {
    RECORD("product", "cublasGemmEx", m, n, k, 1, a_type);
    return 0;
}
int cublasSgemmBatched(HEAD, const void *alpha, const void *a, int lda, const void *b, int ldb, const void *beta,
                       void *c, int ldc, int batch) {
    RECORD("product", "cublasSgemmBatched", m, n, k, batch);
    return 0;
}
int cublasSgemmStridedBatched(HEAD, const float *alpha, const void *a, int lda, long long sa, const void *b, int ldb,
                              long long sb, const float *beta, void *c, int ldc, long long sc, int batch) {
    RECORD("product", "cublasSgemmStridedBatched", m, n, k, batch);
    return 0;
}
int cublasGemmBatchedEx(HEAD, const void *alpha, const void *a, int a_type, int lda, const void *b, int b_type,
                        int ldb, const void *beta, void *c, int c_type, int ldc, int batch) {
    RECORD("product", "cublasGemmBatchedEx", m, n, k, batch, a_type);
    return 0;
}
int cublasGemmStridedBatchedEx(HEAD, const void *alpha, const void *a, int a_type, int lda, long long sa,
                               const void *b, int b_type, int ldb, long long sb, const void *beta, void *c,
                               int c_type, int ldc, long long sc, int batch) {
    RECORD("product", "cublasGemmStridedBatchedEx", m, n, k, batch, a_type);
    return 0;
}
int cublasSgeam(HEAD) { RECORD("product", "cublasSgeam", m, n); return 0; }
int cublasDgeam(HEAD) { RECORD("product", "cublasDgeam", m, n); return 0; }
int cublasScopy_v2(void *handle, int n) { RECORD("product", "cublasScopy", n); return 0; }
int cublasSscal_v2(void *handle, int n) { RECORD("product", "cublasSscal", n); return 0; }
